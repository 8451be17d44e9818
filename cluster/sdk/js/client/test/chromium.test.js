// The client in a real Chromium, in a page of the API's origin.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { join } from "node:path";
import { after, test } from "node:test";

import { Batch, Client } from "../index.js";
import { PROOF, end, ledger, relay } from "./bed.js";

const { chromium } = createRequire(join(process.env.WEB_TOOLS, "package.json"))("playwright-core");
const TYPES = { js: "text/javascript", html: "text/html; charset=utf-8", wasm: "application/wasm" };
const PAGE = '<!doctype html><script type="importmap">{"imports":{"@coppice/verify":"/page/verify/index.js"}}</script>';
let browser = null;

after(async () => {
  await browser?.close();
  await end();
});

test("a page reads what is proven, refuses a lie, and writes nothing", { timeout: 120_000 }, async () => {
  const dev = await ledger("ledger");
  const writer = await Client.open(dev.endpoint, { trust: dev.vkey });
  await writer.commit(new Batch().put("a", "1").put("b", "2"));
  const via = await relay(dev);
  let lie = null;
  via.lie = async (method, path) => {
    const [, file] = /^\/page\/((?:client|verify)\/[a-z./]+)$/.exec(path) ?? [];
    if (path === "/page/") return { headers: { "content-type": TYPES.html }, body: Buffer.from(PAGE) };
    if (file && !file.includes("..")) {
      return { headers: { "content-type": TYPES[file.split(".").at(-1)] }, body: await readFile(new URL(`../../${file}`, import.meta.url)) };
    }
    return lie && path.startsWith("/v1/records") ? { body: lie } : null;
  };
  browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", timeout: 60_000 });
  const page = await browser.newPage();
  await page.goto(`${via.endpoint}/page/`);
  const read = () =>
    page.evaluate(async (trust) => {
      const { Client } = await import("/page/client/index.js");
      const ledger = await Client.open(location.origin, { trust });
      const said = async (call) => call().catch((error) => `${error.name} ${error.reason || error.step}`);
      const got = await said(async () => new TextDecoder().decode((await ledger.get("a")).value.value));
      const keys = await said(async () => (await ledger.range().next()).value.value.length);
      return [got, keys, await said(() => ledger.put("a", "3"))];
    }, dev.vkey);
  assert.deepEqual(await read(), ["1", 2, "Refused DENIED"]);
  lie = Buffer.from(await (await fetch(`${dev.endpoint}/v1/records/b`, { headers: PROOF })).arrayBuffer());
  assert.deepEqual((await read()).slice(0, 2), ["Untrusted question", "Untrusted "]);
});
