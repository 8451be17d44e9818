// A server that lies. Whatever it makes up is shown as broken, or as its word: never as proven.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";

import { badges, bin, console_, copied, end, facts, ledger, liar, open, settled, visit } from "./bed.js";

let [book, con, server] = [];
const PROOF = "vnd.coppice.proof";

before(async () => {
  book = await ledger("book");
  const accounts = Array.from({ length: 20 }, (_, i) => ({ put: [[`account/${String(i).padStart(4, "0")}`, `balance ${i}`]] }));
  await book.commit(...accounts, { put: [["greeting", "hello"]] }, { put: [["greeting", "changed"]] }, { delete: ["greeting"] });
  con = await console_(book.endpoint, ["--trust", `@${book.keyFile}`]);
  server = await liar(con);
});

after(end);

/** A true answer of the console. */
async function true_(path, accept = `application/${PROOF}`) {
  const response = await fetch(`${con.origin}/${path}`, { headers: { Accept: accept, "Coppice-Console": con.secret } });
  assert.equal(response.status, 200, path);
  return Buffer.from(await response.arrayBuffer());
}

/** The public key of a new witness. */
function witnessKey(name) {
  const file = join(book.dir, name);
  spawnSync(bin, ["keygen", "--witness", "--name", name, "--out", `${file}.key`]);
  return readFileSync(`${file}.vkey`, "utf8").trim();
}

const isProof = (accept) => accept.includes(PROOF);
const json = (real, change) => ({ body: Buffer.from(`${JSON.stringify(change(JSON.parse(real.body)))}\n`) });
const linesOf = (real, change) => ({ body: Buffer.from(`${change(String(real.body).trim().split("\n").map((it) => JSON.parse(it))).map((it) => JSON.stringify(it)).join("\n")}\n`) });

/** Visits a page of a lying server in a fresh browser, after an honest visit of the head. */
async function seen(route, lie, act) {
  const opened = await open();
  server.lie = () => null;
  await visit(opened.page, server.to("head"));
  await visit(opened.page, server.to("verify"));
  server.lie = lie;
  try {
    await visit(opened.page, server.to(route));
    await act?.(opened.page);
  } finally {
    server.lie = () => null;
  }
  const found = {
    broken: await badges(opened.page, "broken"),
    proven: await badges(opened.page, "proven"),
    facts: await facts(opened.page),
    text: await opened.page.textContent("main"),
    wrong: opened.wrong,
  };
  await opened.close();
  assert.deepEqual(found.wrong, []);
  return found;
}

async function isBroken(route, lie, step, act) {
  const found = await seen(route, lie, act);
  assert.equal(found.broken, 1, `${route}: ${found.text}`);
  assert.equal(found.proven, 0, `${route}: ${found.text}`);
  if (step) assert.ok(found.text.includes(step), `${step}: ${found.text}`);
  return found;
}

test("1: another value", () =>
  isBroken("record?key=account%2F0001", (url, accept, real) => {
    if (!url.startsWith("/v1/records/account")) return null;
    const body = Buffer.from(real.body);
    const at = body.indexOf("balance 1");
    assert.ok(at > 0, "the value is in the file");
    body.write("balance 9", at);
    return { body };
  }));

test("2: the record of another key", async () => {
  const other = await true_("v1/records/account%2F0002");
  await isBroken("record?key=account%2F0001", (url) => (url.startsWith("/v1/records/account") ? { body: other } : null), "question");
});

test("3: the absence of another key", async () => {
  const other = await true_("v1/records/nobody");
  await isBroken("record?key=account%2F0001", (url) => (url.startsWith("/v1/records/account") ? { body: other } : null), "question");
});

test("4: another version than the one that was asked for", async () => {
  const other = await true_("v1/records/account%2F0001?version=5");
  await isBroken("record?key=account%2F0001&version=9", (url) => (url.startsWith("/v1/records/account") ? { body: other } : null), "question");
});

test("5: an old version as the newest", async () => {
  const old = await true_("v1/records/account%2F0001?version=5");
  await isBroken("record?key=account%2F0001", (url) => (url.startsWith("/v1/records/account") ? { body: old } : null), "question");
});

