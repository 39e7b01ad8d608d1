// The visitor's own threads, kept in this browser: the list, and what the page last showed of each.

const PREFIX = `agui:${document.body.dataset.user}:`;
const LIMIT = 50;

function read(key, fallback) {
  try {
    return JSON.parse(localStorage.getItem(PREFIX + key)) ?? fallback;
  } catch {
    return fallback;
  }
}

function save(key, value) {
  try {
    localStorage.setItem(PREFIX + key, JSON.stringify(value));
  } catch {
    // Over the browser's quota: the page then asks the server for the whole thread.
    localStorage.removeItem(PREFIX + key);
  }
}

/** Newest first: {id, title, agent, updated, runs: [{uuid, agent, status, started, seq}]}. */
export function list() {
  return read("threads", []);
}

export function get(id) {
  return list().find((entry) => entry.id === id);
}

export function put(entry) {
  const others = list().filter((each) => each.id !== entry.id);
  const kept = [{ ...entry, updated: Date.now() }, ...others];
  for (const old of kept.splice(LIMIT)) localStorage.removeItem(`${PREFIX}shown:${old.id}`);
  save("threads", kept);
}

export function forget(id) {
  save("threads", list().filter((each) => each.id !== id));
  localStorage.removeItem(`${PREFIX}shown:${id}`);
}

/** What was shown of a thread, and up to which event of its last run. */
export const shown = (id) => read(`shown:${id}`, null);
export const keepShown = (id, thread) => save(`shown:${id}`, thread);
export const lastAgent = () => read("agent", null);
export const keepAgent = (name) => save("agent", name);
