// The conversation of every page: CopilotKit's own chat, on the thread that the address names.
import { CopilotChat, useConfigureSuggestions } from "@copilotkit/react-core/v2";

export function Chat({ agent, thread, samples, attachments }) {
  useConfigureSuggestions(
    samples.length ? { available: "before-first-message", consumerAgentId: agent, suggestions: samples.map((text) => ({ title: text, message: text })) } : null,
    [agent, samples],
  );
  return (
    <section className="chat" aria-label="Conversation">
      <CopilotChat
        key={thread} agentId={agent} threadId={thread} attachments={attachments}
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
