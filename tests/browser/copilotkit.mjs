// Drives the CopilotKit example as its visitor would: node copilotkit.mjs <scenario> <address> [folder for screenshots].
// Prints one JSON object for the Python side to compare with what is stored; fails on any console error.

import assert from "node:assert/strict";
import { join } from "node:path";
import { chromium } from "playwright-core";
import { FAULTS } from "./copilotkit_faults.mjs";
import {
  LONG, allowed, another, answers, at, broken, busy, idle, looks, noise, open, reload, said, say, shoot, thread, told, written,
} from "./copilotkit_page.mjs";

const FLAGS = [
  "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
  "--disable-background-networking", "--disable-component-update", "--disable-sync",
];
const [, , scenario, address] = process.argv;

const SCENARIOS = {
  // One page after the other; what each is for happens.
  async pages(page) {
    const threads = {};
    const visit = async (name, text, look) => {
      await open(page, name);
      await say(page, text);
      await look();
      await idle(page);
      threads[name] = await thread(page);
      await shoot(page, name);
    };

    await visit("chat", "the <b>sea</b>", async () => {
      await told(page, "There is no Node server behind this page.");
      assert.equal(await page.locator(`${at("copilot-assistant-message")} li`).count(), 3);
      assert.deepEqual(await said(page), ["the <b>sea</b>"]);
    });
    await visit("tools", "What is the weather in Lisbon and Oslo?", async () => {
      await told(page, "That is the weather in Lisbon and Oslo.");
      assert.match((await page.locator(at("weather-card")).allInnerTexts()).join("|"), /Lisbon\s+18 °C.*\|.*\s+Oslo\s+16 °C/s);
    });
    await visit("steps", "A picnic", async () => {
      await page.locator(at("step"), { hasText: "Now: " }).waitFor();
      await told(page, "All done: 7 hours in 3 tasks.");
      assert.equal(await page.locator(`${at("plan")} li.done`).count(), 3);
      assert.equal(await page.locator(at("progress")).getAttribute("value"), "100");
      assert.equal(await page.locator(at("call")).count(), 3);
    });
    await looks(page);
    await visit("cards", "A haiku", async () => {
      await told(page, "A frog, by Bashō.");
      assert.match(await page.locator(at("haiku")).innerText(), /A frog jumps into the pond/);
    });
    await reload(page); // the card is drawn again; its tool is not called again
    await told(page, "A frog, by Bashō.");
    assert.equal(await page.locator(at("haiku")).count(), 1);
    await visit("document", "The server that remembered", async () => {
      const article = page.locator(at("document"));
      await article.filter({ hasText: "Once upon" }).waitFor();
      const early = await article.innerText();
      await told(page, "The document is written.");
      assert.match(await article.innerText(), /all of it was there\.$/);
      assert.ok(early.length < (await article.innerText()).length, "it was seen while it was written");
    });
    await visit("thoughts", "How many seconds has a day?", async () => {
      await told(page, "A day has 86 400 seconds.");
      await page.getByText("Thought for", { exact: false }).waitFor();
    });
    await visit("subagents", "the tide", async () => {
      await told(page, "So there are two sources about the tide.");
      const texts = (await answers(page)).filter((text) => text && !text.includes("done"));
      assert.deepEqual(texts, [
        "Three sources agree about the tide.", "The second source is a copy of the first.", "So there are two sources about the tide.",
      ]);
      assert.equal(await page.locator(at("delegation")).filter({ hasText: "done" }).count(), 2);
    });

    // Edited by the person, then by the agent; both are there after a reload.
    await open(page, "recipe");
    await page.getByLabel("Servings").fill("5");
    await say(page, "Make it vegan");
    await told(page, "Vegan tomato soup for 5, with 3 ingredients.");
    await idle(page);
    const form = () => page.locator(`${at("recipe")} input`).evaluateAll((all) => all.map((input) => input.value));
    const recipe = ["Vegan tomato soup", "5", "4 tomatoes", "1 onion", "200 ml oat cream"];
    assert.deepEqual(await form(), recipe);
    await reload(page);
    await told(page, "Vegan tomato soup for 5");
    assert.deepEqual(await form(), recipe);
    threads.recipe = await thread(page);
    await shoot(page, "recipe");

    await open(page, "files");
    const buffer = Buffer.from(await noise(page), "base64");
    const chooser = page.waitForEvent("filechooser");
    await page.click(at("copilot-add-menu-button"));
    await page.getByRole("menuitem").first().click();
    await (await chooser).setFiles({ name: "noise.png", mimeType: "image/png", buffer });
    await page.locator(`${at("copilot-attachment-queue")} img`).waitFor();
    await say(page, "Look");
    await told(page, `noise.png (image): ${buffer.length} bytes.`);
    await idle(page);
    await reload(page);
    await told(page, "noise.png (image)");
    await page.waitForFunction((selector) => document.querySelector(selector)?.naturalWidth === 700, `${at("copilot-user-message")} img`);
    await say(page, "Thanks");
    await told(page, "Attach a file with the + button.");
    await idle(page);
    threads.files = await thread(page);
    await shoot(page, "files");
    return threads;
  },

  async reload(page) {
    await open(page, "threads");
    await say(page, "First");
    await told(page, "You said: First");
    await idle(page);
    await reload(page);
    await told(page, "You said: First");
    assert.deepEqual(await said(page), ["First"]);
    const first = await thread(page);

    await another(page);
    await say(page, "tokens:250 delay_ms:20 size:24");
    await written(page, 400);
    await reload(page);
    await written(page, 800);
    await busy(page); // it is still being written, here
    await idle(page);
    const [text] = await answers(page);
    assert.deepEqual(await said(page), ["tokens:250 delay_ms:20 size:24"]);
    assert.equal((await answers(page)).length, 1);
    return { first, second: await thread(page), text };
  },

  async stop(page) {
    await open(page, "threads");
    await say(page, LONG);
    await written(page, 200);
    await page.click(at("copilot-send-button"));
    await idle(page);
    const [text] = await answers(page);
    await reload(page);
    await written(page, 100);
    assert.deepEqual(await answers(page), [text]);

    // Stopped by a page that did not start it; and the conversation goes on.
    await idle(page);
    await say(page, LONG);
    await page.locator(at("copilot-assistant-message")).nth(1).waitFor();
    await reload(page);
    await busy(page);
    await page.locator(at("copilot-assistant-message")).nth(1).waitFor();
    await page.click(at("copilot-send-button"));
    await idle(page);
    await say(page, "Still there?");
    await told(page, "You said: Still there?");
    await idle(page);
    await reload(page);
    await told(page, "You said: Still there?");
    assert.deepEqual(await said(page), [LONG, LONG, "Still there?"]);
    assert.equal(await page.locator(".notice").count(), 0);
    return { thread: await thread(page), text };
  },

  // A tool of the page that waits for a person: before and after a reload.
  async choose(page) {
    const threads = [];
    for (const [again, name, answer] of [[false, "Friday 9:15", "Booked: Friday 9:15."], [true, "None of these", "No appointment was made."]]) {
      await open(page, "choose");
      if (again) await another(page);
      await say(page, "The roof");
      const button = page.locator(at("slots")).getByRole("button", { name });
      await button.waitFor();
      if (again) await reload(page);
      await button.click();
      await told(page, answer);
      await idle(page);
      await reload(page);
      await told(page, answer);
      assert.equal(await page.locator(at("slots")).count(), 1);
      assert.equal(await button.isDisabled(), true);
      threads.push(await thread(page));
    }
    await shoot(page, "choose");
    return { threads };
  },

  async approval(page) {
    const threads = [];
    const ask = async (text) => {
      await say(page, text);
      await page.locator(at("question")).waitFor();
      await idle(page);
    };
    const end = async (text) => {
      await told(page, text);
      await idle(page);
      assert.equal(await page.locator(at("question")).count(), 0);
      threads.push(await thread(page));
    };

    await open(page, "approval");
    await ask("My teapot");
    await page.getByLabel("Amount in €").fill("25");
    await shoot(page, "approval");
    await page.getByRole("button", { name: "Approve" }).click();
    await end("Refunded 25 €");
    await reload(page);
    await told(page, "Refunded 25 €");
    assert.equal(await page.locator(at("question")).count(), 0);

    await another(page);
    await ask("My cup");
    await page.locator(at("copilot-regenerate-button")).last().click(); // not while a question is open
    assert.equal((await answers(page)).filter(Boolean).length, 1);
    await reload(page);
    await page.locator(at("question")).waitFor();
    await page.getByRole("button", { name: "Approve" }).click();
    await end("Refunded 40 €");

    await another(page);
    await ask("My plate");
    await page.getByRole("button", { name: "Cancel" }).click();
    await end("All right, nothing was refunded.");

    // Typed over: the client keeps the message back until the question is answered, and sends it along.
    await ask("My bowl");
    await say(page, "Never mind");
    await page.locator(".notice", { hasText: "pending interrupt" }).waitFor();
    await page.getByRole("button", { name: "Refuse" }).click();
    await page.locator(at("copilot-assistant-message"), { hasText: "All right, nothing was refunded." }).nth(1).waitFor();
    await idle(page);
    return { threads };
  },

  async threads(page) {
    const rows = page.locator(`${at("thread-list")} li`);
    const titles = () => page.locator(`${at("thread-list")} .title`).allInnerTexts();
    const row = (name) => rows.filter({ hasText: name });
    const begin = async (text) => {
      await say(page, text);
      await told(page, `You said: ${text}`);
      await row(text).waitFor();
      await idle(page);
      return thread(page);
    };

    await open(page, "threads");
    await page.getByText("Loading…").waitFor({ state: "detached" });
    const before = await rows.count();
    const first = await begin("Apples and pears");
    await page.getByRole("button", { name: "New chat" }).click();
    await page.locator(at("copilot-assistant-message")).first().waitFor({ state: "detached" });
    const second = await begin("Bread and butter");
    assert.notEqual(first, second);
    assert.deepEqual((await titles()).slice(0, 2), ["Bread and butter", "Apples and pears"]);

    await row("Apples").locator(".title").click();
    await told(page, "You said: Apples and pears");
    assert.equal(await thread(page), first);
    assert.deepEqual(await said(page), ["Apples and pears"]);

    await row("Apples").getByLabel("Rename").click();
    const name = page.getByRole("textbox", { name: "Name" });
    await name.fill("Fruit");
    await name.press("Enter");
    await row("Fruit").waitFor();
    await shoot(page, "threads");
    await row("Bread").getByLabel("Archive").click();
    await row("Bread").waitFor({ state: "detached" });
    await reload(page);
    await row("Fruit").waitFor();
    assert.equal(await row("Bread").count(), 0);
    await page.getByLabel("Archived ones, too").check();
    await row("Bread").getByLabel("Restore").click();
    await row("Bread").getByLabel("Archive").waitFor();
    await row("Fruit").getByLabel("Delete").click();
    await row("Fruit").waitFor({ state: "detached" });
    await reload(page);
    await row("Bread").waitFor();
    assert.equal(await row("Fruit").count(), 0);
    assert.equal(await rows.count(), before + 1);
    return { deleted: first, kept: second };
  },

  // An HttpAgent with a connect of its own.
  async plain(page) {
    allowed.add(404); // a thread nobody has said anything in
    await open(page, "plain");
    await say(page, "First");
    await told(page, "You said: First");
    await idle(page);
    await say(page, LONG);
    await page.locator(at("copilot-assistant-message")).nth(1).waitFor();
    await reload(page);
    await busy(page);
    await page.locator(at("copilot-assistant-message")).nth(1).waitFor();
    await page.click(at("copilot-send-button"));
    await idle(page);
    const shown = await answers(page);
    await reload(page);
    await told(page, "You said: First");
    await idle(page);
    assert.deepEqual(await answers(page), shown);
    assert.deepEqual(await said(page), ["First", LONG]);
    await shoot(page, "plain");
    return { thread: await thread(page) };
  },

  ...FAULTS,
};

