// Staff at work, and the user whose conversation it is: node admin.mjs <address> [folder for screenshots].
// The admin's pages get a strict policy: what it blocks is a console error, and fails the story.

import assert from "node:assert/strict";
import { chromium } from "playwright-core";

const FLAGS = [
  "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
  "--disable-background-networking", "--disable-component-update", "--disable-sync",
];
const [, , address, folder] = process.argv;
const POLICY = "default-src 'self'; img-src 'self' data:";
const HOSTILE = "teapot <script>window.hacked = 1</script> <img src=x onerror='window.hacked = 1'> [x](javascript:alert(1))";

const problems = [];
async function open(context) {
  const page = await context.newPage();
  page.setDefaultTimeout(45_000);
  page.on("pageerror", (error) => problems.push(String(error)));
  page.on("console", (message) => message.type() === "error" && problems.push(`${page.url()}: ${message.text()}`));
  return page;
}
const shoot = async (page, name) => folder && page.screenshot({ path: `${folder}/${name}.png`, fullPage: true });
const fits = async (page) => assert.ok((await page.evaluate(() => document.documentElement.scrollWidth - innerWidth)) <= 0, page.url());

const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: FLAGS });
try {
  // The user asks for a refund, and is asked back.
  const user = await open(await browser.newContext({ viewport: { width: 1200, height: 800 } }));
  await user.goto(address);
  await user.locator("#agent option").first().waitFor({ state: "attached" });
  await user.selectOption("#agent", "refund");
  await user.fill("#prompt", HOSTILE);
  await user.press("#prompt", "Enter");
  await user.locator(".questions").waitFor();

  // Staff find the run by what was said, and read it.
  const office = await browser.newContext({ viewport: { width: 1280, height: 900 }, colorScheme: "light" });
  const staff = await open(office);
  await staff.route("**/admin/**", async (route) => {
    if (route.request().resourceType() !== "document") return route.continue();
    const response = await route.fetch({ maxRedirects: 0 });
    await route.fulfill({ response, headers: { ...response.headers(), "content-security-policy": POLICY } });
  });
  await staff.goto(`${address}admin/`);
  await staff.fill("#id_username", "admin");
  await staff.fill("#id_password", "admin");
  await staff.press("#id_password", "Enter");
  await staff.locator("#user-tools").waitFor();
  await staff.goto(`${address}admin/agui_django/run/`);
  await staff.keyboard.press("/");
  await staff.keyboard.type("teapot");
  await staff.keyboard.press("Enter");
  await staff.getByText("Searched titles and messages").waitFor();
  await shoot(staff, "runs");
  await staff.locator("#result_list .agui-interrupted").first().click();
  await staff.locator(".agui-role-user", { hasText: "teapot" }).waitFor();
  await staff.locator("svg.agui-timeline rect").first().waitFor();
  await staff.locator(".agui-call summary", { hasText: "find_order" }).click();
  await staff.getByText("Blue teapot").first().waitFor();
  assert.equal(await staff.evaluate(() => window.hacked), undefined);
  await shoot(staff, "run");

  // One answers in the inbox; the user's page goes on by itself.
  await staff.goto(`${address}admin/agui_django/interrupt/`);
  await shoot(staff, "inbox");
  await staff.locator("#result_list a", { hasText: "Refund 40" }).click();
  await staff.getByLabel("Yes").check();
  await staff.getByLabel("Amount in €").fill("12.5");
  await shoot(staff, "question");
  await staff.getByRole("button", { name: "Send the answer" }).click();
  await staff.getByText("The answer was taken").waitFor();
  await user.getByText("Refunded 12.5 € (damaged).").waitFor();
  assert.equal(await user.locator(".questions").count(), 0);

  // A run is watched while it runs, and shown as it is stored when it has ended.
  const thread = await user.evaluate(() => location.hash.slice(1));
  await user.click("#new");
  await user.selectOption("#agent", "echo");
  await user.fill("#prompt", "tokens:120 delay_ms:60 size:12");
  await user.press("#prompt", "Enter");
  await user.locator("body[data-busy=true]").waitFor();
  await staff.goto(`${address}admin/agui_django/run/?status=running`);
  await staff.locator("#result_list .agui-running").first().click();
  await staff.waitForFunction(() => document.querySelector(".agui-live")?.textContent.length > 60);
  assert.equal(await staff.locator(".agui-live-state").textContent(), "live");
  await shoot(staff, "live");
  await staff.locator("h1 .agui-finished").waitFor();
  await staff.locator(".agui-role-assistant").waitFor();
  assert.equal(await staff.locator(".agui-live").count(), 0);

  // The thread, with its state; dark, and on a telephone.
  await staff.goto(`${address}admin/agui_django/thread/`);
  await shoot(staff, "threads");
  await staff.locator("#result_list th a", { hasText: "teapot" }).click();
  await staff.getByText("Refunded 12.5").first().waitFor();
  await shoot(staff, "thread");
  const places = [staff.url(), `${address}admin/agui_django/run/`, `${address}admin/agui_django/interrupt/?state=answered`];
  await staff.emulateMedia({ colorScheme: "dark" });
  await staff.setViewportSize({ width: 360, height: 780 });
  for (const [number, place] of places.entries()) {
    await staff.goto(place);
    await shoot(staff, `narrow-${number}`);
    await fits(staff);
  }
  assert.deepEqual(problems, []);
  process.stdout.write(`${JSON.stringify({ thread })}\n`);
} catch (error) {
  throw new Error(`${error.stack}\npages said: ${problems.join("; ")}`);
} finally {
  await browser.close();
}
