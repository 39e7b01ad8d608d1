// A run's page while it runs: one EventSource, closed while the page is hidden or paused, and at the run's end, when the
// server's own rendering takes the place of what was shown live. All text is set as text.

const HIDDEN_AFTER = 10 * 60 * 1000;
const run = document.getElementById("agui-run");
const state = run?.querySelector(".agui-live-state");
const pause = run?.querySelector(".agui-pause");
const area = run?.querySelector(".agui-live");
let source = null;
let last = 0;
let paused = false;
let idle = 0;
const open = new Map();

function say(name) {
  state.dataset.state = name;
  state.textContent = state.dataset[name];
}

function line(key, text) {
  const bottom = innerHeight + scrollY >= document.documentElement.scrollHeight - 40;
  let part = open.get(key);
  if (!part) {
    part = area.appendChild(document.createElement("p"));
    open.set(key, part);
  }
  part.textContent += text;
  if (bottom) scrollTo(0, document.documentElement.scrollHeight);
}

function show(event) {
  if ("hidden" in event) {
    if (event.type.endsWith("_START") || event.type.endsWith("_STARTED")) line(last, `${event.toolCallName ?? event.role ?? event.type}`);
  } else if (event.type === "TEXT_MESSAGE_CONTENT") line(`text ${event.messageId}`, event.delta);
  else if (event.type === "REASONING_MESSAGE_CONTENT") line(`thought ${event.messageId}`, event.delta);
  else if (event.type === "TOOL_CALL_START") line(`call ${event.toolCallId}`, `${event.toolCallName} `);
  else if (event.type === "TOOL_CALL_ARGS") line(`call ${event.toolCallId}`, event.delta);
  else if (event.type === "TOOL_CALL_RESULT") line(`call ${event.toolCallId}`, ` → ${typeof event.content === "string" ? event.content : JSON.stringify(event.content)}`);
  else if (event.type === "STEP_STARTED") line(`step ${last}`, `— ${event.stepName} —`);
}

async function ended() {
  stop("ended");
  const answer = await fetch(location.href);
  if (!answer.ok || answer.redirected) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const fresh = page.getElementById("agui-run");
  if (!fresh) return;
  // Where the heading stands is the admin's, and differs between Django's versions.
  const heading = (place) => place.querySelector("h1 .agui-status")?.closest("h1");
  heading(document)?.replaceWith(heading(page) ?? "");
  run.replaceWith(fresh);
}

function stop(name) {
  source?.close();
  source = null;
  clearTimeout(idle);
  say(name);
}

function start() {
  if (source || paused || document.hidden) return;
  say("live");
  source = new EventSource(`${run.dataset.live}?after=${last}`);
  source.onopen = () => say("live");
  source.onerror = () => say(source?.readyState === EventSource.CLOSED ? "ended" : "reconnecting");
  source.onmessage = (message) => {
    last = Number(message.lastEventId) || last;
    clearTimeout(idle);
    idle = setTimeout(() => stop("paused"), HIDDEN_AFTER);
    const event = JSON.parse(message.data);
    if (event.type === "RUN_FINISHED" || event.type === "RUN_ERROR") ended();
    else show(event);
  };
}

if (run?.dataset.active) {
  pause.hidden = false;
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.setAttribute("aria-pressed", String(paused));
    if (paused) stop("paused");
    else start();
  });
  document.addEventListener("visibilitychange", () => {
    if (run.isConnected) document.hidden ? source && stop("paused") : start();
  });
  start();
}
