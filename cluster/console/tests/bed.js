// A real ledger, a real console before it, a real Chromium, and a server in between that can lie.
import { spawn } from "node:child_process";
import { cp, mkdtemp, readFile, rm } from "node:fs/promises";
import { createServer, request as ask } from "node:http";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";

export const from = createRequire(join(process.env.WEB_TOOLS, "package.json"));
const { chromium } = from("playwright-core");

export const root = new URL("../../..", import.meta.url).pathname;
export const bin = process.env.COPPICE_BIN ?? join(root, "target/debug/coppice");
export const LIMIT_MS = 30_000;

const ended = new Set();
let folder = null;
let browser = null;

/** A process that has said where it is ready. */
async function started(args) {
  const child = spawn(bin, args, { stdio: ["ignore", "pipe", "pipe"] });
  const stop = () =>
    new Promise((resolve) => {
      if (child.exitCode !== null || child.signalCode !== null) return resolve();
      child.once("exit", resolve);
      child.kill("SIGTERM");
      setTimeout(() => child.kill("SIGKILL"), 10_000).unref();
    });
  ended.add(stop);
  const lines = [];
  for (const input of [child.stdout, child.stderr]) createInterface({ input }).on("line", (line) => lines.push(line));
  /** What follows these words on a line of the output. */
  const after = async (words) => {
    for (let i = 0; i < 600 && child.exitCode === null; i += 1) {
      const line = lines.find((it) => it.startsWith(words));
      if (line) return line.slice(words.length).trim();
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
    throw new Error(`${args.join(" ")} did not start: ${lines.join("\n")}`);
  };
  return { ready: await after("ready "), after, stop };
}

/** A folder for all that a test makes. */
export async function work() {
  folder ??= await mkdtemp(join(tmpdir(), "coppice-console-"));
  return folder;
}

/** A small ledger in a folder of this name. */
export async function ledger(name, options = []) {
  const dir = join(await work(), name);
  const args = ["dev", "--replicas", "1", "--shards", "2", "--listen", "127.0.0.1:0", "--data-dir", dir, ...options];
  const { ready, after, stop } = await started(args);
  const key = (await readFile(join(dir, "ledger.vkey"), "utf8")).trim();
  /** Commits each line as one version. */
  const commit = async (...lines) => {
    for (const line of lines) {
      const response = await fetch(`${ready}/v1/batches`, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(line) });
      if (!response.ok) throw new Error(await response.text());
    }
  };
  return { endpoint: ready, dir, key, keyFile: join(dir, "ledger.vkey"), after, stop, commit };
}

/** A copy of a stopped ledger. */
export async function copied(dir, name) {
  const copy = join(await work(), name);
  await cp(dir, copy, { recursive: true });
  return copy;
}

/** A console before a ledger, with its address and secret. */
export async function console_(endpoint, options = []) {
  const { ready, stop } = await started(["console", "--endpoint", endpoint, ...options]);
  const [origin, secret] = ready.split("/#");
  return { origin, secret, stop, to: (route) => `${origin}/#${secret}/${route}` };
}

/**
 * A server before a console. `lie` gets the path and may return what to answer, or a function of
 * the true answer: `{ status, headers, body }`. `via` says which console is asked.
 */
export async function liar(via) {
  const state = { lie: () => null, via, asked: [] };
  const server = createServer((request, response) => {
    const target = state.via;
    const { host } = new URL(target.origin);
    state.asked.push(request.url);
    const headers = { ...request.headers, host };
    for (const name of ["origin", "referer", "sec-fetch-site"]) delete headers[name];
    if (headers["coppice-console"]) headers["coppice-console"] = target.secret;
    const passed = ask(target.origin + request.url, { method: request.method, headers }, async (answer) => {
      const parts = [];
      for await (const part of answer) parts.push(part);
      const real = { status: answer.statusCode, headers: answer.headers, body: Buffer.concat(parts) };
      const lie = await state.lie(request.url, request.headers.accept ?? "", real);
      const { status, headers: said, body } = { ...real, ...lie };
      response.writeHead(status, { ...said, "content-length": body.length });
      response.end(body);
    });
    passed.on("error", () => response.destroy());
    passed.end();
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  ended.add(() => new Promise((resolve) => (server.closeAllConnections(), server.close(resolve))));
  const origin = `http://127.0.0.1:${server.address().port}`;
  return Object.assign(state, { origin, secret: via.secret, to: (route) => `${origin}/#${via.secret}/${route}` });
}

/** A page, with what it asked for and what went wrong in it. */
export async function open(options = {}) {
  browser ??= await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", timeout: 60_000 });
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(LIMIT_MS);
  const [asked, wrong] = [[], []];
  page.on("request", (request) => asked.push(request.url()));
  page.on("pageerror", (error) => wrong.push(error.message));
  page.on("dialog", (dialog) => (wrong.push(`dialog: ${dialog.message()}`), dialog.dismiss()));
  page.on("popup", (popup) => wrong.push(`popup: ${popup.url()}`));
  await page.exposeFunction("told", (words) => wrong.push(words));
  await page.addInitScript(() => {
    addEventListener("securitypolicyviolation", (event) => window.told(`policy: ${event.violatedDirective} ${event.blockedURI}`));
  });
  return { page, asked, wrong, close: () => context.close() };
}

/** Goes to a route and waits until the page has its answers. */
export async function visit(page, address) {
  const isOpen = page.url().split("#")[0] === address.split("#")[0];
  if (isOpen) await page.evaluate((hash) => (location.hash = hash), `#${address.split("#")[1]}`);
  else await page.goto(address);
  await settled(page);
}

export async function settled(page) {
  await page.evaluate(() => new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve, 0))));
  await page.waitForFunction(() => document.querySelector("h1") && !document.querySelector(".loading"), null, { timeout: LIMIT_MS });
}

/** The words of all badges with the names of their facts, such as `Version: proven`. */
export const facts = (page) =>
  page.$$eval(".fact", (facts) => facts.map((fact) => `${fact.querySelector("dt").textContent}: ${fact.querySelector(".badge")?.textContent ?? ""}`));

export const badges = (page, is) => page.$$eval(`main .badge.${is}`, (found) => found.length);

/** Waits until something was noted, for instance by `open`. */
export async function noted(list, words) {
  for (let i = 0; i < 100 && !list.some((it) => it.includes(words)); i += 1) await new Promise((resolve) => setTimeout(resolve, 50));
  return list.some((it) => it.includes(words));
}

/** Ends all that was started. */
export async function end() {
  await browser?.close();
  browser = null;
  await Promise.all([...ended].map((stop) => stop()));
  ended.clear();
  if (folder) await rm(folder, { recursive: true, force: true });
  folder = null;
}
