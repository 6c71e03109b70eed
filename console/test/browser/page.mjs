// A page of the console in Chromium.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { chromium } from "playwright-core";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

export async function browser() {
  return chromium.launch({
    executablePath: process.env.CHROMIUM,
    args: ["--no-sandbox", "--disable-dev-shm-usage", "--force-color-profile=srgb"],
  });
}

/** Opens the console at a page such as `#/runs`. Errors of the page and violations of its policy are collected. */
export async function open(engine, url, hash = "", options = {}) {
  const context = await engine.newContext({ viewport: { width: 1440, height: 900 }, colorScheme: "light", ...options });
  const page = await context.newPage();
  const errors = [];
  page.on("pageerror", (error) => errors.push(String(error)));
  page.on("console", (message) => {
    // A refused or failed request is shown by the page, and logged by the browser.
    if (message.type() === "error" && !/Failed to load resource|net::ERR/.test(message.text()))
      errors.push(message.text());
  });
  await page.addInitScript(() => {
    window.violations = [];
    document.addEventListener("securitypolicyviolation", (event) => window.violations.push(event.blockedURI));
  });
  await page.goto(`${url}/console/${hash}`);
  await page.waitForSelector("h1");
  return {
    page,
    errors,
    close: () => context.close(),
    shot: (name) => page.screenshot({ path: new URL(`../../shots/${name}.png`, import.meta.url).pathname }),
    violations: () => page.evaluate(() => window.violations),
  };
}

/** What axe finds against WCAG 2.2 AA, as text. */
export async function axe(page) {
  await page.evaluate(AXE);
  return page.evaluate(async () => {
    const tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"];
    const found = await window.axe.run(document, { runOnly: { type: "tag", values: tags } });
    return found.violations.map(
      (one) =>
        `${one.id}: ${one.help}: ${one.nodes.map((node) => `${node.html.slice(0, 200)} ${node.failureSummary.slice(0, 300)}`).join(" | ")}`,
    );
  });
}