test("6: a state from before what the page has seen", async () => {
  const [record, growth] = [await true_("v1/records/account%2F0001"), await true_("v1/checkpoint?since=1")];
  await book.commit({ put: [["account/0001", "spent"]] });
  await isBroken("record?key=account%2F0001", (url) => (url.startsWith("/v1/records/account") ? { body: record } : null), "stale");
  await isBroken("head", (url, accept) => (url.startsWith("/v1/checkpoint") && isProof(accept) ? { body: growth } : null), "", async (page) => {
    await page.reload();
    await settled(page);
  });
});

test("7: a range without its first records", async () => {
  const rest = await true_("v1/records?low=account%2F0005&high=accounu&limit=200");
  await isBroken("range?prefix=account", (url, accept) => (url.startsWith("/v1/records?") && isProof(accept) ? { body: rest } : null), "begins above");
});

test("8: a range without its last records", async () => {
  const rest = await true_("v1/records?low=account&high=account%2F0005&limit=200");
  await isBroken("range?prefix=account", (url, accept) => (url.startsWith("/v1/records?") && isProof(accept) ? { body: rest } : null), "ends within");
});

test("9: a false value beside the proof of a range", () =>
  isBroken("range?prefix=account", (url, accept, real) => {
    if (!url.startsWith("/v1/records?") || isProof(accept)) return null;
    return linesOf(real, (rows) => rows.map((row, at) => (at === 3 ? { ...row, value: "a million" } : row)));
  }, "hash"));

test("10: a deletion that never was, and one that is left out", async () => {
  const lie = (change) => (url, accept, real) => (url.includes("/history") ? linesOf(real, change) : null);
  await isBroken("history?key=greeting", lie((rows) => rows.map((row) => (row.found === false ? { ...row, version: 22 } : row))), "did not");
  const hidden = await seen("history?key=greeting", lie((rows) => [{ ...rows.at(-1), changes: 0 }]));
  assert.equal(hidden.proven, 0, hidden.text);
  assert.match(hidden.text, /That it never had one is said/);
});

test("11: an entry of the log with another time", async () => {
  const lie = (url, accept, real) =>
    url.startsWith("/v1/log") ? linesOf(real, (rows) => rows.map((row) => (row.version === 7 ? { ...row, timestamp_ms: row.timestamp_ms - 86_400_000 } : row))) : null;
  const before = await seen("timeline", lie);
  assert.equal(before.proven, 1, "the size alone");
  await isBrokenAfter("timeline", lie, "Prove these versions");
});

/** Like `isBroken`, after a click; what the page had verified before may stay. */
async function isBrokenAfter(route, lie, button) {
  const found = await seen(route, lie, async (page) => {
    await page.click(`text=${button}`);
    await page.waitForSelector(".badge.broken");
  });
  assert.equal(found.broken, 1);
  assert.ok(!/versions are proven|and no others/.test(found.text), found.text);
}

test("12: entries in another order", () =>
  isBroken("log", (url, accept, real) => (url.startsWith("/v1/log") ? linesOf(real, (rows) => [...rows].reverse()) : null), "not those"));

test("13: a difference that is left out, and one that is made up", async () => {
  const lie = (change) => (url, accept, real) => (url.startsWith("/v1/diff") ? linesOf(real, change) : null);
  const made = { change: "added", key: "account/9999", before: null, after: { value: "x", last_changed: { epoch: 0, version: 4 } } };
  await isBrokenAfter("diff?from=3&to=9", lie((rows) => rows.slice(1)), "Prove this difference");
  await isBrokenAfter("diff?from=3&to=9", lie((rows) => [made, ...rows]), "Prove this difference");
});

