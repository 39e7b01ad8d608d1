// Shows a folded thread. Elements are kept per message, so that a delta redraws one message and open details stay open.

import { el, icon, pretty, rich } from "./dom.js";

export class Conversation {
  #root;
  #nodes = new Map();
  #onRun;

  constructor(root, onRun) {
    this.#root = root;
    this.#onRun = onRun;
  }

  clear() {
    this.#nodes.clear();
    this.#root.replaceChildren();
  }

  /** Draws the messages; `changed` holds the ids to redraw, null all of them. */
  draw(thread, runs, changed) {
    const results = new Map(thread.messages.filter((m) => m.role === "tool").map((m) => [m.toolCallId, m]));
    const wanted = [];
    for (const message of thread.messages) {
      if (message.role === "tool") continue;
      let node = this.#nodes.get(message.id);
      if (!node || node.role !== message.role) {
        node = { role: message.role, ...(MAKERS[message.role] ?? note)(message) };
        this.#nodes.set(message.id, node);
        node.update(message, results);
      } else if (changed === null || changed.has(message.id)) node.update(message, results);
      wanted.push(node.element);
      for (const run of runs) if (run.last === message.id) wanted.push(this.#footer(run));
    }
    wanted.forEach((element, index) => {
      if (this.#root.children[index] !== element) this.#root.insertBefore(element, this.#root.children[index] ?? null);
    });
    while (this.#root.children.length > wanted.length) this.#root.lastChild.remove();
  }

  #footer(run) {
    const key = `run ${run.uuid} ${run.status}`;
    let node = this.#nodes.get(key);
    if (!node) {
      const seconds = run.ended ? ` · ${((run.ended - run.started) / 1000).toFixed(1)} s` : "";
      const text = `${run.agent} · ${run.status}${seconds} · ${run.seq} events`;
      const button = el("button", { type: "button", class: "link", onclick: () => this.#onRun(run.uuid) }, text);
      node = { role: "run", element: el("div", { class: `run-end ${run.status}` }, button) };
      this.#nodes.set(key, node);
    }
    return node.element;
  }
}

const MAKERS = { user, assistant, reasoning, activity };

function textOf(content) {
  if (!Array.isArray(content)) return content ?? "";
  return content.map((part) => (part.type === "text" ? part.text : `[${part.type}]`)).join("\n");
}

function user() {
  const bubble = el("div", { class: "bubble" });
  return {
    element: el("article", { class: "message user" }, bubble),
    update: (message) => (bubble.textContent = textOf(message.content)),
  };
}

function assistant() {
  const text = el("div", { class: "text" });
  const calls = new Map();
  const element = el("article", { class: "message assistant" }, text);
  return {
    element,
    update(message, results) {
      text.replaceChildren(rich(textOf(message.content)));
      text.hidden = !message.content;
      for (const call of message.toolCalls ?? []) {
        if (!calls.has(call.id)) {
          const card = toolCall();
          calls.set(call.id, card);
          element.append(card.element);
        }
        calls.get(call.id).update(call, results.get(call.id));
      }
    },
  };
}

function toolCall() {
  const [name, state] = [el("code"), el("span", { class: "chip" })];
  const [args, result] = [el("pre"), el("pre")];
  const answer = el("div", {}, el("h4", {}, "Result"), result);
  const body = el("div", { class: "card-body" }, el("h4", {}, "Arguments"), args, answer);
  const element = el("details", { class: "card tool" }, el("summary", {}, icon("tool"), name, state), body);
  return {
    element,
    update(call, found) {
      name.textContent = call.function.name;
      args.textContent = pretty(call.function.arguments);
      answer.hidden = !found;
      if (found) result.textContent = pretty(textOf(found.content));
      state.textContent = found ? (found.error || found.metadata?.failed ? "failed" : "done") : "running";
      state.className = `chip ${state.textContent}`;
    },
  };
}

function reasoning() {
  const [title, text] = [el("span"), el("div", { class: "text" })];
  const element = el("details", { class: "message reasoning" }, el("summary", {}, icon("think"), title), text);
  return {
    element,
    update(message) {
      title.textContent = message.open ? "Thinking…" : "Thoughts";
      text.textContent = message.content ?? "";
      element.classList.toggle("open", Boolean(message.open));
    },
  };
}

function activity() {
  const [name, body] = [el("strong"), el("pre")];
  const element = el("article", { class: "card activity" }, el("div", { class: "card-head" }, name), body);
  return {
    element,
    update(message) {
      name.textContent = message.activityType;
      body.textContent = pretty(message.content);
    },
  };
}

function note() {
  const element = el("p", { class: "message note" });
  return { element, update: (message) => (element.textContent = textOf(message.content)) };
}
