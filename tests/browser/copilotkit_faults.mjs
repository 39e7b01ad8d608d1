// Scenarios of what goes wrong, and of what must not: broken servers and agents, crowds, strangers, too much.

import assert from "node:assert/strict";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import {
  LONG, allowed, another, answers, at, broken, busy, idle, open, reload, said, say, shoot, thread, told, written,
} from "./copilotkit_page.mjs";

const [, , , address] = process.argv;
const notice = (page) => page.locator("main > .notice");

// The test kills the server when it is told so, and writes a line when another one is there.
async function anotherServer() {
  const lines = createInterface({ input: process.stdin });
  process.stdout.write("kill\n");
  await new Promise((resolve) => lines.once("line", resolve));
  lines.close();
}

async function attach(page, file) {
  const chooser = page.waitForEvent("filechooser");
  await page.click(at("copilot-add-menu-button"));
  await page.getByRole("menuitem").first().click();
  await (await chooser).setFiles(file);
}

export const FAULTS = {
  // The server is killed while it writes: what was shown stays, the error is told, and the conversation goes on.
  async killed(page) {
    await open(page, "threads");
    await say(page, "First");
    await told(page, "You said: First");
    await idle(page);
    await say(page, LONG);
    const last = page.locator(at("copilot-assistant-message")).nth(1);
    await page.waitForFunction((selector) => document.querySelectorAll(selector)[1]?.textContent.length > 400, at("copilot-assistant-message"));
    broken.off = true;
    await anotherServer();
    await idle(page);
    await notice(page).waitFor();
    assert.match(await notice(page).innerText(), /^The connection to the server is lost/);
    const text = (await last.innerText()).trim();
    await shoot(page, "killed");

    for (let again = 0; again < 2; again += 1) {
      await reload(page);
      await last.waitFor();
      await idle(page);
      assert.ok((await answers(page))[1].startsWith(text), "what was shown is there");
      assert.deepEqual(await said(page), ["First", LONG]);
    }
    assert.equal(await notice(page).count(), 0); // told once, not by each reload
    await say(page, "And now?");
    await told(page, "You said: And now?");
    await idle(page);
    await reload(page);
    await told(page, "You said: And now?");
    assert.equal(await notice(page).count(), 0);
    return { thread: await thread(page), text };
  },

  // The agent breaks: one notice, what it had said stays, and no reload tells it again.
  async fails(page) {
    await open(page, "failure");
    await say(page, "Try it");
    await notice(page).waitFor();
    assert.match(await notice(page).innerText(), /^The line is broken\./);
    await idle(page);
    assert.equal(await notice(page).count(), 1);
    const shown = await answers(page);
    assert.match(shown[0], /^So far, so good/);
    await shoot(page, "failure");
    await reload(page);
    await told(page, "So far, so good");
    await idle(page);
    assert.deepEqual(await answers(page), shown);
    assert.equal(await notice(page).count(), 0);
    await say(page, "Try it again");
    await told(page, "This time the line held.");
    await idle(page);
    assert.equal(await notice(page).count(), 0);
    return { thread: await thread(page) };
  },

  // Another answer to the same question: the older one is gone from the page, also after a reload.
  async regenerate(page) {
    await open(page, "threads");
    for (const text of ["First", "Second"]) {
      await say(page, text);
      await told(page, `You said: ${text}`);
      await idle(page);
    }
    const ids = () => page.locator(at("copilot-assistant-message")).evaluateAll((all) => all.map((each) => each.dataset.messageId));
    const before = await ids();
    const again = page.locator(at("copilot-regenerate-button"));
    await again.nth(1).click();
    await page.waitForFunction(([selector, id]) => {
      const all = document.querySelectorAll(selector);
      return all.length === 2 && all[1].dataset.messageId !== id && all[1].textContent.includes("You said: Second");
    }, [at("copilot-assistant-message"), before[1]]);
    await idle(page);
    const after = await ids();
    assert.equal(after[0], before[0]);
    await reload(page);
    await told(page, "You said: Second");
    await idle(page);
    assert.deepEqual(await ids(), after);
    assert.deepEqual(await said(page), ["First", "Second"]);

    // From the first question on: what came behind it goes, too.
    await again.first().click();
    await page.waitForFunction(([selector, id]) => {
      const all = document.querySelectorAll(selector);
      return all.length === 1 && all[0].dataset.messageId !== id && all[0].textContent.includes("You said: First");
    }, [at("copilot-assistant-message"), before[0]]);
    await idle(page);
    await reload(page);
    await told(page, "You said: First");
    await idle(page);
    assert.deepEqual(await said(page), ["First"]);
    assert.equal(await notice(page).count(), 0);
    return { thread: await thread(page) };
  },

  // A page of CopilotKit 1.68, which puts every call into an envelope: text, a reload in the middle, tools, a question.
  async single(page) {
    const calls = new Set();
    page.on("request", (request) => {
      const { pathname } = new URL(request.url());
      if (pathname.startsWith("/copilotkit") && !pathname.startsWith("/copilotkit-demo")) {
        calls.add(`${request.method()} ${pathname} ${request.postDataJSON()?.method ?? ""}`.trim());
      }
    });
    const threads = {};
    const visit = async (name, text) => {
      await open(page, name);
      await say(page, text);
      threads[name] = await thread(page);
    };

    await visit("threads", "tokens:150 delay_ms:20 size:24");
    await written(page, 400);
    await reload(page);
    await written(page, 800);
    await busy(page);
    await idle(page);
    const [text] = await answers(page);

    await visit("cards", "A haiku");
    await told(page, "A frog, by Bashō.");
    assert.equal(await page.locator(at("haiku")).count(), 1);
    await idle(page);
    await visit("choose", "The roof");
    await page.locator(at("slots")).getByRole("button", { name: "Friday 9:15" }).click();
    await told(page, "Booked: Friday 9:15.");
    await idle(page);

    await visit("approval", "My teapot");
    await page.locator(at("question")).waitFor();
    await idle(page);
    await reload(page);
    await page.getByRole("button", { name: "Approve" }).click();
    await told(page, "Refunded 40 €");
    await idle(page);
    return { threads, text, calls: [...calls].sort() };
  },

  // As large as CopilotKit lets files be, and one byte more.
  async large(page) {
    const size = 20 * 1024 * 1024;
    const folder = mkdtempSync(join(tmpdir(), "agui-large-"));
    const file = (name, length) => (writeFileSync(join(folder, name), Buffer.alloc(length, "x")), join(folder, name));
    await open(page, "files");
    await attach(page, file("too-large.pdf", size + 1));
    await notice(page).filter({ hasText: "exceeds the maximum size" }).getByRole("button", { name: "Close" }).click();
    await attach(page, file("large.pdf", size));
    await page.locator(at("copilot-attachment-queue"), { hasText: "large.pdf" }).waitFor();
    await say(page, "Keep this");
    await told(page, `large.pdf (document): ${size} bytes.`);
    rmSync(folder, { recursive: true });
    await idle(page);
    await say(page, "Thanks"); // the file goes along once more
    await told(page, "Attach a file with the + button.");
    await idle(page);
    await reload(page);
    await told(page, "large.pdf (document)");
    await say(page, "Still there?");
    await page.locator(at("copilot-assistant-message")).nth(2).waitFor();
    await idle(page);
    assert.equal(await notice(page).count(), 0);
    return { thread: await thread(page) };
  },

  // Somebody else, with the address of a conversation that is not theirs.
  async strangers(page) {
    await open(page, "threads");
    await say(page, "A secret");
    await told(page, "You said: A secret");
    await idle(page);
    const id = await thread(page);

    const other = await (await page.context().browser().newContext()).newPage();
    other.setDefaultTimeout(30_000);
    await other.goto(new URL("/admin/login/?next=/copilotkit-demo/", address).href);
    await other.fill("#id_username", "admin");
    await other.fill("#id_password", "admin");
    await other.press("#id_password", "Enter");
    await other.locator(at("copilot-chat-textarea")).waitFor();
    await open(other, "threads", id);
    await other.getByText("Loading…").waitFor({ state: "detached" });
    assert.equal(await other.locator(`${at("thread-list")} li`).count(), 0);
    await say(other, "Whose is this?");
    await told(other, "You said: Whose is this?");
    await idle(other);
    assert.deepEqual(await answers(other), ["You said: Whose is this?"]);
    assert.doesNotMatch(await other.content(), /A secret/);

    await reload(page);
    await told(page, "You said: A secret");
    assert.deepEqual(await said(page), ["A secret"]);
    assert.doesNotMatch(await page.content(), /Whose is this/);
    return { thread: id };
  },

  // A second tab asks while the first one's answer is being written.
  async busy(page) {
    allowed.add(409);
    await open(page, "threads");
    await say(page, "First");
    await told(page, "You said: First");
    await idle(page);
    const second = await page.context().newPage();
    second.setDefaultTimeout(30_000);
    await open(second, "threads", await thread(page));
    await told(second, "You said: First");
    await idle(second);

    await say(page, LONG);
    await page.locator(at("copilot-assistant-message")).nth(1).waitFor();
    await say(second, "And me?");
    const notice = second.locator(".notice");
    await notice.waitFor();
    assert.match(await notice.innerText(), /^This conversation is busy/);
    await idle(second);
    assert.equal(await notice.count(), 1);
    await shoot(second, "busy");
    await page.click(at("copilot-send-button"));
    await idle(page);
    await reload(second);
    await told(second, "You said: First");
    await idle(second);
    assert.deepEqual(await said(second), ["First", LONG]);
    assert.equal(await notice.count(), 0);
    return { thread: await thread(page) };
  },
};
