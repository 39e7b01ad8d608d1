// The parts around the conversation: the list of threads, an agent's samples, steps and notices.

import { el, icon } from "./dom.js";
import * as threads from "./threads.js";

const SAMPLES = {
  echo: ["Hello there", "tokens:200 delay_ms:20 size:24"],
  plan: ["A picnic by the lake", "Move the office"],
  orders: ["Blue teapot", "Red kettle"],
  refund: ["My teapot arrived broken"],
  slow: ["Write sixty lines"],
  script: ['[{"type":"CUSTOM","name":"hello","value":1},{"$sleep":1},{"$raise":"ValueError: boom"}]'],
};

export function drawList(root, current, titleOf, remove) {
  root.replaceChildren(
    ...threads.list().map((each) => {
      const running = each.runs[0]?.status === "running";
      const agent = el("span", { class: "hint" }, running ? el("span", { class: "dot" }) : null, titleOf(each.agent));
      const state = { href: `#${each.id}`, "aria-current": each.id === current?.id ? "page" : null };
      const button = { type: "button", class: "icon-button", "aria-label": `Remove ${each.title} from this list` };
      return el(
        "li",
        {},
        el("a", state, el("span", { class: "title" }, each.title), agent),
        el("button", { ...button, onclick: () => remove(each) }, icon("close")),
      );
    }),
  );
}

export function drawSamples(root, name, send) {
  const samples = SAMPLES[name] ?? [];
  root.replaceChildren(
    ...samples.map((text) => el("button", { type: "button", class: "sample", onclick: () => send(text) }, text)),
  );
}

export function drawSteps(root, steps, busy) {
  root.hidden = !busy || steps.length === 0;
  root.replaceChildren(
    ...steps.map((step) => el("li", { class: step.done ? "done" : "now" }, step.done ? icon("check") : null, step.name)),
  );
}

/** An error {message, code, reference}, or that the run was stopped, or nothing. */
export function drawNotice(root, error, stopped) {
  root.className = error ? "card error" : "stopped";
  root.hidden = !error && !stopped;
  if (!error) {
    root.replaceChildren(...(stopped ? ["Stopped."] : []));
    return;
  }
  const code = [error.code, error.reference].filter(Boolean).join(" · ");
  root.replaceChildren(icon("warning"), el("div", {}, el("p", {}, error.message), el("p", { class: "hint" }, code)));
}
