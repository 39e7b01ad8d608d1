// An AG-UI endpoint in Node with the official encoder, for the remote agent: says who asked, asks, and goes on.
import { createServer } from "node:http";
import { EventEncoder } from "@ag-ui/encoder";

const server = createServer(async (request, response) => {
  let body = "";
  for await (const chunk of request) body += chunk;
  const input = JSON.parse(body);
  const encoder = new EventEncoder({ accept: request.headers.accept });
  response.writeHead(200, { "Content-Type": encoder.getContentType() });
  const { threadId, runId } = input;
  const send = (event) => response.write(encoder.encode(event));
  send({ type: "RUN_STARTED", threadId, runId });
  const said = input.messages.at(-1)?.content ?? "";
  if (input.resume?.length) {
    const [{ status, payload }] = input.resume;
    send({ type: "TEXT_MESSAGE_START", messageId: `${runId}-m`, role: "assistant" });
    send({ type: "TEXT_MESSAGE_CONTENT", messageId: `${runId}-m`, delta: `${status}: ${JSON.stringify(payload)}` });
    send({ type: "TEXT_MESSAGE_END", messageId: `${runId}-m` });
    send({ type: "RUN_FINISHED", threadId, runId });
  } else if (said === "ask") {
    const question = { id: "q1", reason: "input_required", message: "Sure?" };
    send({ type: "RUN_FINISHED", threadId, runId, outcome: { type: "interrupt", interrupts: [question] } });
  } else {
    send({ type: "STATE_SNAPSHOT", snapshot: { ...input.state, node: true } });
    for (const delta of ["Grüße aus ", "Node 👋: ", said]) {
      send({ type: "TEXT_MESSAGE_CHUNK", messageId: "n1", role: "assistant", delta });
    }
    send({ type: "RUN_FINISHED", threadId, runId, result: { messages: input.messages.length } });
  }
  response.end();
});
server.listen(0, "127.0.0.1", () => console.log(server.address().port));
