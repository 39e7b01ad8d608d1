// Chromium as the pages of a site use the app's WebSocket client: node websocket.mjs <address>. Reads one command per
// line, {page, do, ...}, and answers each with one line, so that the test acts on the network between two of them.

import readline from "node:readline";
import { chromium } from "playwright-core";

const FLAGS = [
  "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
  "--disable-background-networking", "--disable-component-update", "--disable-sync",
];
const PATIENCE = 60_000;
const address = process.argv[2];

// What a site would write: it shows what comes, and keeps what it has and where it is for when it is loaded again.
async function watch({ agent, method, argument, limit = Infinity }) {
  const { AgUiSocket } = await import("/static/agui_django/websocket.js");
  const kept = JSON.parse(sessionStorage.getItem("kept") ?? '{"events": [], "place": null}');
  const socket = new AgUiSocket(`/agui/ws${agent ? `/${agent}` : ""}`, { delay: 20 });
  const stream = method === "run" ? socket.run(argument) : socket.follow(argument ?? kept.place);
  const view = (window.view = { socket, ...kept, error: null, limit, over: false });
  view.stopped = (async () => {
    for await (const event of stream) {
      view.events.push(event);
      view.place = socket.place;
      sessionStorage.setItem("kept", JSON.stringify({ events: view.events, place: view.place }));
      if (view.events.length >= view.limit) break;
    }
  })()
    .catch((error) => (view.error = { name: error.name, message: error.message, code: error.code }))
    .finally(() => (view.over = true));
}

const COMMANDS = {
  // Begin to watch; resolves at once.
  watch: (page, command) => page.evaluate(watch, command),
  // So many events are there, or the stream is over.
  async seen(page, { count }) {
    const there = (wanted) => window.view.over || window.view.events.length >= wanted;
    await page.waitForFunction(there, count, { timeout: PATIENCE });
    return page.evaluate(() => window.view.events.length);
  },
  cancel: (page) => page.evaluate(() => window.view.socket.cancel()),
  // Leave the loop at the next event.
  leave: (page) => page.evaluate(() => (window.view.limit = 0)),
  reload: async (page) => void (await page.reload()),
  close: (page) => page.evaluate(() => window.view.socket.close()),
  async over(page) {
    await page.waitForFunction(() => window.view.over, null, { timeout: PATIENCE });
    return page.evaluate(() => ({ events: window.view.events, place: window.view.place, error: window.view.error }));
  },
};

const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: FLAGS });
try {
  const context = await browser.newContext();
  const pages = new Map();
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const command = JSON.parse(line);
    if (!pages.has(command.page)) {
      const page = await context.newPage();
      await page.goto(address); // logs its visitor in
      await page.goto(`${address}static/agui_django/websocket.js`); // a document of the site on which nothing else runs
      pages.set(command.page, page);
    }
    const result = await COMMANDS[command.do](pages.get(command.page), command);
    process.stdout.write(`${JSON.stringify(result ?? null)}\n`);
  }
} finally {
  await browser.close();
}
