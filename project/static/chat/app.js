// The chat page: which thread is open, which run is read, and what the buttons do.

import * as api from "./api.js";
import { Conversation } from "./conversation.js";
import { el } from "./dom.js";
import { emptyThread, fold } from "../agui_django/fold.js";
import { Runs, drawState } from "./inspector.js";
import * as panels from "./panels.js";
import { drawQuestions } from "./questions.js";
import * as streams from "./reading.js";
import * as threads from "./threads.js";

const $ = (id) => document.getElementById(id);
const conversation = new Conversation($("messages"), (uuid) => showInspector("runs", uuid));
const runsPanel = new Runs($("runs"));

let agents = [];
let entry = null; // the open thread as listed: {id, title, agent, runs}
let thread = emptyThread();
let reading = null; // the run that this page started: {run, seq, abort}
let watching = null; // the thread, while no such run is read: {run, abort, restating, error}; `run` while one is active
let cursor = null; // the last event that is shown, as `<run>:<seq>`
let trouble = null; // a refusal that no event told

// ---- drawing: at most once a frame -------------------------------------------------------------------------------

let dirty = new Set();
let scheduled = false;
let drawnState;

function changed(ids) {
  if (ids === null) dirty = null;
  else if (dirty) for (const id of ids) dirty.add(id);
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(draw);
}

function draw() {
  scheduled = false;
  const scroller = $("scroll");
  const atEnd = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 80;
  conversation.draw(thread, entry.runs, dirty);
  dirty = new Set();
  const text = JSON.stringify(thread.state);
  if (text !== drawnState) {
    drawState($("state"), thread.state, drawnState === undefined ? undefined : JSON.parse(drawnState));
    drawnState = text;
  }
  runsPanel.draw(entry.runs);
  drawStatus();
  if (atEnd) scroller.scrollTop = scroller.scrollHeight;
}

function drawStatus() {
  const busy = reading !== null || Boolean(watching?.run);
  const asking = thread.interrupts.length > 0 && !busy;
  document.body.dataset.busy = busy;
  $("agent").disabled = busy || entry.runs.length > 0;
  $("working").hidden = !busy;
  panels.drawSteps($("steps"), thread.steps, busy);
  $("stop").hidden = !busy;
  $("send").hidden = busy;
  $("prompt").disabled = asking;
  $("prompt").placeholder = asking ? "Answer the question above to go on" : `Message ${titleOf(entry.agent)}`;
  $("empty").hidden = busy || Boolean(watching?.restating) || thread.messages.length > 0 || trouble !== null;
  panels.drawNotice($("notice"), trouble ?? (busy ? null : thread.error), !busy && thread.outcome?.type === "cancelled");
  const form = $("questions");
  if (!asking) form.replaceChildren();
  else if (!form.firstChild) drawQuestions(form, thread.interrupts, resume);
}

function drawList() {
  panels.drawList($("threads"), entry, titleOf, (removed) => {
    threads.forget(removed.id);
    if (removed.id === entry?.id) newThread();
    else drawList();
  });
}

function drawAgent() {
  const agent = agents.find((each) => each.name === entry.agent);
  $("agent-title").textContent = agent?.title || entry.agent;
  $("agent-description").textContent = agent?.description ?? "";
  panels.drawSamples($("samples"), entry.agent, send);
}

const titleOf = (name) => agents.find((each) => each.name === name)?.title || name;

// ---- reading a run ---------------------------------------------------------------------------------------------------

const ended = () => thread.outcome !== null || thread.error !== null;

async function read(open) {
  stopWatching();
  const mine = (reading = streams.reading());
  const place = entry;
  const opened = (uuid) => runOf(place, uuid);
  try {
    await streams.read(mine, { open, opened, take: (seq, event) => take(place, mine.run, seq, event), ended });
  } finally {
    if (reading === mine) {
      reading = null;
      close(place, mine.run);
      changed([]);
      if (place.runs.length > 0) watch().catch(refused);
    }
  }
}

