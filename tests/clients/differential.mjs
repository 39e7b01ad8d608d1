// Feeds streams to the official client's own pipeline and tells what it made of each.
// stdin: [{messages, state, threadId, runId, events}]; stdout: [{failed, messages, state} or {failed, circular}].
import { AbstractAgent } from "client-current";
import { Observable } from "rxjs";

const TOGETHER = 250;
console.warn = console.error = () => {};

class Replay extends AbstractAgent {
  constructor(stream) {
    super({ threadId: stream.threadId, initialMessages: stream.messages, initialState: stream.state });
    this.events = stream.events;
  }

  run() {
    return new Observable((subscriber) => {
      let next = 0;
      // One event per turn of the loop, as off a socket: an error may not overtake the events before it.
      const step = () => {
        if (subscriber.closed) return;
        if (next === this.events.length) return subscriber.complete();
        subscriber.next(this.events[next++]);
        setImmediate(step);
      };
      setImmediate(step);
    });
  }
}

async function verdict(stream) {
  const agent = new Replay(stream);
  let failed = null;
  try {
    await agent.runAgent({ runId: stream.runId });
  } catch (error) {
    failed = String(error?.message ?? error).slice(0, 300);
  }
  const made = { failed, messages: agent.messages, state: agent.state };
  try {
    JSON.stringify(made);
  } catch {
    return { failed, circular: true }; // its JSON Patch library moved a value into itself
  }
  return made;
}

let text = "";
for await (const piece of process.stdin) text += piece;
const streams = JSON.parse(text);
const verdicts = [];
for (let first = 0; first < streams.length; first += TOGETHER) {
  verdicts.push(...(await Promise.all(streams.slice(first, first + TOGETHER).map(verdict))));
}
process.stdout.write(JSON.stringify(verdicts));
