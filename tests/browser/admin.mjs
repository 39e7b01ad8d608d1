// Staff at work, story by story: node admin.mjs <address> <command that plants> [folder for screenshots].
// Whatever breaks the site's policy, logs an error or opens a dialog fails the story in which it happens.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { chromium } from "playwright-core";

const FLAGS = [
  "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
  "--disable-background-networking", "--disable-component-update", "--disable-sync",
];
const [, , address, plant, folder] = process.argv;
const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const RUNS = `${address}admin/agui_django/run/`;
const THREADS = `${address}admin/agui_django/thread/`;
const INBOX = `${address}admin/agui_django/interrupt/`;

const problems = [];
async function open(context) {
  await context.exposeFunction("aguiViolation", (text) => problems.push(`policy: ${text}`)).catch(() => {});
  await context.addInitScript(() => {
    document.addEventListener("securitypolicyviolation", (event) => {
      window.aguiViolation(`${location.href} ${event.violatedDirective} ${event.blockedURI} ${event.sample}`);
    });
  });
  const page = await context.newPage();
  page.setDefaultTimeout(45_000);
  page.on("pageerror", (error) => problems.push(String(error)));
  page.on("dialog", (dialog) => (problems.push(`dialog: ${dialog.message()}`), dialog.dismiss()));
  page.on("console", (message) => {
    // An address that answers "not found" or "no" is no error of the page.
    if (message.type() === "error" && !/status of 40[34]/.test(message.text())) problems.push(`${page.url()}: ${message.text()}`);
  });
  return page;
}
const shoot = async (page, name) => folder && page.screenshot({ path: `${folder}/${name}.png` });

async function tooWide(page) {
  const wide = await page.evaluate(() => {
    const within = [document.documentElement, ...document.querySelectorAll("#changelist, .results, #content")];
    return within.filter((each) => each.scrollWidth > each.clientWidth + 1).map((each) => `${each.id} ${each.className} ${each.scrollWidth} of ${each.clientWidth}`);
  });
  return wide.map((each) => `${page.url()} at ${page.viewportSize().width} scrolls sideways: ${each}`);
}

const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: FLAGS });
const user = await open(await browser.newContext({ viewport: { width: 1200, height: 800 } }));
const office = await browser.newContext({
  viewport: { width: 1280, height: 900 }, colorScheme: "light", timezoneId: "Asia/Tokyo", acceptDownloads: true,
});
const staff = await open(office);
const told = {};

async function ask(agent, words) {
  await user.goto(address);
  await user.locator(`#agent option[value=${agent}]`).waitFor({ state: "attached" });
  await user.click("#new");
  await user.selectOption("#agent", agent);
  await user.fill("#prompt", words);
  await user.press("#prompt", "Enter");
}

