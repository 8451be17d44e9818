// The package in a real Chromium, under a strict Content-Security-Policy.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { join } from "node:path";
import { after, before, test } from "node:test";

import { cases, evidence } from "./vectors.js";

const { chromium } = createRequire(join(process.env.WEB_TOOLS, "package.json"))("playwright-core");

const folder = new URL("..", import.meta.url);
const TYPES = { js: "text/javascript", html: "text/html; charset=utf-8", wasm: "application/wasm" };
const STRICT =
  "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; connect-src 'self'; img-src data:; base-uri 'none'; " +
  "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";
const WITHOUT_WASM = STRICT.replace("'wasm-unsafe-eval'", "");

let [server, browser, origin] = [];

/** The package's folder over HTTP; below `/strict` or `/without-wasm`, which names the policy. */
before(async () => {
  server = createServer(async (request, response) => {
    const [, policy, path] = /^\/(strict|without-wasm)\/([a-z./]+)$/.exec(request.url) ?? [];
    const body = path && !path.includes("..") && (await readFile(new URL(path, folder)).catch(() => null));
    response.statusCode = body ? 200 : 404;
    if (body) {
      response.setHeader("Content-Type", TYPES[path.split(".").at(-1)]);
      response.setHeader("Content-Security-Policy", policy === "strict" ? STRICT : WITHOUT_WASM);
    }
    response.end(body || "");
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  origin = `http://127.0.0.1:${server.address().port}`;
  browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", timeout: 60_000 });
});

after(async () => {
  await browser?.close();
  server?.close();
});

/** A page of the package, with what it asked for and what its policy refused. */
async function open(policy) {
  const page = await browser.newPage();
  const [asked, refused] = [[], []];
  page.on("request", (request) => asked.push(request.url()));
  page.on("console", (message) => message.type() === "error" && refused.push(message.text()));
  page.on("pageerror", (error) => refused.push(error.message));
  await page.goto(`${origin}/${policy}/examples/page.html`);
  return { page, asked, refused };
}

/** Judges files in the page: hex and options in, verdicts out. */
function judge(page, files) {
  return page.evaluate(async (files) => {
    const { load } = await import("../index.js");
    const verifier = await load();
    const bytes = (hex) => Uint8Array.from(hex.match(/../g) ?? [], (byte) => parseInt(byte, 16));
    const began = performance.now();
    const verdicts = files.map(({ file, newer, ...options }) => {
      const { valid, failed_step } = verifier.verify(bytes(file), { ...options, newer: newer && bytes(newer) });
      return [valid, failed_step];
    });
    return { verdicts, ms: performance.now() - began };
  }, files);
}

const hex = (bytes) => bytes && Buffer.from(bytes).toString("hex");
const inPage = ({ file, options }) => ({ ...options, file: hex(file), newer: hex(options.newer) });

test("Chromium judges every stored proof file as Node does", async () => {
  const { page, asked, refused } = await open("strict");
  const files = cases();
  const { verdicts, ms } = await judge(page, files.map(inPage));
  for (const [at, { name, valid, step }] of files.entries()) assert.deepEqual(verdicts[at], [valid, step], name);
  console.log(`${files.length} files in ${ms.toFixed(0)} ms`);
  assert.deepEqual(refused, []);
  assert.ok(asked.length >= 4 && asked.every((url) => url.startsWith(origin) || url === "data:,"), asked.join());
  await page.close();
});

test("Chromium judges every stored evidence file as Node does", async () => {
  const { page } = await open("strict");
  const files = evidence().map(({ file, options, ...rest }) => ({ ...rest, options, text: new TextDecoder().decode(file) }));
  const verdicts = await page.evaluate(async (files) => {
    const { load } = await import("../index.js");
    const verifier = await load();
    return files.map(({ text, options }) => verifier.evidence(new TextEncoder().encode(text), options));
  }, files);
  for (const [at, { name, valid, step, verdict }] of files.entries()) {
    if (valid) assert.deepEqual(verdicts[at], verdict, name);
    else assert.deepEqual([verdicts[at].valid, verdicts[at].failed_step], [false, step], name);
  }
  await page.close();
});

test("Chromium refuses every flipped bit of three files", async () => {
  const { page } = await open("strict");
  const valid = cases().filter((it) => it.valid && it.name.startsWith("proofs: ") && !it.options.newer);
  for (const { name, file, options } of valid.slice(0, 3)) {
    const accepted = await page.evaluate(
      async ({ file, keys }) => {
        const { load } = await import("../index.js");
        const verifier = await load();
        const bytes = Uint8Array.from(file.match(/../g), (byte) => parseInt(byte, 16));
        const accepted = [];
        for (let bit = 0; bit < bytes.length * 8; bit += 1) {
          bytes[bit >> 3] ^= 1 << (bit & 7);
          if (verifier.verify(bytes, { keys }).valid) accepted.push(bit);
          bytes[bit >> 3] ^= 1 << (bit & 7);
        }
        return verifier.verify(bytes, { keys }).valid ? accepted : ["the file itself is refused"];
      },
      { file: hex(file), keys: options.keys },
    );
    assert.deepEqual(accepted, [], name);
  }
  await page.close();
});

test("the example page shows verdicts, and refuses what does not hold", async () => {
  const { page, refused } = await open("strict");
  const check = async ({ file, options }, expected = "", key = options.keys) => {
    await page.fill("#key", key);
    await page.fill("#expected", expected);
    await page.setInputFiles("#file", {
      name: "a.proof",
      mimeType: "application/octet-stream",
      buffer: Buffer.from(file),
    });
    await page.click("button");
    await page.waitForFunction(() => document.getElementById("verdict").textContent !== "");
    const said = await page.textContent("#verdict");
    await page.evaluate(() => (document.getElementById("verdict").textContent = ""));
    return said;
  };
  const named = (name) => cases().find((it) => it.name === name);
  const tree = named("cases: a tree of two leaves");
  assert.match(await check(tree), /^Valid: membership at version 0\.1$/);
  assert.match(await page.textContent("#shown"), /"key": "k"/);
  assert.match(await check(tree, "l"), /^Does not hold, at step question: /);
  assert.equal(await page.textContent("#shown"), "");
  assert.match(await check(tree, "", "nonsense"), /^Not checked: a trusted key is not a public key/);
  assert.match(await check({ ...tree, file: tree.file.subarray(1) }), /^Does not hold, at step format: /);
  assert.deepEqual(refused, []);
  await page.close();
});

test("a policy that forbids WebAssembly is obeyed, so the strict one is in force", async () => {
  const { page } = await open("without-wasm");
  await assert.rejects(judge(page, []), /WebAssembly|Content Security Policy/);
  await page.close();
});
