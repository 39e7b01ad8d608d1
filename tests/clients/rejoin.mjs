// Lets an official HttpAgent read threads' feeds; stdin: {client, headers, feeds}, stdout: what each made of its own.
// A feed is an address to GET ({url, release: {url, threadId}}: once joined, let the run go on) or a recorded {body}.
import { readFileSync } from "node:fs";

const spec = JSON.parse(readFileSync(0, "utf8"));
const { HttpAgent } = await import(spec.client);
const warnings = [];
console.error = () => {};
console.warn = (...parts) => warnings.push(parts.map(String).join(" "));

class Watcher extends HttpAgent {
  requestInit() {
    return { method: "GET", headers: { ...this.headers, Accept: "text/event-stream" } };
  }
}

async function release({ url, threadId }) {
  const message = { id: crypto.randomUUID(), role: "user", content: threadId };
  const ids = { threadId: crypto.randomUUID(), runId: crypto.randomUUID() };
  const response = await fetch(url, {
    method: "POST",
    headers: { ...spec.headers, "Content-Type": "application/json" },
    body: JSON.stringify({ ...ids, messages: [message], tools: [], context: [], forwardedProps: {} }),
  });
  await response.text();
}

async function watch(feed) {
  const recorded = async () => new Response(feed.body, { headers: { "Content-Type": "text/event-stream" } });
  const agent = new Watcher({
    url: feed.url ?? "http://recorded/",
    headers: spec.headers,
    threadId: feed.threadId,
    initialMessages: feed.messages ?? [],
    initialState: feed.state ?? {},
    ...(feed.body === undefined ? {} : { fetch: recorded }),
  });
  if (feed.body !== undefined) agent.fetch = recorded;
  const types = [];
  let released = null;
  let error = null;
  try {
    await agent.runAgent({}, {
      onEvent({ event }) {
        types.push(event.type);
        if (feed.release && event.type === "STATE_SNAPSHOT") released ??= release(feed.release);
      },
    });
  } catch (failure) {
    error = String(failure?.message ?? failure);
  }
  await released;
  return { error, types, messages: agent.messages, state: agent.state, pendingInterrupts: agent.pendingInterrupts ?? null };
}

const seen = [];
for (const feed of spec.feeds) seen.push(await watch(feed));
process.stdout.write(JSON.stringify({ seen, warnings }));