const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: FLAGS });
try {
  const context = await browser.newContext({ viewport: { width: 1300, height: 820 }, colorScheme: "light" });
  // AGUI_BUNDLE names a folder with the example as another version of CopilotKit has it.
  if (process.env.AGUI_BUNDLE) await context.route(/static\/copilotkit_demo\//, (route) => route.fulfill({
    path: join(process.env.AGUI_BUNDLE, new URL(route.request().url()).pathname.split("/copilotkit_demo/")[1]),
  }));
  const page = await context.newPage();
  page.setDefaultTimeout(30_000);
  const problems = [];
  const cut = (text) => broken.off && /network error|net::ERR_(INCOMPLETE_CHUNKED_ENCODING|CONNECTION_\w+)/.test(text);
  // Of a stream that breaks off, CopilotKit leaves a rejected promise behind as well.
  page.on("pageerror", (error) => cut(String(error)) || problems.push(String(error)));
  page.on("console", (message) => {
    // A page that turns to another thread drops what it was reading: its console calls that a failed fetch.
    if (message.type() !== "error" || message.text().includes("Failed to fetch")) return;
    if (cut(message.text())) return;
    const status = /responded with a status of (\d+)/.exec(message.text())?.[1];
    if (!allowed.has(Number(status))) problems.push(message.text());
  });
  let result;
  try {
    result = await SCENARIOS[scenario](page);
  } catch (error) {
    await shoot(page, `failed-${scenario}`);
    throw new Error(`${error.stack}\npage said: ${problems.join("; ")}\n${await page.locator("main").innerText().catch(() => "")}`);
  }
  assert.deepEqual(problems, []);
  process.stdout.write(`${JSON.stringify(result)}\n`);
} finally {
  await browser.close();
}
