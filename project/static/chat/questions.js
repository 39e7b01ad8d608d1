// The open questions of a thread, as one form: a run goes on when all of them are answered or declined.

import { el, icon } from "./dom.js";
import { field } from "./form.js";

/** Draws into `root`; `answer(resume)` gets the entries of the resume. */
export function drawQuestions(root, interrupts, answer) {
  const questions = interrupts.map((interrupt) => question(interrupt));
  const problem = el("p", { class: "problem", role: "alert", hidden: true });
  const form = el(
    "form",
    {
      class: "card questions",
      onsubmit(event) {
        event.preventDefault();
        submit((each) => each.resolved());
      },
    },
    ...questions.map((each) => each.element),
    problem,
    el(
      "div",
      { class: "actions" },
      el("button", { class: "primary" }, interrupts.length > 1 ? "Send answers" : "Send answer"),
      el("button", { type: "button", class: "quiet", onclick: () => submit((each) => each.cancelled()) }, "Decline"),
    ),
  );

  function submit(entry) {
    try {
      answer(questions.map(entry));
    } catch (error) {
      problem.textContent = error.message;
      problem.hidden = false;
    }
  }

  root.replaceChildren(form);
}

function question(interrupt) {
  const part = field(interrupt.responseSchema ?? { type: "string", title: "Answer" });
  const expires = interrupt.expiresAt && new Date(interrupt.expiresAt).toLocaleString();
  const element = el(
    "section",
    { class: "question" },
    el("h3", {}, icon("question"), interrupt.message ?? interrupt.reason),
    expires ? el("p", { class: "hint" }, `Answer before ${expires}.`) : null,
    part.element,
  );
  return {
    element,
    resolved() {
      const payload = part.value();
      if (payload === undefined) throw new Error("Every question needs an answer.");
      return { interruptId: interrupt.id, status: "resolved", payload };
    },
    cancelled: () => ({ interruptId: interrupt.id, status: "cancelled" }),
  };
}
