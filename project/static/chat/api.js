// The site's AG-UI addresses, called with the visitor's session.

import { events } from "../agui_django/sse.js";

const ROOT = document.body.dataset.api;
const CSRF = document.body.dataset.csrf;

/** A refusal told as JSON before any stream, or a connection that broke. */
export class ApiError extends Error {
  constructor(status, { code = "network", message = "The server cannot be reached.", reference = "" } = {}) {
    super(message);
    Object.assign(this, { status, code, reference });
  }
}

async function call(path, options = {}) {
  let response;
  try {
    response = await fetch(ROOT + path, {
      credentials: "same-origin",
      cache: "no-store",
      ...options,
      headers: { Accept: "text/event-stream, application/json", "X-CSRFToken": CSRF, ...options.headers },
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0);
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => ({}));
  throw new ApiError(response.status, body.error ?? { code: `http_${response.status}`, message: response.statusText });
}

export async function agents() {
  const response = await call("");
  return (await response.json()).agents;
}

/** Starts a run: resolves once it has an address, then `frames` yields {id, seq, event}. */
export async function start(agent, body, signal) {
  const response = await call(`agents/${encodeURIComponent(agent)}`, {
    method: "POST",
    body: JSON.stringify(body),
    headers: { "Content-Type": "application/json" },
    signal,
  });
  return { run: runOf(response), frames: frames(response) };
}

/** The events of a run after a number: those stored first, then live ones. */
export async function follow(run, after, signal) {
  const response = await call(`runs/${run}/events?after=${after}`, { signal });
  return { run, frames: frames(response) };
}

/** A thread behind a cursor, or its present; then whatever runs in it, until the page leaves. */
export async function thread(id, cursor, signal) {
  const after = cursor ? `&after=${cursor}` : "";
  return frames(await call(`threads/events?threadId=${encodeURIComponent(id)}${after}`, { signal }));
}

export async function cancel(run) {
  await call(`runs/${run}/cancel`, { method: "POST" });
}

function runOf(response) {
  return response.headers.get("Content-Location")?.match(/runs\/([0-9a-f-]{32,36})/)?.[1] ?? null;
}

async function* frames(response) {
  for await (const { id, data } of events(response)) {
    yield { id, seq: id === null ? null : Number(id), event: JSON.parse(data) };
  }
}
