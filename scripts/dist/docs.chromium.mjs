// docs.chromium.mjs SITE PICTURES: looks at the documentation's site in Chromium, in both schemes
// and on a narrow screen. Fails on errors, on requests to elsewhere, on pages wider than the
// screen, and if the search does not find a word.
import assert from "node:assert";
import { createReadStream, existsSync } from "node:fs";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { extname, join, normalize } from "node:path";

const require = createRequire(join(process.env.WEB_TOOLS, "node_modules", "here.js"));
const { chromium } = require("playwright-core");
const [site, pictures] = process.argv.slice(2);

const KINDS = { ".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".png": "image/png" };
const PAGES = ["index.html", "docs/guide.html", "docs/metrics.html", "docs/benchmarks.html", "docs/runbooks/index.html"];
const VIEWS = [
  ["light", 1280],
  ["dark", 1440],
  ["light", 390],
];

function serve(request, response) {
  const file = join(site, normalize(new URL(request.url, "http://site").pathname));
  if (!file.startsWith(site) || !existsSync(file)) return response.writeHead(404).end();
  response.writeHead(200, { "content-type": KINDS[extname(file)] ?? "text/plain" });
  createReadStream(file).pipe(response);
}

const server = createServer(serve).listen(0, "127.0.0.1");
await new Promise((listening) => server.on("listening", listening));
const origin = `http://127.0.0.1:${server.address().port}`;
const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox"] });
const faults = [];
for (const [colorScheme, width] of VIEWS) {
  const page = await (await browser.newContext({ colorScheme, viewport: { width, height: 900 } })).newPage();
  page.on("pageerror", (error) => faults.push(`${page.url()}: ${error.message}`));
  page.on("console", (message) => message.type() === "error" && faults.push(`${page.url()}: ${message.text()}`));
  page.on("request", (request) => request.url().startsWith(origin) || faults.push(`${page.url()} asks for ${request.url()}`));
  for (const path of PAGES) {
    await page.goto(`${origin}/${path}`);
    const wider = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
    if (wider > 0) faults.push(`${path} is ${wider} pixels wider than a screen of ${width}`);
    const background = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    const bright = Number(background.match(/\d+/)[0]) > 127;
    if (bright !== (colorScheme === "light")) faults.push(`${path} is ${background} in the scheme ${colorScheme}`);
    await page.screenshot({ path: join(pictures, `${colorScheme}-${width}-${path.replaceAll("/", "-")}.png`) });
  }
  await page.goto(`${origin}/search.html?q=rollback`);
  await page.waitForSelector("ul.search li a", { timeout: 20_000 });
  await page.getByText("search finished", { exact: false }).waitFor({ timeout: 20_000 });
  const found = await page.locator("ul.search li a").allInnerTexts();
  if (!found.some((title) => title.includes("Rollback"))) faults.push(`the search for rollback finds ${found.join(", ")}`);
}
await browser.close();
server.close();
assert.deepStrictEqual(faults, []);
