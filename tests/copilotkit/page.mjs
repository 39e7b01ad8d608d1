// CopilotKit's client core as a page of another origin has it: `talk` runs the default agent, then lists and renames threads.
import { CopilotKitCore, ɵcreateThreadStore as createThreadStore } from "@copilotkit/core";

async function until(condition) {
  const deadline = Date.now() + 20_000;
  while (!condition() && Date.now() < deadline) await new Promise((resolve) => setTimeout(resolve, 20));
}

window.talk = async ({ url, headers, credentials }) => {
  const core = new CopilotKitCore({ runtimeUrl: url, headers, credentials });
  await until(() => ["connected", "error"].includes(core.runtimeConnectionStatus));
  const found = { status: core.runtimeConnectionStatus };
  const agent = core.getAgent("default");
  if (found.status !== "connected" || !agent) return found;
  agent.threadId = crypto.randomUUID();
  agent.addMessage({ id: crypto.randomUUID(), role: "user", content: "Hello from elsewhere" });
  await core.runAgent({ agent });
  found.said = agent.messages.at(-1).content;
  const again = core.getAgent("default");
  again.setMessages([]);
  await core.connectAgent({ agent: again });
  found.restored = again.messages.map(({ content }) => content);
  const store = createThreadStore({ fetch: core.ɵruntimeFetch });
  store.start();
  store.setContext({ runtimeUrl: core.runtimeUrl, headers, agentId: "default", includeArchived: true, limit: 10 });
  await until(() => store.getState().error || store.getState().threads.length > 0);
  found.listed = store.getState().error ? String(store.getState().error.message) : store.getState().threads.some(({ id }) => id === agent.threadId);
  found.renamed = await store.renameThread(agent.threadId, "Renamed").then(() => true, (error) => error.message);
  store.stop();
  return found;
};
