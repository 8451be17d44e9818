// Every page: what it shows, for whom, and within which sizes.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { readFile } from "node:fs/promises";
import { after, before, test } from "node:test";
import { gzipSync } from "node:zlib";

import { badges, bin, console_, end, facts, from, ledger, open, root, visit } from "./bed.js";

const AXE = from.resolve("axe-core/axe.min.js");
const RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"];
const dist = (name) => readFile(new URL(`cluster/console/dist/${name}`, `file://${root}`));

/** A route of each page, and the empty forms. */
const ROUTES = [
  "head", "timeline", "record", "record?key=account%2F0001", "record?key=nobody", "record?key=account%2F0001&version=999",
  "history?key=greeting", "range?prefix=account", "range?prefix=none", "diff", "diff?from=2&to=8", "log", "log?kind=prune",
  "members", "cluster", "verify", "about",
];

let [book, con] = [];

before(async () => {
  book = await ledger("book");
  const accounts = Array.from({ length: 12 }, (_, i) => ({ put: [[`account/${String(i).padStart(4, "0")}`, `{"balance":${i * 17}}`]] }));
  await book.commit(...accounts, { put: [["greeting", "hello"]] }, { put: [["greeting", "hello, world"]] }, { delete: ["greeting"] });
  await book.commit({ put: [["greeting", "hi"], [`long/${"x".repeat(300)}`, "y".repeat(3000)]] });
  con = await console_(book.endpoint, ["--trust", `@${book.keyFile}`]);
});

after(end);

test("no page breaks a rule for access in either scheme, and none is wider than a window at 400 %", async () => {
  for (const colorScheme of ["light", "dark"]) {
    const { page, asked, wrong, close } = await open({ colorScheme, bypassCSP: true });
    for (const route of ROUTES) {
      await visit(page, con.to(route));
      if (!(await page.evaluate(() => window.axe))) await page.addScriptTag({ path: AXE });
      const found = await page.evaluate((rules) => window.axe.run(document, { runOnly: rules }), RULES);
      const words = found.violations.flatMap((it) => it.nodes.map((node) => `${it.id}: ${node.html}: ${node.failureSummary}`));
      assert.deepEqual(words, [], `${route} in ${colorScheme}`);
    }
    // 1280 pixels at 400 % are 320.
    await page.setViewportSize({ width: 320, height: 256 });
    for (const route of ROUTES) {
      await visit(page, con.to(route));
      const [wide, window] = await page.evaluate(() => [document.scrollingElement.scrollWidth, document.scrollingElement.clientWidth]);
      assert.ok(wide <= window, `${route} is ${wide} pixels wide`);
    }
    assert.deepEqual(wrong, []);
    const foreign = asked.filter((url) => !url.startsWith(`${con.origin}/`) && url !== "data:,");
    assert.deepEqual(foreign, [], "nothing of another server");
    await close();
  }
});

test("under the key of its user, a page shows as proven what it verified, and as said what it did not", async () => {
  const { page, wrong, close } = await open();
  await visit(page, con.to("head"));
  const head = await facts(page);
  for (const name of ["Version", "Time", "State root", "Root log", "Signed by"]) assert.ok(head.includes(`${name}: proven`), name);
  assert.ok(head.includes("Newest?: said") && head.includes("Oldest version: said"));
  await visit(page, con.to("record?key=account%2F0001"));
  assert.equal(await page.textContent(".value-box pre"), '{\n  "balance": 17\n}');
  assert.equal(await badges(page, "said"), 0);
  const [saved] = await Promise.all([page.waitForEvent("download"), page.click("text=Save the proof")]);
  const verdict = spawnSync(bin, ["verify", await saved.path(), "--key", `@${book.keyFile}`, "--expect-key", "account/0001"], { encoding: "utf8" });
  assert.match(verdict.stdout, /^valid: `account\/0001` has the value/, verdict.stderr);
  await visit(page, con.to("record?key=nobody"));
  assert.match(await page.textContent("main"), /none: the key has no record/);
  await visit(page, con.to("record?key=account%2F0001&version=999"));
  assert.match(await page.textContent("main"), /not yet/i);
  await visit(page, con.to("range?prefix=account"));
  assert.equal((await page.$$("tbody tr")).length, 12);
  assert.equal(await badges(page, "proven"), 14);
  await visit(page, con.to("history?key=greeting"));
  const changes = await page.$$eval("tbody tr", (rows) => rows.map((row) => Array.from(row.cells, (cell) => cell.textContent).slice(1, 3).join(" ")));
  assert.deepEqual(changes, ["put hi", "deleted none", "put hello, world", "put hello"]);
  await visit(page, con.to("timeline"));
  await page.click("text=Prove these versions");
  await page.waitForSelector("text=versions are proven");
  assert.equal(await badges(page, "proven"), 17, "16 commits and the size");
  await visit(page, con.to("diff?from=2&to=8"));
  assert.equal(await badges(page, "proven"), 0);
  await page.click("text=Prove this difference");
  await page.waitForSelector("text=These keys differ and no others");
  assert.equal(await badges(page, "said"), 0);
  await visit(page, con.to("cluster"));
  assert.equal(await badges(page, "proven"), 0, "nobody signs the state of a cluster");
  assert.deepEqual(wrong, []);
  await close();
});

