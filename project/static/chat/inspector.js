// The panel beside the conversation: the shared state as a tree, and the raw events of each run.

import { follow } from "./api.js";
import { el } from "./dom.js";

const PAGE = 500;

/** Redraws the state; what differs from what was shown before lights up. */
export function drawState(root, state, before) {
  const empty = state === null || (typeof state === "object" && Object.keys(state).length === 0);
  if (empty) root.replaceChildren(el("p", { class: "muted" }, "The agent and this page share no state yet."));
  else root.replaceChildren(el("div", { class: "tree" }, tree(state, before)));
}

function tree(value, before) {
  const known = typeof before === "object" && before !== null ? before : undefined;
  return el(
    "dl",
    {},
    ...Object.entries(value).map(([key, item]) => {
      const old = known?.[key];
      const changed = before !== undefined && JSON.stringify(item) !== JSON.stringify(old);
      const nested = typeof item === "object" && item !== null && Object.keys(item).length > 0;
      const shown = nested ? tree(item, old) : el("code", { class: typeof item }, JSON.stringify(item));
      const row = el("div", { class: nested ? "nested" : "leaf" }, el("dt", {}, key), el("dd", {}, shown));
      if (changed && !nested) row.classList.add("changed");
      return row;
    }),
  );
}

/** The runs of a thread, newest first; opening one reads its log and follows it while it runs. */
export class Runs {
  #root;
  #reading = null;
  #open = null;

  constructor(root) {
    this.#root = root;
  }

  draw(runs, open = this.#open) {
    if (!runs.some((run) => run.uuid === open)) this.#close();
    if (runs.length === 0) {
      this.#root.replaceChildren(el("p", { class: "muted" }, "No runs yet."));
      return;
    }
    const shown = [...this.#root.querySelectorAll(".run")].map((node) => node.dataset.key).join();
    const keys = runs.map((run) => `${run.uuid} ${run.status}`);
    if (shown !== keys.join()) this.#rebuild(runs, keys);
    if (open && open !== this.#open) {
      const node = this.#root.querySelector(`[data-run="${open}"]`);
      node.open = true;
      node.scrollIntoView({ block: "nearest" });
    }
  }

  #rebuild(runs, keys) {
    const kept = this.#open && this.#root.querySelector(`[data-run="${this.#open}"] .events`);
    this.#root.replaceChildren(
      ...runs.map((run, index) => {
        const body = kept && run.uuid === this.#open ? kept : el("div", { class: "events" });
        const time = new Date(run.started).toLocaleTimeString();
        const head = el("summary", {}, el("span", { class: `chip ${run.status}` }, run.status), `${run.agent} `, el("time", {}, time));
        const node = el("details", { class: "run", open: body === kept }, head, body);
        node.dataset.key = keys[index];
        node.dataset.run = run.uuid;
        node.addEventListener("toggle", () => (node.open ? this.#read(run.uuid, body) : this.#shut(run.uuid)));
        return node;
      }),
    );
  }

  #shut(uuid) {
    if (this.#open === uuid) this.#close();
  }

  #close() {
    this.#reading?.abort();
    this.#reading = this.#open = null;
  }

  async #read(uuid, body) {
    if (this.#open === uuid) return;
    this.#close();
    for (const other of this.#root.querySelectorAll(".run[open]")) if (other.dataset.run !== uuid) other.open = false;
    const reading = (this.#reading = new AbortController());
    this.#open = uuid;
    body.replaceChildren(el("p", { class: "muted", role: "status" }, "Reading the log…"));
    const rows = new Rows(body);
    try {
      const { frames } = await follow(uuid, 0, reading.signal);
      for await (const frame of frames) rows.add(frame);
      rows.end();
    } catch (error) {
      if (error.name !== "AbortError") body.replaceChildren(el("p", { class: "problem" }, error.message));
    }
  }
}

class Rows {
  #body;
  #list = el("ol");
  #waiting = [];
  #more = el("button", { type: "button", class: "quiet", onclick: () => this.#page() });
  #room = PAGE;
  #began = null;

  constructor(body) {
    this.#body = body;
  }

  add({ seq, event }) {
    this.#began ??= event.timestamp;
    if (!this.#list.isConnected) this.#body.replaceChildren(this.#list);
    if (this.#room > 0) {
      this.#room -= 1;
      this.#list.append(this.#row(seq, event));
      return;
    }
    this.#waiting.push([seq, event]);
    this.#more.textContent = `Show more (${this.#waiting.length})`;
    if (!this.#more.isConnected) this.#body.append(this.#more);
  }

  end() {
    if (!this.#list.isConnected) this.#body.replaceChildren(el("p", { class: "muted" }, "No events."));
  }

  #page() {
    for (const [seq, event] of this.#waiting.splice(0, PAGE)) this.#list.append(this.#row(seq, event));
    this.#more.textContent = `Show more (${this.#waiting.length})`;
    if (this.#waiting.length === 0) {
      this.#room = PAGE;
      this.#more.remove();
    }
  }

  #row(seq, event) {
    const family = event.type.split("_")[0].toLowerCase();
    const after = event.timestamp ? `+${event.timestamp - this.#began} ms` : "";
    const summary = el(
      "summary",
      {},
      el("span", { class: "seq" }, seq ?? ""),
      el("span", { class: `type of-${family}` }, event.type),
      el("span", { class: "brief" }, brief(event)),
      el("span", { class: "after" }, after),
    );
    const row = el("details", {}, summary);
    row.addEventListener("toggle", () => row.append(el("pre", {}, JSON.stringify(event, null, 2))), { once: true });
    return el("li", {}, row);
  }
}

function brief(event) {
  const delta = event.delta ?? event.snapshot;
  if (typeof delta === "string") return delta;
  if (delta !== undefined) return JSON.stringify(delta);
  return event.toolCallName ?? event.stepName ?? event.content ?? event.message ?? event.outcome?.type ?? "";
}
