// The conversation of every page: CopilotKit's own chat, on the thread that the address names.
import { CopilotChat, useAgent, useConfigureSuggestions, useCopilotKit } from "@copilotkit/react-core/v2";
import { useMemo } from "react";

// Regenerate: the page forgets what stands behind the question and runs again; the server keeps the old answer as a branch.
function useAgain(agentId) {
  const { agent } = useAgent({ agentId });
  const { copilotkit } = useCopilotKit();
  return useMemo(() => ({
    onRegenerate: ({ id }) => {
      const before = agent.messages.slice(0, agent.messages.findIndex((message) => message.id === id));
      const asked = before.findLastIndex(({ role }) => role === "user");
      // While a question is open, CopilotKit's client starts nothing but the answer.
      if (agent.isRunning || asked < 0 || agent.pendingInterrupts?.length) return;
      agent.setMessages(before.slice(0, asked + 1));
      copilotkit.runAgent({ agent }).catch(() => {}); // told by onError
    },
  }), [agent, copilotkit]);
}

export function Chat({ agent, thread, samples, attachments }) {
  useConfigureSuggestions(
    samples.length ? { available: "before-first-message", consumerAgentId: agent, suggestions: samples.map((text) => ({ title: text, message: text })) } : null,
    [agent, samples],
  );
  const assistantMessage = useAgain(agent);
  const messageView = useMemo(() => ({ assistantMessage }), [assistantMessage]);
  return (
    <section className="chat" aria-label="Conversation">
      <CopilotChat
        key={thread} agentId={agent} threadId={thread} attachments={attachments} messageView={messageView}
        labels={{ chatInputPlaceholder: "Say something…", chatDisclaimerText: "Scripted: no model, no key." }}
      />
    </section>
  );
}

// A page with something beside the conversation.
export function Beside({ children, ...chat }) {
  return (
    <div className="beside">
      <Chat {...chat} />
      <aside>{children}</aside>
    </div>
  );
}
