// Lets CopilotKit's own client core live through one story; stdin: {story, url, headers, transport, core}, stdout: what it saw.
// Law: nothing here interprets events; messages, state and errors are the client's own.
import { readFileSync } from "node:fs";

const spec = JSON.parse(readFileSync(0, "utf8"));
globalThis.window = globalThis; // without one the core takes itself for a server, and never connects
console.error = () => {}; // failures are told to subscribers as well
const { CopilotKitCore, ɵcreateThreadStore: createThreadStore } = await import(spec.core);

const requests = [];
const realFetch = globalThis.fetch;
globalThis.fetch = async (url, init) => {
  const response = await realFetch(url, init);
  requests.push({ method: init?.method ?? "GET", path: new URL(url).pathname, status: response.status });
  return response;
};

async function until(condition, what) {
  const deadline = Date.now() + 30_000;
  while (!condition()) {
    if (Date.now() > deadline) throw new Error(`${what} did not come`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

// A page: a core that has asked for /info, and what it was told of errors.
async function page(agentId = "default", threadId = spec.threadId, tools = []) {
  const core = new CopilotKitCore({
    runtimeUrl: spec.url, headers: spec.headers, runtimeTransport: spec.transport, tools,
  });
  const errors = [];
  core.subscribe({ onError: ({ code, error }) => void errors.push({ code, message: String(error?.message) }) });
  await until(() => ["connected", "error"].includes(core.runtimeConnectionStatus), "the runtime");
  const agent = core.getAgent(agentId);
  if (agent) agent.threadId = threadId;
  const text = () => agent.messages.filter((m) => m.role === "assistant").map((m) => m.content ?? "").join("");
  const say = (content, more = {}) => {
    agent.addMessage({ id: crypto.randomUUID(), role: "user", content });
    return core.runAgent({ agent, ...more });
  };
  return { core, agent, errors, text, say, seen: () => structuredClone({ messages: agent.messages, errors }) };
}

const stories = {
  async info() {
    const { core, errors } = await page();
    return { status: core.runtimeConnectionStatus, agents: Object.keys(core.agents), version: core.runtimeVersion, errors };
  },

  async tool() {
    const colours = [];
    const tool = {
      name: "setColor",
      description: "Set the page's colour",
      handler: async ({ color }) => (colours.push(color), "done"),
    };
    const { say, seen } = await page("painter", spec.threadId, [tool]);
    await say("Blue, please.");
    return { ...seen(), colours };
  },

  async interrupt() {
    let { core, agent, say, seen } = await page("refund");
    let runId;
    agent.subscribe({ onRunStartedEvent: ({ event }) => void (runId = event.runId) });
    await say("Refund me");
    if (spec.reload) {
      ({ core, agent, seen } = await page("refund"));
      await core.connectAgent({ agent });
      runId = crypto.randomUUID();
    }
    const before = { ...seen(), open: agent.pendingInterrupts };
    const resume = agent.pendingInterrupts.map(({ id }) => ({
      interruptId: id, status: "resolved", payload: { approved: true, amount: 7 },
    }));
    await core.runAgent({ agent, resume, runId });
    return { before, after: { ...seen(), open: agent.pendingInterrupts } };
  },

  async reload() {
    const first = await page("plan");
    await first.say("A walk");
    const second = await page("plan");
    await second.core.connectAgent({ agent: second.agent });
    const empty = await page("plan", "never-seen");
    await empty.core.connectAgent({ agent: empty.agent });
    return {
      first: { ...first.seen(), state: first.agent.state },
      second: { ...second.seen(), state: second.agent.state },
      empty: empty.seen(),
    };
  },

  async middle() {
    const first = await page("gate");
    const running = first.say("Go");
    await until(() => first.text() === "before", "the first word");
    const second = await page("gate");
    const connected = second.core.connectAgent({ agent: second.agent });
    await until(() => second.text() === "before", "the first word again");
    const busy = await page("gate");
    await busy.say("Me too").catch(() => {});
    const { say } = await page("release", "another");
    await say("on");
    await Promise.all([running, connected]);
    return { first: first.seen(), second: second.seen(), busy: busy.seen() };
  },

  async stop() {
    const first = await page("gate");
    const running = first.say("Go");
    await until(() => first.text() === "before", "the first word");
    const stopper = spec.reload ? await page("gate") : first;
    const connected = spec.reload ? stopper.core.connectAgent({ agent: stopper.agent }) : null;
    if (spec.reload) await until(() => stopper.text() === "before", "the first word again");
    stopper.core.stopAgent({ agent: stopper.agent });
    await Promise.all([running, connected]);
    const second = await page("gate");
    await second.core.connectAgent({ agent: second.agent });
    return { first: first.seen(), second: second.seen() };
  },

  async threads() {
    const { core, say, agent } = await page();
    for (const id of ["a", "b", "c"]) {
      agent.threadId = id;
      agent.setMessages([]);
      await say(`About ${id}`);
    }
    const store = createThreadStore({ fetch: core.ɵruntimeFetch });
    store.start();
    const settled = () => !store.getState().isLoading && store.getState().threads.length > 0;
    store.setContext({
      runtimeUrl: core.runtimeUrl, headers: spec.headers, agentId: "default", includeArchived: true, limit: 2,
    });
    await until(settled, "the list");
    const list = () => store.getState().threads.map(({ id, name, archived }) => ({ id, name, archived }));
    const first = list();
    store.fetchNextPage();
    await until(() => store.getState().threads.length === 3, "the next page");
    const whole = list();
    await store.renameThread("a", "Alpha");
    await store.archiveThread("b");
    await store.deleteThread("c");
    store.refresh();
    await until(settled, "the list again");
    const failed = await store.renameThread("never-seen", "x").then(() => null, (error) => error.message);
    await until(() => store.getState().threads.every(({ id }) => id !== "c"), "the list without it");
    const last = list();
    store.stop();
    return { first, whole, last, failed, error: String(store.getState().error ?? "") };
  },

  async suggestions() {
    const { core, say, seen } = await page("helpful");
    await say("Hi");
    core.addSuggestionsConfig({
      instructions: "Short ones.", available: "always", providerAgentId: "helpful", consumerAgentId: "helpful",
    });
    core.reloadSuggestions("helpful");
    const found = () => core.getSuggestions("helpful");
    await until(() => found().suggestions.length > 0 && !found().isLoading, "suggestions");
    return { ...seen(), suggestions: found().suggestions.map(({ title, message }) => ({ title, message })) };
  },
};

const found = await stories[spec.story]();
process.stdout.write(JSON.stringify({ ...found, requests }), () => process.exit(0));
