// Ledgers of members: journals with their signatures, lineages, members.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { after, before, test } from "node:test";

import { badges, bin, console_, end, facts, from, ledger, liar, open, visit } from "./bed.js";

let [book, con, server, id] = [];

function run(...args) {
  const done = spawnSync(bin, args, { cwd: book.dir, env: { ...process.env, COPPICE_ENDPOINT: book.endpoint }, encoding: "utf8" });
  assert.equal(done.status, 0, `${args.join(" ")}: ${done.stderr}`);
  return done.stdout;
}

before(async () => {
  book = await ledger("members", ["--journals", "--ledgers"]);
  for (const name of ["bank", "court", "mill"]) run("keygen", "--name", name, "--out", `${name}.key`);
  run("ledger", "create", "grain", "--owner", "bank.key", "--member", "mill.vkey", "--regulator", "court.vkey", "--notice", "5s");
  run("ledger", "append", "grain", "--key", "mill.key", "--clue", "lot-7", "--data", "invoice 17");
  run("ledger", "append", "grain", "--key", "bank.key", "--data", "<script>told(1)</script>");
  run("ledger", "append", "grain", "--key", "mill.key", "--clue", "lot-7", "--data", "paid");
  id = JSON.parse(run("ledger", "show", "grain", "--json")).id;
  con = await console_(book.endpoint, ["--trust", `@${book.keyFile}`]);
  server = await liar(con);
});

after(end);

const cells = (page, at) =>
  page.$$eval("table", (tables, at) => Array.from(tables[at].tBodies[0].rows, (row) => Array.from(row.cells, (cell) => cell.textContent)), at);

test("journals, lineages and members are shown, with what is proven of them", async () => {
  const { page, wrong, close } = await open();
  await visit(page, con.to("ledgers"));
  assert.match(await page.textContent("tbody"), /grain/);
  await visit(page, con.to(`ledgers?id=${id}`));
  const journals = await cells(page, 0);
  assert.deepEqual(journals.map((row) => row.slice(0, 2).concat(row[3], row[4])).slice(1), [
    ["1", "data", "mill", "invoice 17"], ["2", "data", "bank", "<script>told(1)</script>"], ["3", "data", "mill", "paid"],
  ]);
  assert.ok(journals.every((row) => row[6] === "proven" && row[5].endsWith("proven")), JSON.stringify(journals));
  assert.deepEqual((await cells(page, 1)).map((row) => row[0]).sort(), ["bank", "court", "mill"]);
  assert.ok((await facts(page)).includes("Journals: proven"));
  await visit(page, con.to(`ledgers?id=${id}&clue=lot-7`));
  assert.match(await page.textContent("main"), /2 journals; these are all of them/);
  assert.deepEqual((await cells(page, 0)).map((row) => row[4]), ["paid", "invoice 17"]);
  await visit(page, con.to("range"));
  assert.ok(!(await page.textContent("main")).includes("reserved"), "a range begins above the ledgers");
  await visit(page, con.to("diff?from=1&to=2"));
  assert.match(await page.textContent("main"), /Nothing differs here/);
  assert.deepEqual(wrong, []);
  await close();
});

test("the lineage of another clue, and journals of another place, are broken", async () => {
  const get = async (path) => Buffer.from(await (await fetch(`${con.origin}/${path}`, { headers: { "Coppice-Console": con.secret } })).arrayBuffer());
  const [other, later] = [await get(`ledgers/${id}/lineage?clue=6c6f742d37`), await get(`ledgers/${id}/journals?from=2`)];
  const { page, close } = await open();
  for (const [route, lie] of [
    [`ledgers?id=${id}&clue=lot-8`, (url) => (url.includes("/lineage") ? { status: 200, body: other } : null)],
    [`ledgers?id=${id}&from=0`, (url) => (url.includes("/journals") ? { status: 200, body: later } : null)],
    [`ledgers?id=${id}`, (url) => (url.includes("/journals") ? { status: 200, body: other } : null)],
  ]) {
    server.lie = lie;
    await visit(page, server.to(route));
    assert.equal(await badges(page, "broken"), 1, route);
    assert.equal(await badges(page, "proven"), 0, route);
  }
  await close();
});

test("it breaks no rule for access in either scheme", async () => {
  for (const colorScheme of ["light", "dark"]) {
    const { page, close } = await open({ colorScheme, bypassCSP: true });
    for (const route of ["ledgers", `ledgers?id=${id}`, `ledgers?id=${id}&clue=lot-7`]) {
      await visit(page, con.to(route));
      if (!(await page.evaluate(() => window.axe))) await page.addScriptTag({ path: from.resolve("axe-core/axe.min.js") });
      const found = await page.evaluate(() => window.axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"] }));
      assert.deepEqual(found.violations.map((it) => it.id), [], route);
      await page.setViewportSize({ width: 320, height: 256 });
      assert.ok(await page.evaluate(() => document.scrollingElement.scrollWidth <= document.scrollingElement.clientWidth), route);
      await page.setViewportSize({ width: 1280, height: 900 });
    }
    await close();
  }
});
