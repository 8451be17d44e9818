// The page of the root log, which a coordinator shows to strangers.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { after, before, test } from "node:test";

import { badges, end, from, ledger, liar, open, root, settled, visit } from "./bed.js";

let [book, server] = [];

before(async () => {
  book = await ledger("public", ["--http-listen", "127.0.0.1:0"]);
  // More entries than a tile has.
  await book.commit(...Array.from({ length: 270 }, (_, i) => ({ put: [["counter", String(i)]] })));
  const origin = (await book.after("root log ")).replace(/\/$/, "");
  server = await liar({ origin, secret: "" });
});

after(end);

const give = async (page, key) => {
  await page.fill("input[name=key]", key);
  await page.click("main button.main");
  await page.waitForSelector("main .badge");
  await settled(page);
};

test("strangers see the root log, proven under a key that they bring", async () => {
  const { page, asked, wrong, close } = await open();
  await page.goto(`${server.origin}/`);
  await settled(page);
  assert.equal(await badges(page, "proven"), 0, "nobody gave a key");
  assert.equal((await page.$$("tbody tr")).length, 15, "the entries above the first tile");
  await give(page, book.key);
  assert.equal(await badges(page, "proven"), 15 + 4);
  await page.click("text=Older");
  await settled(page);
  assert.equal(await badges(page, "proven"), 256 + 3);
  assert.match(await page.textContent("tbody"), /the ledger was founded/);
  await visit(page, `${server.origin}/#/record?key=counter`);
  assert.ok(!/counter|Record/.test(await page.textContent("h1")), "records are not public");
  await visit(page, `${server.origin}/#/about`);
  assert.match(await page.textContent("main"), /could show anything/);
  assert.deepEqual(wrong, []);
  assert.deepEqual(asked.filter((url) => !url.startsWith(`${server.origin}/`) && url !== "data:,"), []);
  await close();
});

test("an entry, a hash or a checkpoint that was changed is broken", async () => {
  const flip = (real) => {
    const body = Buffer.from(real.body);
    body[body.length >> 1] ^= 1;
    return { body };
  };
  const lies = [
    (url, accept, real) => (url.startsWith("/tile/entries/") ? flip(real) : null),
    (url, accept, real) => (url.startsWith("/tile/0/") || url.startsWith("/tile/1/") ? flip(real) : null),
    (url, accept, real) => (url === "/checkpoint" ? { body: Buffer.from(String(real.body).replace("\n271\n", "\n270\n")) } : null),
  ];
  for (const lie of lies) {
    const { page, close } = await open();
    server.lie = () => null;
    await page.goto(`${server.origin}/`);
    await settled(page);
    server.lie = lie;
    await give(page, book.key);
    assert.equal(await badges(page, "proven"), 0);
    assert.ok((await badges(page, "broken")) === 1 || /did not work/.test(await page.textContent("main")));
    await close();
  }
  server.lie = () => null;
});

test("the key of another ledger has not signed it", async () => {
  const { page, close } = await open();
  await page.goto(`${server.origin}/`);
  await settled(page);
  await give(page, await readFile(join(root, "cluster/verify/vectors/ledger.vkey"), "utf8"));
  assert.equal(await badges(page, "proven"), 0);
  assert.equal(await badges(page, "broken"), 1);
  await close();
});

test("it breaks no rule for access in either scheme", async () => {
  for (const colorScheme of ["light", "dark"]) {
    const { page, close } = await open({ colorScheme, bypassCSP: true });
    await page.goto(`${server.origin}/`);
    await settled(page);
    await page.addScriptTag({ path: from.resolve("axe-core/axe.min.js") });
    const found = await page.evaluate(() => window.axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"] }));
    assert.deepEqual(found.violations.map((it) => it.id), []);
    await close();
  }
});