const stories = {
  async login() {
    await staff.goto(`${address}admin/`);
    await staff.fill("#id_username", "admin");
    await staff.fill("#id_password", "admin");
    await staff.press("#id_password", "Enter");
    await staff.locator("#user-tools").waitFor();
  },

  // The user asks for a refund and is asked back; staff find the run by what was said, and read it.
  async find() {
    for (const [agent, words] of [["haiku", "The sea in winter"], ["weather", "Weather in Bath?"]]) {
      await ask(agent, words);
      await user.locator("body[data-busy=false], body:not([data-busy])").waitFor();
    }
    await ask("refund", "My teapot arrived broken");
    await user.locator(".questions").waitFor();
    told.thread = await user.evaluate(() => location.hash.slice(1));
    await staff.goto(RUNS);
    await staff.locator(".agui-badge").waitFor();
    await shoot(staff, "runs");
    await staff.keyboard.press("/");
    await staff.keyboard.type("teapot");
    await staff.keyboard.press("Enter");
    await staff.getByText("Searched titles and messages").waitFor();
    await staff.locator("#result_list .agui-interrupted").first().click();
    await staff.locator(".agui-role-user", { hasText: "teapot" }).waitFor();
    await staff.locator("svg.agui-timeline rect").first().waitFor();
    await staff.locator(".agui-call summary", { hasText: "find_order" }).click();
    await staff.getByText("Blue teapot").first().waitFor();
    told.run = staff.url();
    await shoot(staff, "run");
  },

  // By keys from run to run within the filter; none of them acts while somebody types.
  async keys() {
    await staff.goto(`${RUNS}?status=finished`);
    const rows = await staff.locator("#result_list [data-agui-run]").evaluateAll((all) => all.slice(0, 2).map((each) => each.dataset.aguiRun));
    assert.equal(rows.length, 2);
    await staff.locator("#result_list th a").first().click();
    await staff.locator("#agui-run").waitFor();
    assert.ok(staff.url().includes(rows[0]));
    await staff.keyboard.press("j");
    await staff.waitForURL(`**/${rows[1]}/**`);
    await staff.locator("#agui-run a[rel=prev]").waitFor();
    await staff.keyboard.press("k");
    await staff.waitForURL(`**/${rows[0]}/**`);
    await staff.locator("#agui-run").waitFor();
    await staff.keyboard.press("?");
    await staff.locator("dialog#agui-keys[open]").waitFor();
    await staff.keyboard.press("Escape");
    await staff.locator(".agui-review summary").click();
    await staff.locator("#agui-note").fill("");
    await staff.locator("#agui-note").pressSequentially("just a jar? /");
    assert.equal(await staff.locator("#agui-note").inputValue(), "just a jar? /");
    assert.ok(staff.url().includes(rows[0]));
    assert.equal(await staff.locator("dialog[open]").count(), 0);
    await staff.locator(".agui-review").getByRole("button", { name: "Mark as reviewed" }).click();
    await staff.getByText("Reviewed by admin").waitFor();
    assert.ok(staff.url().includes("_changelist_filters"));
  },

  // One zone for all that is shown, the browser's too.
  async zone() {
    await staff.goto(RUNS);
    await staff.getByText("Times in UTC").waitFor();
    await staff.getByRole("button", { name: "browser" }).click();
    await staff.getByText("Times in Asia/Tokyo").waitFor();
    const [shown, utc] = await staff.locator("#result_list time").first().evaluate((each) => [each.textContent, each.title]);
    const hour = (text) => Number(/(\d\d):\d\d:\d\d/.exec(text)[1]);
    assert.equal((hour(utc) + 9) % 24, hour(shown), `${utc} is ${shown}`);
    await staff.getByRole("button", { name: "site" }).click();
    await staff.getByText("Times in UTC").waitFor();
  },

  // All that the filter chooses, as a file.
  async export() {
    await staff.goto(`${RUNS}?status=interrupted&window=all`);
    const count = await staff.locator(".agui-pages").textContent();
    await staff.getByRole("link", { name: "Export all that match" }).click();
    const said = await staff.getByText(/runs? (is|are) exported/).textContent();
    assert.equal(parseInt(said.trim()), parseInt(count.trim()));
    const [file] = await Promise.all([staff.waitForEvent("download"), staff.getByRole("button", { name: "NDJSON" }).click()]);
    const lines = readFileSync(await file.path(), "utf8").trim().split("\n").map((line) => JSON.parse(line));
    assert.equal(lines.length, parseInt(count.trim()));
    assert.deepEqual(new Set(lines.map((line) => line.status)), new Set(["interrupted"]));
  },

  // One answers in the inbox; the user's page goes on by itself.
  async answer() {
    await staff.goto(told.run);
    await staff.locator(".agui-badge").click();
    await staff.locator("#result_list a", { hasText: "Refund 40" }).waitFor();
    await shoot(staff, "inbox");
    await staff.locator("#result_list a", { hasText: "Refund 40" }).click();
    await staff.getByLabel("Yes").check();
    await staff.getByLabel("Amount in €").fill("12.5");
    await shoot(staff, "question");
    await accessible("question", [staff.url()]);
    await staff.getByLabel("Yes").check();
    await staff.getByLabel("Amount in €").fill("12.5");
    await staff.getByRole("button", { name: "Send the answer" }).click();
    await staff.getByText("The answer was taken").waitFor();
    await user.getByText("Refunded 12.5 € (damaged).").waitFor();
    assert.equal(await user.locator(".questions").count(), 0);
    // Asked for again: what was said before is a branch, shown on request and brought back.
    await staff.goto(THREADS);
    await staff.locator("#result_list th a", { hasText: "teapot" }).first().click();
    await staff.getByText("Refunded 12.5").first().waitFor();
    told.page = staff.url();
    await shoot(staff, "thread");
  },

  // A run is watched while it runs, and shown as it is stored when the user has stopped it.
  async live() {
    await ask("echo", "tokens:4000 delay_ms:60 size:12");
    // What is shown is stored: the list has the run.
    await user.waitForFunction(() => document.querySelector("#messages").textContent.length > 100);
    await staff.goto(`${RUNS}?status=running`);
    await staff.locator("#result_list .agui-running").first().click();
    await staff.waitForFunction(() => document.querySelector(".agui-live")?.textContent.length > 60);
    assert.equal(await staff.locator(".agui-live-state").textContent(), "live");
    await user.click("#stop");
    await staff.locator("h1 .agui-cancelled").waitFor();
    await staff.locator(".agui-role-assistant").waitFor();
    assert.equal(await staff.locator(".agui-live").count(), 0);
  },

  // The dashboard's panels load by themselves.
  async dashboard() {
    await staff.goto(`${address}admin/agui_django/`);
    await staff.waitForFunction(() => document.querySelectorAll("[aria-busy=true]").length === 0);
    assert.equal(await staff.locator("[role=alert]").count(), 0);
    await staff.locator("svg").first().waitFor();
    await shoot(staff, "dashboard");
  },

  // No serious finding, light and dark, wide and narrow; nothing scrolls sideways.
  async accessible() {
    const places = [RUNS, told.run, told.page, INBOX, `${INBOX}?state=answered`, `${address}admin/agui_django/`];
    await accessible("pages", places);
  },

  // On a telephone a row is a card.
  async cards() {
    await staff.setViewportSize({ width: 360, height: 780 });
    await staff.emulateMedia({ colorScheme: "dark" });
    await staff.goto(RUNS);
    await shoot(staff, "telephone");
    const places = await staff.locator("#result_list tbody tr").first().evaluate((row) => {
      const head = getComputedStyle(row.closest("table").tHead).display;
      return { row: getComputedStyle(row).display, head, width: row.getBoundingClientRect().width };
    });
    assert.equal(places.row, "block");
    assert.equal(places.head, "none");
    assert.ok(places.width <= 360);
    await staff.setViewportSize({ width: 1280, height: 900 });
    await staff.emulateMedia({ colorScheme: "light" });
  },

  // Whatever somebody wrote: nothing of it acts, and the policy has nothing to block.
  async hostile() {
    const [program, ...rest] = JSON.parse(plant);
    const printed = execFileSync(program, rest, { cwd: "../..", encoding: "utf8" });
    for (const path of JSON.parse(printed.trim().split("\n").at(-1))) {
      await staff.goto(new URL(path, address).href);
      if (await staff.locator(".agui-rows").count()) told.question = path;
      await staff.evaluate(() => document.querySelectorAll("details").forEach((each) => (each.open = true)));
      assert.equal(await staff.locator("a[href^='javascript:'], a[href^='data:'], [onerror], [onload], [onclick]").count(), 0, path);
    }
    // A list grows without a request.
    await staff.goto(new URL(told.question, address).href);
    const rows = staff.locator(".agui-rows input");
    assert.equal(await rows.count(), 1);
    await staff.getByRole("button", { name: "Add a row" }).click();
    assert.deepEqual(await rows.evaluateAll((all) => all.map((each) => [each.value, each.getAttribute("aria-label")])), [["<b>", null], ["", "tags 2"]]);
    await user.goto(`${address}api/agui/docs`);
    await user.getByRole("heading", { name: "REST API" }).or(user.locator("h1")).first().waitFor();
  },
};

