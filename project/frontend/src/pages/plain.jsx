import { HttpAgent, runHttpRequest, transformHttpEventStream } from "@ag-ui/client";
import { Chat } from "../chat.jsx";
import { AGENTS_URL, HEADERS, RUNS_URL } from "../site.js";

// What an HttpAgent lacks: it has no history, and its stop only hangs up.
class StoredAgent extends HttpAgent {
  connect({ threadId }) {
    const address = `${AGENTS_URL}threads/events?until=idle&protocolVersion=0.x&threadId=${encodeURIComponent(threadId)}`;
    return transformHttpEventStream(runHttpRequest(async () => {
      const response = await fetch(address, { headers: this.headers, signal: this.abortController.signal });
      return response.status === 404 ? new Response("") : response; // nothing was said yet
    }));
  }

  async abortRun() {
    const address = `${RUNS_URL}?status=running&threadId=${encodeURIComponent(this.threadId)}`;
    const { results } = await (await fetch(address, { headers: this.headers })).json();
    for (const { id } of results) await fetch(`${RUNS_URL}/${id}/cancel`, { method: "POST", headers: this.headers });
  }
}

export function plainAgents() {
  return { plain: new StoredAgent({ url: `${AGENTS_URL}agents/echo`, headers: HEADERS }) };
}

export function Plain(props) {
  return <Chat {...props} />;
}
