// Folds streams with the browser client: a JSON list of lists of events on stdin, messages and state of each on stdout.

import { readFileSync } from "node:fs";
import { emptyThread, fold } from "../../agui_django/static/agui_django/fold.js";
import { events } from "../../agui_django/static/agui_django/sse.js";

const streams = JSON.parse(readFileSync(0, "utf8"));
const results = [];
for (const stream of streams) {
  // As a server would frame them, cut at every seventh byte.
  const text = stream.map((event, index) => `: comment\n\nid: ${index + 1}\ndata: ${JSON.stringify(event)}\n\n`).join("");
  const bytes = new TextEncoder().encode(text);
  const body = new ReadableStream({
    start(controller) {
      for (let at = 0; at < bytes.length; at += 7) controller.enqueue(bytes.slice(at, at + 7));
      controller.close();
    },
  });
  const thread = emptyThread();
  const ids = [];
  for await (const { id, data } of events({ body })) {
    ids.push(Number(id));
    fold(thread, JSON.parse(data));
  }
  results.push({ ids, messages: thread.messages, state: thread.state });
}
process.stdout.write(JSON.stringify(results));
