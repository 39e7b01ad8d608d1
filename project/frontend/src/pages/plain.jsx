import { HttpAgent } from "@ag-ui/client";
import { Chat } from "../chat.jsx";
import { AGENTS_URL, HEADERS } from "../site.js";

// The run that each thread saw last: /agui/runs/<uuid>/events.
const runs = new Map();

async function remembering(url, request) {
  const response = await fetch(url, request);
  runs.set(JSON.parse(request.body).threadId, response.headers.get("Content-Location"));
  return response;
}

// A request without messages restates the thread and joins its run; an HttpAgent alone asks neither that nor for a stop.
class StoredAgent extends HttpAgent {
  connect(input) {
    return this.run({ ...input, messages: [] });
  }

  abortRun() {
    const run = runs.get(this.threadId);
    if (run) fetch(run.replace(/events$/, "cancel"), { method: "POST", headers: this.headers });
    else super.abortRun();
  }
}

export function plainAgents() {
  return { plain: new StoredAgent({ url: `${AGENTS_URL}agents/echo`, headers: HEADERS, fetch: remembering }) };
}

export function Plain(props) {
  return <Chat {...props} />;
}
