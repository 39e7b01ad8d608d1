// What a visitor of the CopilotKit example does and sees; shared by the scenarios of copilotkit.mjs.

import assert from "node:assert/strict";

const [, , , address, folder] = process.argv;
// What the browser's console may tell: the refusals that a scenario provokes, and that a stream broke off.
export const allowed = new Set();
export const broken = { off: false };

export const LONG = "tokens:2000 delay_ms:20 size:8";

export const at = (name) => `[data-testid=${name}]`;
export const CHAT = at("copilot-chat");
export const thread = (page) => page.evaluate(() => location.hash.split("/")[1]);
export const shoot = (page, name) => folder && page.screenshot({ path: `${folder}/copilotkit-${name}.png` });
export const said = (page) => page.locator(at("copilot-user-message")).allInnerTexts();
export const told = (page, text) => page.locator(at("copilot-assistant-message"), { hasText: text }).first().waitFor();
export const answers = (page) => page.locator(at("copilot-assistant-message")).allInnerTexts().then((all) => all.map((text) => text.trim()));
export const idle = (page) => page.locator(`${CHAT}[data-copilot-running=false]`).waitFor();
export const busy = (page) => page.locator(`${CHAT}[data-copilot-running=true]`).waitFor();
export const written = (page, length) => page.waitForFunction(
  ([selector, least]) => (document.querySelector(selector)?.textContent.length ?? 0) > least, [at("copilot-assistant-message"), length],
);

export async function open(page, name, id = "") {
  await page.goto(`${address}#${name}${id && "/"}${id}`);
  await page.locator(at("copilot-chat-textarea")).waitFor();
  await idle(page);
}

export async function say(page, text) {
  await page.fill(at("copilot-chat-textarea"), text);
  await page.press(at("copilot-chat-textarea"), "Enter");
}

export async function another(page) {
  const before = await thread(page);
  await page.click(at("new-thread"));
  await page.waitForFunction((id) => location.hash.split("/")[1] !== id, before);
  await idle(page);
}

export async function reload(page) {
  broken.off = true;
  await page.reload();
  broken.off = false;
  await page.locator(at("copilot-chat-textarea")).waitFor();
}

// In both colours text can be read; and nothing is wider than a phone.
export async function looks(page) {
  for (const name of ["Dark", "Light"]) {
    await page.getByRole("button", { name, exact: true }).click();
    const [background, text] = await page.evaluate((selector) => [
      getComputedStyle(document.body).backgroundColor, getComputedStyle(document.querySelector(selector)).color,
    ], `${at("copilot-assistant-message")} p`);
    const light = (colour) => (colour.startsWith("oklch") ? Number(/[\d.]+/.exec(colour)[0]) > 0.5 : Number(/\d+/.exec(colour)[0]) > 127);
    assert.notEqual(light(background), light(text), `${text} on ${background}`);
    await shoot(page, `looks-${name}`);
  }
  const wide = page.viewportSize();
  await page.setViewportSize({ width: 390, height: 780 });
  await shoot(page, "looks-narrow");
  const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  assert.ok(over <= 0, `${over} pixels too wide`);
  await page.setViewportSize(wide);
}

// A picture too large to stay inside of its message.
export const noise = (page) => page.evaluate(() => {
  const canvas = Object.assign(document.createElement("canvas"), { width: 700, height: 700 });
  const context = canvas.getContext("2d");
  const pixels = context.createImageData(700, 700);
  pixels.data.forEach((_, index) => (pixels.data[index] = index % 4 === 3 ? 255 : Math.random() * 256));
  context.putImageData(pixels, 0, 0);
  return canvas.toDataURL("image/png").split(",")[1];
});