function take(place, uuid, seq, event) {
  if (uuid && seq !== null) {
    runOf(place, uuid).seq = seq;
    cursor = `${uuid}:${seq}`;
  }
  changed(fold(thread, event));
  keepSoon();
}

/** The run's entry in the list of the thread; a new one where it was started elsewhere. */
function runOf(place, uuid) {
  let run = place.runs.find((each) => each.uuid === uuid);
  if (!run) {
    run = { uuid, agent: place.agent, status: "running", started: Date.now(), seq: 0 };
    place.runs.unshift(run);
    threads.put(place);
    drawList();
  }
  return run;
}

function close(place, uuid, watched = true) {
  const run = place.runs.find((each) => each.uuid === uuid);
  if (run?.status === "running" && ended()) {
    run.status = thread.error ? "failed" : { interrupt: "interrupted", cancelled: "cancelled" }[thread.outcome.type] ?? "finished";
    if (watched) run.ended = Date.now();
    run.last = thread.messages.findLast((message) => message.role !== "tool")?.id;
  }
  keep();
  drawList();
}

// ---- watching the thread: runs that another tab or the site started ------------------------------------------------------

function watch() {
  stopWatching();
  const mine = (watching = { run: null, abort: new AbortController(), restating: cursor === null, error: thread.error });
  const place = entry;
  return streams.watch(mine.abort.signal, {
    open: (after, signal) => api.thread(place.id, after, signal),
    cursor: () => cursor,
    begun: () => Object.assign(mine, { restating: cursor === null, run: cursor && mine.run }),
    take: (id, event) => takeWatched(mine, place, id, event),
  });
}

function takeWatched(mine, place, id, event) {
  const [uuid, seq] = id ? id.split(":") : [mine.run, null];
  if (event.type === "RUN_STARTED") trouble = null;
  take(place, uuid, seq && Number(seq), event);
  // An event under a cursor that is not the run's last one: something runs.
  mine.run = ended() ? null : uuid ?? mine.run;
  if (!ended()) return;
  // What went wrong stays on the page: the thread's present does not tell it again.
  if (mine.restating && place.runs[0]?.uuid === uuid) thread.error ??= mine.error;
  if (uuid) close(place, uuid, !mine.restating);
  mine.restating = false;
}

function stopWatching() {
  watching?.abort.abort();
  watching = null;
}

// ---- keeping what is shown, so that a reload goes on in the middle -------------------------------------------------------

let timer = null;

function keep() {
  clearTimeout(timer);
  timer = null;
  if (!entry || entry.runs.length === 0) return;
  threads.put(entry);
  threads.keepShown(entry.id, thread);
}

function keepSoon() {
  timer ??= setTimeout(keep, 1000);
}

addEventListener("pagehide", keep);

// ---- what the visitor does ------------------------------------------------------------------------------------------------

function request(more) {
  return { threadId: entry.id, runId: crypto.randomUUID(), protocolVersion: "1.1", messages: [], tools: [], context: [], forwardedProps: {}, ...more };
}

async function send(text) {
  const content = text.trim();
  if (!content || reading || watching?.run) return;
  const message = { id: crypto.randomUUID(), role: "user", content };
  if (entry.runs.length === 0) entry.title = content.slice(0, 60);
  $("prompt").value = "";
  thread.messages.push(message);
  trouble = null;
  const accepted = await run(request({ messages: [message] }));
  if (accepted) return;
  // Refused before anything was stored: the words go back to where they were typed.
  thread.messages = thread.messages.filter((each) => each !== message);
  $("prompt").value = content;
  changed(null);
}

async function resume(entries) {
  trouble = null;
  await run(request({ resume: entries }));
  // A resume that failed before it acted leaves its questions open.
  if (!thread.error) return;
  cursor = null;
  watch().catch(refused);
}

