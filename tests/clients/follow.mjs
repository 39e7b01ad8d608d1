// Follows a thread with the app's browser client and prints its events, one a line, until so many runs came after the
// restatement that it begins with.
import { readFileSync } from "node:fs";
import WebSocket from "ws";
import { AgUiSocket } from "../../agui_django/static/agui_django/websocket.js";

const { url, threadId, runs } = JSON.parse(readFileSync(0, "utf8"));
const socket = new AgUiSocket(url, { WebSocket, token: () => "demo-ada", delay: 5 });
let left = runs + 1;
for await (const event of socket.follow({ threadId })) {
  process.stdout.write(`${JSON.stringify(event)}\n`);
  if (event.type === "RUN_FINISHED" && --left === 0) break;
}
