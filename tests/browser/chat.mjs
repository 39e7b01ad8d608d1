// Drives the chat page as its visitor would: node chat.mjs <scenario> <address> [folder for screenshots].
// Prints one JSON object for the Python side to compare with what is stored; fails on any console error.

import assert from "node:assert/strict";
import { chromium } from "playwright-core";

const FLAGS = [
  "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
  "--disable-background-networking", "--disable-component-update", "--disable-sync",
];
const [, , scenario, address, folder] = process.argv;

const thread = (page) => page.evaluate(() => location.hash.slice(1));
const answers = (page) => page.locator(".message.assistant .text").allTextContents();
const idle = (page) => page.waitForFunction(() => document.body.dataset.busy === "false");
const shoot = (page, name) => folder && page.screenshot({ path: `${folder}/${name}.png` });

// For answers that may be over before anybody could see that the page was busy.
async function say(page, agent, text) {
  if (agent) await page.selectOption("#agent", agent);
  await page.fill("#prompt", text);
  await page.press("#prompt", "Enter");
}

async function ask(page, agent, text) {
  await say(page, agent, text);
  await page.locator("body[data-busy=true]").waitFor();
}

const SCENARIOS = {
  async chat(page) {
    await say(page, "echo", "Hello **there** & <b>you</b>");
    await page.locator(".run-end.finished").waitFor();
    assert.deepEqual(await page.locator(".bubble").allTextContents(), ["Hello **there** & <b>you</b>"]);
    assert.deepEqual(await answers(page), ["You said: Hello there & <b>you</b>"]);
    assert.equal(await page.locator(".message.assistant strong").textContent(), "there");
    await say(page, null, "And again");
    await page.getByText("You said: And again").waitFor();
    await idle(page);

    await page.locator(".run-end button").first().click();
    const rows = page.locator("#runs .run[open] .events .type");
    await rows.nth(4).waitFor();
    assert.deepEqual(await rows.allTextContents(), [
      "RUN_STARTED", "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END", "RUN_FINISHED",
    ]);
    await page.locator("#runs .events summary").last().click();
    assert.equal(JSON.parse(await page.locator("#runs .events pre").textContent()).type, "RUN_FINISHED");

    // Another browser knows nothing but the address; this one asks the server for the thread.
    await page.reload();
    await page.getByText("You said: And again").waitFor();
    assert.equal((await answers(page)).length, 2);
    return { thread: await thread(page), answers: await answers(page) };
  },

  async reload(page) {
    const cursors = [];
    page.on("request", (request) => {
      const after = new URL(request.url()).searchParams.get("after");
      if (after !== null) cursors.push(Number(after.split(":").at(-1)));
    });
    await ask(page, "echo", "tokens:200 delay_ms:20 size:24");
    await page.waitForFunction(() => document.querySelector(".message.assistant .text")?.textContent.length > 600);
    await page.reload();
    await page.waitForFunction(() => document.querySelector(".message.assistant .text")?.textContent.length > 1200);
    assert.equal(await page.evaluate(() => document.body.dataset.busy), "true", "the run went on without the page");
    await page.locator(".run-end.finished").waitFor();
    assert.equal(cursors.length, 1);
    assert.ok(cursors[0] > 1, `continued from ${cursors[0]}`);
    const [text] = await answers(page);
    assert.equal((await answers(page)).length, 1);
    return { thread: await thread(page), text };
  },

  // Two tabs of one thread: what either starts is seen in both, while it runs and afterwards.
  async tabs(page) {
    await say(page, "echo", "First");
    await page.getByText("You said: First").waitFor();
    await idle(page);
    const second = await page.context().newPage();
    second.setDefaultTimeout(30_000);
    await second.goto(page.url());
    await second.getByText("You said: First").waitFor();
    assert.equal(await second.evaluate(() => document.body.dataset.busy), "false");

    await ask(page, null, "tokens:100 delay_ms:20 size:24");
    await second.locator("body[data-busy=true]").waitFor();
    const length = (tab) => tab.locator(".message.assistant .text").last().textContent().then((text) => text.length);
    await second.waitForFunction(() => [...document.querySelectorAll(".message.assistant .text")].at(-1).textContent.length > 300);
    assert.ok((await length(second)) < 2400, "it is seen while it runs");
    assert.equal(await second.locator("#send").isVisible(), false);
    await second.reload();
    await second.locator("body[data-busy=true]").waitFor();
    await idle(page);
    await idle(second);
    assert.deepEqual(await answers(second), await answers(page));

    // The other way round, and stopped from the tab that did not start it.
    await second.fill("#prompt", "tokens:2000 delay_ms:20 size:8");
    await second.press("#prompt", "Enter");
    await page.locator("body[data-busy=true]").waitFor();
    await page.waitForFunction(() => document.querySelectorAll(".message.assistant .text").length === 3);
    await page.click("#stop");
    await second.locator("#notice", { hasText: "Stopped." }).waitFor();
    await page.locator("#notice", { hasText: "Stopped." }).waitFor();
    await idle(page);
    assert.deepEqual(await page.locator(".bubble").allTextContents(), await second.locator(".bubble").allTextContents());
    assert.deepEqual(await answers(page), await answers(second));
    const shown = await answers(page);
    await page.reload();
    await page.getByText("You said: First").waitFor();
    assert.deepEqual(await answers(page), shown);
    return { thread: await thread(page), answers: shown };
  },

  // A browser's own EventSource: it comes back by itself, and nothing is doubled.
  async source(page) {
    await say(page, "echo", "First");
    await page.getByText("You said: First").waitFor();
    await idle(page);
    const id = await thread(page);
    return page.evaluate(async (threadId) => {
      const api = await import("/static/chat/api.js");
      const types = [];
      let opened = 0;
      const source = new EventSource(`/agui/threads/events?threadId=${threadId}&until=idle`);
      source.onopen = () => (opened += 1);
      source.onmessage = ({ data }) => types.push(JSON.parse(data).type);
      const until = async (done) => {
        while (!done()) await new Promise((resolve) => setTimeout(resolve, 20));
      };
      await until(() => types.length === 4);
      const message = { id: crypto.randomUUID(), role: "user", content: "tokens:40 delay_ms:60 size:4" };
      const body = { threadId, runId: crypto.randomUUID(), protocolVersion: "1.1", messages: [message], tools: [], context: [] };
      await api.start("echo", body, new AbortController().signal);
      await until(() => types.filter((type) => type === "RUN_FINISHED").length === 2);
      await until(() => source.readyState === EventSource.CLOSED); // 204: nothing runs, nothing was missed
      return { thread: threadId, types, opened };
    }, id);
  },

  async plan(page) {
    await page.selectOption("#agent", "plan");
    await page.getByRole("button", { name: "A picnic by the lake" }).click();
    await page.locator("#steps .now").waitFor();
    await shoot(page, "plan-running");
    await page.getByText("All done").waitFor();
    await idle(page);
    assert.equal(await page.locator(".message.reasoning summary").textContent(), "Thoughts");
    assert.deepEqual(await page.locator(".card.tool .chip").allTextContents(), ["done", "done", "done"]);
    await page.locator(".card.tool summary").first().click();
    const shown = await page.locator(".card.tool pre").first().textContent();
    const state = await page.locator("#state .leaf").allTextContents();
    return { thread: await thread(page), arguments: JSON.parse(shown), state };
  },

  async refund(page) {
    await say(page, "refund", "My teapot arrived broken");
    const form = page.locator(".questions");
    await form.waitFor();
    assert.equal(await page.locator("#prompt").isDisabled(), true);
    await shoot(page, "refund");
    await page.reload();
    await form.waitFor();
    await page.getByLabel("Approve the refund").check();
    await page.getByLabel("Amount in €").fill("25");
    await page.getByLabel("Reason").selectOption({ label: "late" });
    await page.getByRole("button", { name: "Send answer" }).click();
    await page.getByText("Refunded 25 € (late).").waitFor();
    await idle(page);
    assert.equal(await form.count(), 0);
    assert.deepEqual(await answers(page), ["Let me look at that order.", "", "Refunded 25 € (late)."]);
    const approved = await thread(page);

    await page.click("#new");
    await say(page, "refund", "And the cup");
    await form.waitFor();
    await page.getByRole("button", { name: "Decline" }).click();
    await page.getByText("All right, nothing was refunded.").waitFor();
    await idle(page);
    return { thread: approved, declined: await thread(page) };
  },

  // A tool that waits for its approval: the page is reloaded before, and the button is clicked twice.
  async orders(page) {
    await page.selectOption("#agent", "orders");
    await page.getByRole("button", { name: "Blue teapot" }).click();
    const form = page.locator(".questions");
    await form.getByText("Order Blue teapot, 1 of it?").waitFor();
    await shoot(page, "orders");
    await page.reload();
    await form.getByText("Order Blue teapot, 1 of it?").waitFor();
    await page.getByLabel("approved").check();
    await page.getByRole("button", { name: "Send answer" }).dblclick();
    await page.getByText("Placed as order 1.").waitFor();
    await idle(page);
    assert.equal(await form.count(), 0);
    await shoot(page, "ordered");
    await page.reload();
    await page.getByText("Placed as order 1.").waitFor();

    await say(page, null, "Red kettle");
    await form.waitFor();
    await page.getByLabel("reason").fill("too red");
    await page.getByRole("button", { name: "Send answer" }).click();
    await page.getByText("Nothing was ordered. Not approved: too red").waitFor();
    await idle(page);
    return { thread: await thread(page) };
  },

  // An approval in two tabs: whoever answers, and from wherever, both see it asked, answered and gone on with.
  async approval(page) {
    const second = await page.context().newPage();
    second.setDefaultTimeout(30_000);
    const tabs = [page, second];
    const form = (tab) => tab.locator(".questions");
    const asked = async (text) => {
      await say(page, text === "My teapot" ? "refund" : null, text);
      await form(page).waitFor();
      if (second.url() === "about:blank") await second.goto(page.url());
      await form(second).waitFor();
    };
    const told = async (text) => {
      for (const tab of tabs) {
        await tab.getByText(text).last().waitFor();
        await idle(tab);
        assert.equal(await form(tab).count(), 0);
        assert.equal(await tab.locator("#prompt").isDisabled(), false);
      }
      assert.deepEqual(await answers(page), await answers(second));
    };
    const fill = async (tab, amount) => {
      await tab.getByLabel("Approve the refund").check();
      await tab.getByLabel("Amount in €").fill(amount);
    };
    const send = (tab) => tab.getByRole("button", { name: "Send answer" }).click();

    await asked("My teapot");
    await fill(page, "21");
    await send(page);
    await told("Refunded 21 € (damaged).");
    await asked("My cup");
    await fill(second, "22");
    await send(second);
    await told("Refunded 22 € (damaged).");

    // Neither page: the site answers, while one of them is being filled in.
    await asked("My plate");
    await second.getByLabel("Amount in €").fill("1");
    const answered = await page.evaluate(async (threadId) => {
      const headers = { "Content-Type": "application/json", "X-CSRFToken": document.body.dataset.csrf };
      const api = (path, options) => fetch(`/api/agui/${path}`, { headers, ...options }).then((response) => response.json());
      const { results } = await api(`interrupts?status=open&threadId=${threadId}`);
      const body = JSON.stringify({ payload: { approved: true, amount: 23, reason: "late" } });
      return { open: results.length, ...(await api(`interrupts/${results[0].id}/answer`, { method: "POST", body })) };
    }, await thread(page));
    assert.equal(answered.open, 1);
    assert.equal(answered.complete, true);
    await told("Refunded 23 € (late).");

    // Both at once: one of them is heard, and both go on.
    await asked("My bowl");
    await fill(page, "24");
    await fill(second, "24");
    const buttons = await Promise.all(tabs.map((tab) => tab.locator(".questions button.primary").elementHandle()));
    await Promise.all(buttons.map((button) => button.evaluate((node) => node.click())));
    await told("Refunded 24 € (damaged).");
    await page.reload();
    await page.getByText("Refunded 24 €").waitFor();
    assert.deepEqual(await answers(page), await answers(second));
    return { thread: await thread(page), answers: await answers(page) };
  },

  async stop(page) {
    await ask(page, "slow", "Go");
    await page.getByText("Line 2 of 60.").waitFor();
    await page.click("#stop");
    await page.locator("#notice", { hasText: "Stopped." }).waitFor();
    assert.equal(await page.locator("#send").isVisible(), true);
    const [text] = await answers(page);
    return { thread: await thread(page), text };
  },

  async failure(page) {
    await say(page, "script", '[{"type": "CUSTOM", "name": "a", "value": 1}, {"$raise": "ValueError: secret thing"}]');
    await page.locator("#notice.error").waitFor();
    const notice = await page.locator("#notice").textContent();
    assert.match(notice, /agent_exception/);
    assert.doesNotMatch(await page.content(), /ValueError: secret thing(?!&quot;|")/);
    await page.click("#new");
    await say(page, "script", "no script");
    await page.getByText("A script is a JSON list of events").waitFor();
    return { notice };
  },

  async threads(page) {
    await ask(page, "slow", "A long one");
    await page.getByText("Line 1 of 60.").waitFor();
    const first = await thread(page);
    await page.click("#new");
    assert.equal(await page.locator(".message").count(), 0);
    await say(page, "echo", "Meanwhile");
    await page.getByText("You said: Meanwhile").waitFor();
    await idle(page);
    await page.locator("#threads a", { hasText: "A long one" }).click();
    await page.getByText("Line 3 of 60.").waitFor();
    assert.equal(await thread(page), first);
    assert.equal(await page.locator(".bubble").textContent(), "A long one");
    await page.click("#stop");
    await page.locator("#notice", { hasText: "Stopped." }).waitFor();
    assert.equal(await page.locator("#threads li").count(), 2);
    const text = (await answers(page))[0];
    assert.equal(text.match(/Line 1 of 60/g).length, 1, "nothing is doubled");
    return { thread: first };
  },

  // The connection breaks after forty events of a real run.
  async reconnect(page) {
    return page.evaluate(async () => {
      const api = await import("/static/chat/api.js");
      const streams = await import("/static/chat/reading.js");
      const seen = [];
      let text = "";
      const types = new Set();
      async function* broken(frames) {
        for await (const frame of frames) {
          yield frame;
          if (frame.seq === 40) throw new TypeError("network error");
        }
      }
      const body = {
        threadId: crypto.randomUUID(), runId: crypto.randomUUID(), protocolVersion: "1.1", tools: [], context: [],
        messages: [{ id: crypto.randomUUID(), role: "user", content: "tokens:100 delay_ms:5 size:10" }],
      };
      await streams.read(streams.reading(), {
        open: async (signal) => {
          const { run, frames } = await api.start("echo", body, signal);
          return { run, frames: broken(frames) };
        },
        opened: () => {},
        take: (seq, event) => {
          seen.push(seq);
          types.add(event.type);
          text += event.delta ?? "";
        },
        ended: () => types.has("RUN_FINISHED"),
      });
      return { thread: body.threadId, seen, text };
    });
  },

  // Every kind of field, without a server's help.
  async forms(page) {
    return page.evaluate(async () => {
      const { field } = await import("/static/chat/form.js");
      const schema = {
        type: "object",
        required: ["name", "count", "size", "tags"],
        properties: {
          name: { type: "string", minLength: 2 },
          count: { type: "integer", minimum: 1 },
          price: { type: "number" },
          ready: { type: "boolean" },
          size: { enum: ["S", 2, null] },
          day: { type: ["string", "null"], format: "date" },
          address: { type: "object", required: ["city"], properties: { city: { type: "string" }, zip: { type: "string" } } },
          tags: { type: "array", items: { type: "string" } },
        },
      };
      const part = field(schema);
      document.body.append(part.element);
      const input = (name) => part.element.querySelector(`[name="${name}"]`);
      const empty = { ready: false, name: "" };
      const before = part.value();
      input("name").value = "Ada";
      input("count").value = "3";
      input("price").value = "1.5";
      input("ready").checked = true;
      input("size").value = "1";
      input("day").value = "2026-05-04";
      input("city").value = "Bath";
      input("tags").value = '["a", "b"]';
      const after = part.value();
      input("tags").value = "[oops";
      let problem = "";
      try {
        part.value();
      } catch (error) {
        problem = error.message;
      }
      const plain = field({ anyOf: [{ type: "string" }, { type: "integer" }] });
      plain.element.querySelector("textarea").value = "7";
      const kinds = [...part.element.querySelectorAll("input, select, textarea")].map((each) => each.type);
      return { empty, before, after, problem, raw: plain.value(), kinds };
    });
  },

  async looks(page) {
    await ask(page, "plan", "A picnic by the lake");
    await page.getByText("All done").waitFor();
    await idle(page);
    await page.locator(".card.tool summary").first().click();
    await shoot(page, "light");
    await page.click("#tab-runs");
    await page.locator("#runs .run summary").first().click();
    await page.locator("#runs .type", { hasText: "RUN_FINISHED" }).waitFor();
    await page.click("#theme");
    assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), "dark");
    await shoot(page, "dark-runs");
    await page.click("#new");
    await shoot(page, "dark-empty");
    await say(page, "refund", "My teapot arrived broken");
    await page.locator(".questions").waitFor();
    await page.click("#tab-state");
    await shoot(page, "dark-refund");

    await page.setViewportSize({ width: 390, height: 780 });
    await page.reload();
    await page.locator(".questions").waitFor();
    const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    assert.ok(wide <= 0, `${wide} pixels too wide`);
    await shoot(page, "narrow");
    await page.click("#toggle-nav");
    await page.locator("#threads a").first().waitFor();
    await page.waitForTimeout(300);
    await shoot(page, "narrow-threads");
    await page.mouse.click(380, 500);
    await page.click("#toggle-inspector");
    await page.locator("#tab-state").waitFor();
    await shoot(page, "narrow-inspector");
    return {};
  },
};

const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: FLAGS });
try {
  const context = await browser.newContext({ viewport: { width: 1360, height: 850 }, colorScheme: "light" });
  const page = await context.newPage();
  page.setDefaultTimeout(30_000);
  const problems = [];
  page.on("pageerror", (error) => problems.push(String(error)));
  page.on("console", (message) => message.type() === "error" && problems.push(message.text()));
  await page.goto(address);
  await page.locator("#agent option").first().waitFor({ state: "attached" });
  let result;
  try {
    result = await SCENARIOS[scenario](page);
  } catch (error) {
    await shoot(page, `failed-${scenario}`);
    throw new Error(`${error.stack}\npage said: ${problems.join("; ")}\n${await page.locator("main").innerText()}`);
  }
  assert.deepEqual(problems, []);
  process.stdout.write(`${JSON.stringify(result)}\n`);
} finally {
  await browser.close();
}