/** Starts a run and reads it to its end; false when it was refused. */
async function run(body) {
  const place = entry;
  if (location.hash.slice(1) !== place.id) history.pushState(null, "", `#${place.id}`);
  Object.assign(thread, { error: null, outcome: null });
  const reader = read((signal) => api.start(place.agent, body, signal));
  $("questions").replaceChildren();
  changed([]);
  return reader.then(() => true, refused);
}

function refused(error) {
  trouble = error instanceof api.ApiError ? error : { message: "Something went wrong on this page.", code: String(error) };
  changed([]);
  return false;
}

async function stop() {
  const run = reading ? reading.run : watching?.run;
  if (!run) return;
  $("stop").disabled = true;
  await api.cancel(run).catch(refused);
  $("stop").disabled = false;
}

async function openThread(found) {
  leave();
  entry = found;
  const shown = threads.shown(found.id);
  thread = shown ?? emptyThread();
  const last = found.runs[0];
  // In the middle of a run it goes on where it was; at rest it is asked for as it is stored.
  if (shown && last.status === "running" && last.seq) cursor = `${last.uuid}:${last.seq}`;
  show();
  try {
    const done = watch();
    if (cursor) watching.run = last.uuid;
    await done;
  } catch (error) {
    if (entry !== found) return;
    if (error.status === 404) {
      threads.forget(found.id);
      newThread();
    } else refused(error);
  }
}

function newThread() {
  leave();
  const known = agents.some((each) => each.name === threads.lastAgent());
  entry = { id: crypto.randomUUID(), title: "", agent: known ? threads.lastAgent() : agents[0]?.name ?? "", runs: [] };
  thread = emptyThread();
  if (location.hash) history.pushState(null, "", location.pathname);
  show();
  $("prompt").focus();
}

function leave() {
  keep();
  reading?.abort.abort();
  reading = null;
  stopWatching();
  cursor = null;
  trouble = null;
}

function show() {
  conversation.clear();
  $("questions").replaceChildren();
  drawnState = undefined;
  $("agent").value = entry.agent;
  document.body.classList.remove("nav-open");
  document.title = entry.title ? `${entry.title} · AG-UI chat` : "AG-UI chat";
  drawAgent();
  drawList();
  changed(null);
}

function route() {
  const found = threads.get(location.hash.slice(1));
  if (found && found.id === entry?.id) return;
  if (found) openThread(found);
  else newThread();
}

function showInspector(tab, uuid) {
  for (const name of ["state", "runs"]) {
    $(`tab-${name}`).setAttribute("aria-selected", name === tab);
    $(name).hidden = name !== tab;
  }
  document.body.classList.add("inspector-open");
  if (uuid) runsPanel.draw(entry.runs, uuid);
}

// ---- wiring ----------------------------------------------------------------------------------------------------------------

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send($("prompt").value);
});
$("prompt").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  $("composer").requestSubmit();
});
$("stop").addEventListener("click", stop);
$("new").addEventListener("click", newThread);
$("agent").addEventListener("change", () => {
  threads.keepAgent($("agent").value);
  entry.agent = $("agent").value;
  drawAgent();
  changed([]);
});
for (const name of ["state", "runs"]) $(`tab-${name}`).addEventListener("click", () => showInspector(name));
$("toggle-nav").addEventListener("click", () => document.body.classList.toggle("nav-open"));
$("toggle-inspector").addEventListener("click", () => document.body.classList.toggle("inspector-open"));
$("close-inspector").addEventListener("click", () => document.body.classList.remove("inspector-open"));
$("veil").addEventListener("click", () => document.body.classList.remove("nav-open", "inspector-open"));
addEventListener("hashchange", route);
addEventListener("popstate", route);

async function main() {
  if (matchMedia("(min-width: 70rem)").matches) document.body.classList.add("inspector-open");
  entry = { id: "", title: "", agent: "", runs: [] };
  try {
    agents = await api.agents();
  } catch (error) {
    refused(error);
    return;
  }
  $("agent").replaceChildren(...agents.map((each) => el("option", { value: each.name }, each.title || each.name)));
  route();
}

main();
