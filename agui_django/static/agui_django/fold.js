// What AG-UI events make of a thread: plain JSON in, plain JSON out, so that it can be kept and gone on with later.
// The server expands chunks and sends legal streams; nothing is checked a second time here.

import { applyPatch } from "./patch.js";

export function emptyThread() {
  return { messages: [], state: null, steps: [], interrupts: [], outcome: null, error: null };
}

/** Applies an event; returns the ids of the messages it touched, or null for all of them. */
export function fold(thread, event) {
  const handler = HANDLERS[event.type];
  return handler ? handler(thread, event) : [];
}

export function find(thread, id) {
  return thread.messages.find((message) => message.id === id);
}

function ensure(thread, id, role, event, extra = {}) {
  let message = find(thread, id);
  if (!message) {
    message = { id, role, ...extra };
    if (event.subagentRunId) message.subagentRunId = event.subagentRunId;
    thread.messages.push(message);
  }
  return message;
}

function write(thread, event, role) {
  const message = ensure(thread, event.messageId, role, event);
  message.content = (message.content ?? "") + event.delta;
  return [message.id];
}

function callOf(thread, id) {
  for (const message of thread.messages) {
    const call = message.toolCalls?.find((each) => each.id === id);
    if (call) return [message, call];
  }
  return [null, null];
}

/** A patch that does not apply changes nothing: the next snapshot puts things right. */
function patched(document, operations) {
  try {
    return applyPatch(document, operations);
  } catch (error) {
    console.warn("A patch does not apply.", error);
    return document;
  }
}

const HANDLERS = {
  RUN_STARTED(thread, event) {
    Object.assign(thread, { steps: [], interrupts: [], outcome: null, error: null });
    const fresh = (event.input?.messages ?? []).filter((message) => !find(thread, message.id));
    thread.messages.push(...fresh);
    return fresh.map((message) => message.id);
  },
  RUN_FINISHED(thread, event) {
    thread.outcome = event.outcome ?? { type: "success" };
    thread.interrupts = thread.outcome.type === "interrupt" ? thread.outcome.interrupts : [];
    return [];
  },
  RUN_ERROR(thread, event) {
    thread.error = { message: event.message, code: event.code };
    return [];
  },
  STEP_STARTED(thread, event) {
    thread.steps.push({ name: event.stepName, done: false });
    return [];
  },
  STEP_FINISHED(thread, event) {
    const step = thread.steps.findLast((each) => each.name === event.stepName && !each.done);
    if (step) step.done = true;
    return [];
  },
  TEXT_MESSAGE_START(thread, event) {
    return [ensure(thread, event.messageId, event.role ?? "assistant", event, event.name ? { name: event.name } : {}).id];
  },
  TEXT_MESSAGE_CONTENT: (thread, event) => write(thread, event, "assistant"),
  REASONING_MESSAGE_START(thread, event) {
    const message = ensure(thread, event.messageId, "reasoning", event);
    message.open = true;
    return [message.id];
  },
  REASONING_MESSAGE_CONTENT: (thread, event) => write(thread, event, "reasoning"),
  REASONING_MESSAGE_END(thread, event) {
    delete find(thread, event.messageId)?.open;
    return [event.messageId];
  },
  TOOL_CALL_START(thread, event) {
    const parent = event.parentMessageId && find(thread, event.parentMessageId);
    const message = parent?.role === "assistant"
      ? parent
      : ensure(thread, event.parentMessageId && !parent ? event.parentMessageId : event.toolCallId, "assistant", event);
    message.toolCalls ??= [];
    if (!message.toolCalls.some((call) => call.id === event.toolCallId)) {
      const call = { id: event.toolCallId, type: "function", function: { name: event.toolCallName, arguments: "" } };
      message.toolCalls.push(call);
    }
    return [message.id];
  },
  TOOL_CALL_ARGS(thread, event) {
    const [message, call] = callOf(thread, event.toolCallId);
    if (!call) return [];
    call.function.arguments += event.delta;
    return [message.id];
  },
  TOOL_CALL_RESULT(thread, event) {
    const result = ensure(thread, event.messageId, "tool", event, { toolCallId: event.toolCallId });
    result.content = event.content;
    if (event.metadata) result.metadata = { ...result.metadata, ...event.metadata };
    const [message] = callOf(thread, event.toolCallId);
    return message ? [message.id, result.id] : [result.id];
  },
  STATE_SNAPSHOT(thread, event) {
    thread.state = event.snapshot;
    return [];
  },
  STATE_DELTA(thread, event) {
    thread.state = patched(thread.state ?? {}, event.delta);
    return [];
  },
  MESSAGES_SNAPSHOT(thread, event) {
    thread.messages = structuredClone(event.messages);
    return null;
  },
  ACTIVITY_SNAPSHOT(thread, event) {
    const known = find(thread, event.messageId);
    if (known && event.replace === false) return [];
    const message = ensure(thread, event.messageId, "activity", event);
    message.activityType = event.activityType;
    message.content = event.content;
    return [message.id];
  },
  ACTIVITY_DELTA(thread, event) {
    const message = find(thread, event.messageId);
    if (!message) return [];
    message.content = patched(message.content, event.patch);
    return [message.id];
  },
};
