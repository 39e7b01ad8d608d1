// Drives one official client, over HTTP or (spec.websocket) over a socket, through the steps read as JSON from standard input; prints what the client saw as JSON.
// A list of specs is taken one after the other. A step with `tell` writes that to standard error at its
// first event; one with `leaveAt` leaves at an event of that type, and the run goes on.
// Law: nothing here interprets events; messages and state are the client's own.
import { readFileSync } from "node:fs";
import { socketAgent } from "./socket_agent.mjs";

const given = JSON.parse(readFileSync(0, "utf8"));
let spec, HttpAgent, SocketAgent; // of the spec that is being driven
console.error = () => {}; // the clients report a failed run here and throw it as well
const warnings = [];
console.warn = (...parts) => warnings.push(parts.map(String).join(" "));

const exchanges = [];
const realFetch = globalThis.fetch;
globalThis.fetch = async (url, init) => {
  const response = await realFetch(url, init);
  exchanges.push({
    url: String(url),
    status: response.status,
    headers: Object.fromEntries(response.headers),
    body: init?.body ? JSON.parse(init.body) : null,
  });
  return response;
};

const newAgent = () =>
  new (SocketAgent ?? HttpAgent)({
    url: spec.url,
    headers: spec.headers,
    threadId: spec.threadId,
    initialMessages: spec.initialMessages,
    initialState: spec.initialState,
  });

// The calls of the last assistant message with calls that nobody answered yet.
function openCalls(messages) {
  const answered = new Set(messages.filter((m) => m.role === "tool").map((m) => m.toolCallId));
  return messages.flatMap((m) => (m.role === "assistant" && m.toolCalls) || []).filter((c) => !answered.has(c.id));
}

async function stopRun(agent, { leave = true }) {
  if (SocketAgent) return agent.abortRun();
  const [uuid] = /[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}/.exec(exchanges.at(-1).headers["content-location"]);
  if (leave) agent.abortRun();
  const response = await realFetch(new URL(`/agui/runs/${uuid}/cancel`, spec.url), {
    method: "POST",
    headers: { ...spec.headers, "Content-Type": "application/json" },
    body: "{}",
  });
  return { status: response.status, body: await response.json() };
}

async function runStep(agent, step) {
  const seen = { events: [], error: null, result: null, newMessages: null, cancel: null };
  for (const [name, content] of Object.entries(step.answer ?? {})) {
    const call = openCalls(agent.messages).find((c) => c.function.name === name);
    if (!call) throw new Error(`no open call of ${name} in ${JSON.stringify(agent.messages)}`);
    agent.addMessage({ id: `answer-${call.id}`, role: "tool", toolCallId: call.id, content });
  }
  // keep: the list up to a message; before: up to what stands before one. edit: say that what follows goes.
  const place = agent.messages.findIndex((message) => message.id === (step.keep ?? step.before));
  if (step.keep) agent.setMessages(agent.messages.slice(0, place + 1));
  if (step.before) agent.setMessages(agent.messages.slice(0, place));
  const supersedeAfter = agent.messages.at(-1)?.id ?? "";
  for (const message of step.add ?? []) agent.addMessage(message);
  if (step.state !== undefined) agent.setState(step.state);

  const parameters = { ...(step.parameters ?? {}) };
  if (step.edit) parameters.forwardedProps = { supersedeAfter };
  if (step.resume !== undefined) {
    parameters.resume = (agent.pendingInterrupts ?? []).map((interrupt) => ({
      interruptId: interrupt.id,
      ...step.resume,
    }));
  }
  let stopping = null;
  const subscriber = {
    onEvent({ event }) {
      seen.events.push(event);
      if (step.tell && seen.events.length === 1) process.stderr.write(`${step.tell}\n`);
      if (event.type === step.leaveAt) agent.abortRun();
      if (step.stopAt && !stopping && seen.events.filter((e) => e.type === step.stopAt.type).length >= step.stopAt.count)
        stopping = stopRun(agent, step.stopAt);
    },
  };
  try {
    const outcome = await agent.runAgent(parameters, subscriber);
    seen.result = outcome.result ?? null;
    seen.newMessages = outcome.newMessages;
  } catch (error) {
    seen.error = { name: error.name, message: error.message, status: error.status ?? null };
  }
  if (stopping) seen.cancel = await stopping;
  seen.messages = structuredClone(agent.messages);
  seen.state = structuredClone(agent.state);
  seen.pendingInterrupts = agent.pendingInterrupts ?? null;
  return seen;
}

async function drive(one) {
  spec = one;
  const client = await import(spec.client);
  HttpAgent = client.HttpAgent;
  SocketAgent = spec.websocket ? socketAgent(client.AbstractAgent, spec.websocket) : null;
  exchanges.length = warnings.length = 0;
  let agent = newAgent();
  const steps = [];
  for (const step of spec.steps) {
    if (step.fresh) {
      agent.socket?.close();
      agent = newAgent();
    }
    steps.push(await runStep(agent, step));
  }
  agent.socket?.close();
  return { steps, exchanges: [...exchanges], warnings: [...warnings], sockets: SocketAgent?.opened ?? 0 };
}

const seen = [];
for (const one of [given].flat()) seen.push(await drive(one));
process.stdout.write(JSON.stringify(Array.isArray(given) ? seen : seen[0]));
