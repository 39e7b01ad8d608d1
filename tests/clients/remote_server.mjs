// An AG-UI endpoint in Node with the official encoder, for the remote agent: does what the last message says.
// Prints its port, then a line for each client that left before the end.
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
  const finish = (more) => (send({ type: "RUN_FINISHED", threadId, runId, ...more }), response.end());
  const messageId = `${runId}-m`;
  const say = (...deltas) => {
    send({ type: "TEXT_MESSAGE_START", messageId, role: "assistant" });
    for (const delta of deltas) send({ type: "TEXT_MESSAGE_CONTENT", messageId, delta });
    send({ type: "TEXT_MESSAGE_END", messageId });
  };
  send({ type: "RUN_STARTED", threadId, runId });
  const last = input.messages.at(-1) ?? {};
  if (input.resume?.length) {
    const [{ status, payload }] = input.resume;
    say(`${status}: ${JSON.stringify(payload)}`);
    finish();
  } else if (last.role === "tool") {
    say(`painted ${last.content}`);
    finish();
  } else if (last.content === "ask") {
    const question = { id: "q1", reason: "input_required", message: "Sure?" };
    finish({ outcome: { type: "interrupt", interrupts: [question] } });
  } else if (last.content === "paint") {
    const toolCallId = `${runId}-c`;
    send({ type: "TOOL_CALL_START", toolCallId, toolCallName: input.tools[0].name });
    for (const delta of ['{"of"', ":2}"]) send({ type: "TOOL_CALL_ARGS", toolCallId, delta });
    send({ type: "TOOL_CALL_END", toolCallId });
    finish();
  } else if (last.content === "fail") {
    send({ type: "RUN_ERROR", message: "secret", code: "its_own" });
    response.end();
  } else if (last.content === "wait") {
    send({ type: "TEXT_MESSAGE_CHUNK", messageId, role: "assistant", delta: "one " });
    response.on("close", () => console.log("left"));
  } else {
    send({ type: "STATE_SNAPSHOT", snapshot: { ...input.state, seen: true } });
    for (const delta of ["Hm", "."]) send({ type: "REASONING_MESSAGE_CHUNK", messageId: `${runId}-r`, delta });
    say("Grüße 👋: ", last.content);
    finish({ result: { messages: input.messages.length, props: input.forwardedProps, by: request.headers.authorization } });
  }
});
server.listen(0, "127.0.0.1", () => console.log(server.address().port));