test("a page remembers what it saw, and says that the log goes on from there", async () => {
  const { page, close } = await open();
  await visit(page, con.to("head"));
  assert.match(await page.textContent("main"), /for the first time/);
  await book.commit({ put: [["more", "1"]] });
  await page.reload();
  await visit(page, con.to("head"));
  assert.match(await page.textContent("main"), /Goes on from what you saw on/);
  assert.ok((await facts(page)).includes("Goes on: proven"));
  const kept = await page.evaluate(() => Object.keys(localStorage));
  assert.deepEqual(kept.map((name) => name.split(":")[0]), ["coppice-checkpoint"]);
  await close();
});

test("under a key that the server names, nothing is proven until the user pastes one", async () => {
  const other = await console_(book.endpoint);
  const { page, close } = await open();
  for (const route of ["head", "record?key=account%2F0001", "range?prefix=account", "history?key=greeting"]) {
    await visit(page, other.to(route));
    assert.equal(await badges(page, "proven"), 0, route);
    assert.ok((await badges(page, "said")) > 0, route);
  }
  await visit(page, other.to("head"));
  await page.fill("input[name=key]", book.key);
  await Promise.all([page.waitForEvent("load"), page.click("text=Trust this key")]);
  await page.waitForSelector(".badge.proven");
  assert.ok((await facts(page)).includes("Version: proven"));
  await close();
});

test("everything is reached by the keyboard, in the order of the page", async () => {
  const { page, close } = await open();
  await visit(page, con.to("record?key=account%2F0001"));
  const reached = [];
  for (let i = 0; i < 60; i += 1) {
    await page.keyboard.press("Tab");
    const now = await page.evaluate(() => {
      const at = document.activeElement;
      if (at === document.body) return null;
      const style = getComputedStyle(at);
      return [at.getAttribute("aria-label") ?? at.name ?? at.textContent.trim(), at.textContent.trim(), style.outlineStyle !== "none"];
    });
    if (now === null) break;
    reached.push(now);
  }
  assert.match(reached[0][1], /Skip to the content/);
  const words = reached.map(([, text]) => text);
  // The menu has a History, too: the last one is the link below the record.
  const order = ["Skip to the content", "Head", "Timeline", "About", "Show", "History", "Save the proof", "Do it in a terminal"];
  const places = order.map((word) => words.lastIndexOf(word));
  assert.deepEqual(places, [...places].sort((a, b) => a - b), words.join(" | "));
  assert.ok(!places.includes(-1), words.join(" | "));
  assert.ok(reached.every(([, , visible]) => visible), "the focus is always seen");
  await page.keyboard.press("Shift+Tab");
  await visit(page, con.to("head"));
  await page.focus("header a[href$='/range']");
  await page.keyboard.press("Enter");
  await page.waitForSelector("h1:has-text('Range')");
  assert.equal(await page.evaluate(() => document.activeElement.id), "main", "the reader is at the new page");
  await close();
});

test("all of it is small", async () => {
  const packed = async (...names) => (await Promise.all(names.map(dist))).reduce((sum, bytes) => sum + gzipSync(bytes, { level: 9 }).length, 0);
  const code = await packed("app.js", "app.css", "worker.js");
  const first = code + (await packed("index.html", "verify.wasm"));
  const offline = (await dist("offline.html")).length;
  console.log(`JS and CSS ${code} bytes gzipped, first load ${first}, offline page ${offline} bytes`);
  assert.ok(code <= 60_000 && first <= 180_000 && offline <= 300_000);
});
