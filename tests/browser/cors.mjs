// CopilotKit from another origin: node cors.mjs <site> <page of the same host> <page of another host> <token>
import { chromium } from "playwright-core";

const [, , site, sameHost, otherHost, token] = process.argv;
const FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"];
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: FLAGS });
try {
  const page = await (await browser.newContext()).newPage();
  const url = `${site}/copilotkit`;
  const talk = async (address, options) => {
    await page.goto(address);
    return page.evaluate((given) => {
      const csrf = /(?:^|; )csrftoken=([^;]+)/.exec(document.cookie)?.[1];
      return window.talk({ ...given, headers: given.headers ?? (csrf ? { "X-CSRFToken": csrf } : {}) });
    }, { url, ...options });
  };
  const headers = { Authorization: `Token ${token}` };
  const found = { token: await talk(sameHost, { headers }), "token, other host": await talk(otherHost, { headers }) };
  await page.goto(`${site}/copilotkit-demo/`); // logs in
  found.session = await talk(sameHost, { credentials: "include" });
  found["session, without credentials"] = await talk(sameHost, {});
  found["session, other host"] = await talk(otherHost, { credentials: "include" });
  process.stdout.write(JSON.stringify(found));
} finally {
  await browser.close();
}