test("14: the checkpoint of another ledger, and a name for its key", async () => {
  const other = await ledger("other");
  await other.commit({ put: [["account/0001", "a million"]] });
  const fake = await console_(other.endpoint, ["--trust", `@${other.keyFile}`]);
  const opened = await open();
  server.via = fake;
  server.lie = (url, accept, real) => {
    if (url === "/settings.json") return json(real, (settings) => ({ ...settings, key: book.key }));
    return null;
  };
  for (const route of ["head", "record?key=account%2F0001", "range?prefix=account"]) {
    await visit(opened.page, server.to(route));
    assert.equal(await badges(opened.page, "broken"), 1, route);
    assert.equal(await badges(opened.page, "proven"), 0, route);
  }
  await opened.close();
  Object.assign(server, { via: con, lie: () => null });
  await Promise.all([other.stop(), fake.stop()]);
});

test("15: a forged signature of a witness, and a policy that is not met", async () => {
  const line = "\u2014 witness.example AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\n";
  const lie = (url, accept, real) => (url === "/v1/checkpoint" && !isProof(accept) ? { body: Buffer.concat([real.body, Buffer.from(line)]) } : null);
  const found = await seen("members", lie);
  assert.match(found.text, /witness\.example/);
  assert.equal(found.proven, 0, "no line is counted without a policy");
  const [record, growth] = [await true_("v1/records/account%2F0001"), await true_("v1/checkpoint?since=1")];
  const policy = `log ${book.key}\nwitness w ${witnessKey("witness")}\nquorum w\n`;
  const { page, close } = await open();
  server.lie = (url, accept, real) => {
    if (url === "/settings.json") return json(real, (settings) => ({ ...settings, policy }));
    if (!isProof(accept)) return null;
    return { status: 200, body: url.startsWith("/v1/records/") ? record : growth };
  };
  for (const route of ["head", "record?key=account%2F0001", "members"]) {
    await visit(page, server.to(route));
    assert.equal(await badges(page, "broken"), 1, route);
    assert.equal(await badges(page, "proven"), 0, route);
    assert.match(await page.textContent("main"), /cosignatures/);
  }
  server.lie = () => null;
  await close();
});

test("16: answers that are no answers", async () => {
  const routes = ["head", "record?key=account%2F0001", "range?prefix=account", "timeline", "diff?from=1&to=2", "cluster", "members", "history?key=greeting"];
  const { page, wrong, close } = await open();
  await visit(page, server.to("verify"));
  for (const answer of ["", "<html><script>alert(1)</script>", "null", "{}"]) {
    server.lie = (url) => (url.startsWith("/v1/") ? { body: Buffer.from(answer) } : null);
    for (const route of routes) {
      await visit(page, server.to(route));
      assert.equal(await badges(page, "proven"), 0, `${route}: ${answer}`);
      await visit(page, server.to("verify"));
    }
  }
  server.lie = () => null;
  assert.deepEqual(wrong, []);
  await close();
});

test("17: another log under the same key", async () => {
  const dir = book.dir;
  await book.stop();
  const copy = await copied(dir, "fork");
  const [one, two] = await Promise.all([ledger("book"), ledger("fork")]);
  assert.ok(copy.endsWith("fork"));
  await one.commit({ put: [["account/0001", "to Alice"]] });
  await two.commit({ put: [["account/0001", "to Bob"]] }, { put: [["account/0002", "to Bob"]] });
  const options = ["--trust", `@${one.keyFile}`];
  const [first, second] = await Promise.all([console_(one.endpoint, options), console_(two.endpoint, options)]);
  const opened = await open();
  for (const route of ["head", "record?key=account%2F0001"]) {
    server.via = first;
    await visit(opened.page, server.to("about"));
    await visit(opened.page, server.to("head"));
    server.via = second;
    await visit(opened.page, server.to("about"));
    await visit(opened.page, server.to(route));
    const text = await opened.page.textContent("main");
    assert.equal(await badges(opened.page, "broken"), 1, text);
    assert.equal(await badges(opened.page, "proven"), 0, text);
    assert.match(text, /two logs/);
    assert.match(text, /Save one\.proof/);
  }
  // A page that was closed in between remembers.
  await opened.page.reload();
  await visit(opened.page, server.to("head"));
  assert.match(await opened.page.textContent("main"), /two logs/);
  await opened.close();
});