async function accessible(name, places) {
  const found = [];
  for (const place of places) {
    for (const width of [1280, 360]) {
      await staff.setViewportSize({ width, height: 900 });
      await staff.goto(place);
      await staff.waitForFunction(() => document.querySelectorAll("[aria-busy=true]").length === 0);
      found.push(...(await tooWide(staff)));
      await staff.evaluate(AXE);
      for (const colorScheme of ["light", "dark"]) {
        await staff.emulateMedia({ colorScheme });
        // A link's colour takes its time to change.
        await staff.evaluate(() => document.getAnimations().forEach((each) => each.finish()));
        const { violations } = await staff.evaluate((rest) => window.axe.run({ exclude: rest }, { resultTypes: ["violations"] }), STOCK);
        for (const each of violations.filter(({ impact }) => ["serious", "critical"].includes(impact))) {
          found.push(`${place} ${width} ${colorScheme} ${each.id}: ${each.nodes.slice(0, 3).map((node) => `${node.target} ${node.any[0]?.message ?? ""}`).join(" | ")}`);
        }
      }
    }
  }
  await staff.setViewportSize({ width: 1280, height: 900 });
  await staff.emulateMedia({ colorScheme: "light" });
  assert.deepEqual(found, [], name);
}
// The admin's own parts, which are not ours.
const STOCK = (process.env.AGUI_AXE_ALL ? [] : ["#header", ".breadcrumbs", "#nav-sidebar"]).map((each) => [each]);

try {
  for (const [name, story] of Object.entries(stories)) {
    let said = "";
    const began = Date.now();
    try {
      await story();
    } catch (error) {
      said = error.stack;
    }
    const result = [said, ...problems.splice(0)].filter(Boolean).join("\n");
    process.stdout.write(`${JSON.stringify({ name, result, took: Date.now() - began, thread: told.thread })}\n`);
  }
} finally {
  await browser.close();
}
