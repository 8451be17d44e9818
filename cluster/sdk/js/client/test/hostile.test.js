// Coordinators that lie, or send without an end: nothing of it is believed, and each call ends.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { after, before, test } from "node:test";

import { Batch, Client, Forked, Refused, Untrusted, UnverifiedClient } from "../index.js";
import { PROOF, command, end, ledger, refusal, relay, twins } from "./bed.js";

const text = (bytes) => new TextDecoder().decode(bytes);
let [dev, via] = [];

before(async () => {
  dev = await ledger("ledger");
  via = await relay(dev);
});
after(end);

const open = (options = {}, endpoint = via.endpoint) => Client.open(endpoint, { trust: dev.vkey, ...options });
const ask = async (path, from = dev) => Buffer.from(await (await fetch(from.endpoint + path, { headers: PROOF })).arrayBuffer());
const shows = (body) => (via.lie = (method, path) => (path.includes("/records") ? { body } : null));
const distrusts = (promise, name) => assert.rejects(promise, Untrusted, name);
const every = async (pages) => {
  let count = 0;
  for await (const page of pages) count += page.value.length;
  return count;
};

test("no lie about a read is believed", async () => {
  via.lie = null;
  const client = await open();
  await client.commit(new Batch().put("lie/a", "1").put("lie/b", "9"));
  const old = (await client.put("lie/a", "2")).version;
  const honest = await ask("/v1/records/lie%2Fa");
  await client.put("lie/a", "3");
  const lies = {
    "no proof": Buffer.alloc(0),
    "the value alone": Buffer.from("3"),
    "a shortened proof": honest.subarray(1),
    "the proof of another": await ask("/v1/records/lie%2Fb"),
    "a hidden record": await ask("/v1/records/lie%2Fc"),
    "an older version": await ask(`/v1/records/lie%2Fa?version=${old.version}`),
    "what was head before": honest,
    "a range": await ask("/v1/records?prefix=lie/a"),
  };
  for (const [name, lie] of Object.entries(lies)) {
    shows(lie);
    await distrusts(client.get("lie/a"), name);
  }
  // A reader that has seen nothing newer believes an honest proof of head; others say why not.
  shows(honest);
  assert.equal(text((await (await open()).get("lie/a")).value.value), "2");
  await assert.rejects(client.get("lie/a"), { reason: "older" });
  assert.equal(text((await client.get("lie/a", { stale: true })).value.value), "2");
  const now = (via.lie = null) ?? (await ask("/v1/records/lie%2Fa"));
  for (let bit = 3; bit < 8 * now.length; bit += 83) {
    const flipped = Buffer.from(now);
    flipped[bit >> 3] ^= 1 << (bit & 7);
    shows(flipped);
    await distrusts(client.get("lie/a"), `bit ${bit}`);
  }
  via.lie = null;
  assert.equal(text((await client.get("lie/a")).value.value), "3");
});

test("no lie about a range is believed", async () => {
  via.lie = null;
  const client = await open();
  const batch = new Batch();
  for (let i = 0; i < 9; i += 1) batch.put(`r/${i}`, `${i}`);
  await client.commit(batch);
  const lies = {
    "an end that is too early": "low=r%2F0&high=r%2F5&limit=4",
    "fewer records than the limit": "low=r%2F0&high=r0&limit=3",
    "a complete part": "low=r%2F0&high=r%2F4&limit=4",
    "a later beginning": "low=r%2F1&high=r0&limit=4",
    "an earlier beginning": "low=r&high=r0&limit=4",
    nothing: "low=r%2F00&high=r%2F01",
  };
  for (const [name, query] of Object.entries(lies)) {
    shows(await ask(`/v1/records?${query}`));
    await distrusts(every(client.range({ low: "r/0", high: "r0", page: 4 })), name);
  }
  via.lie = null;
  assert.equal(await every(client.range({ low: "r/0", high: "r0", page: 4 })), 9);
});

test("no lie about a commit is believed, and its outcome is unknown", async () => {
  via.lie = null;
  const client = await open();
  const earlier = (await client.put("c", "1")).proof;
  const inSession = (await (await client.session()).put("c", "2")).proof;
  const larger = (await client.commit(new Batch().put("c", "2").put("d", "2"))).proof;
  for (const lie of [earlier, inSession, larger, await ask("/v1/records/c"), Buffer.from('{"version":7}')]) {
    shows(lie);
    await assert.rejects(client.put("c", "2"), (error) => error instanceof Untrusted && error.outcomeUnknown);
  }
  // Shards are believed by the hash of their map.
  via.lie = (method, path) => (path.includes("/log") ? { body: Buffer.from('{"genesis":{"shards":[{"shard":0,"low":"0x","high":null}]}}\n') } : null);
  await distrusts((await open()).put("c", "3"));
  via.lie = (method, path) => (path.includes("/log") ? { body: Buffer.from('{"genesis":7}\n') } : null);
  await assert.rejects((await open()).put("c", "3"), (error) => error instanceof Untrusted && !error.outcomeUnknown);
});

test("another ledger is not believed", async () => {
  const other = await ledger("other");
  await assert.rejects((await open({}, other.endpoint)).get("k"), { step: "checkpoint" });
  await distrusts((await open({}, other.endpoint)).head());
});

test("a fork is found, and both proofs are kept", async () => {
  const base = await ledger("forked");
  const write = async (to, value) => (await UnverifiedClient.open(to.endpoint)).put("f", value);
  await write(base, "0");
  const [a, b] = await twins(base, "fork");
  await write(a, "a");
  await write(b, "b");
  const between = await relay(a);
  const client = await Client.open(between.endpoint, { trust: a.vkey });
  await client.get("f");
  const stored = client.memory();
  const again = (options) =>
    Client.open(between.endpoint, { trust: a.vkey, store: { load: () => stored, save: () => {} }, ...options });
  const forks = (promise) =>
    assert.rejects(promise, (error) => error instanceof Forked && error.reason === "forked" && error.known.length > 0 && error.proof.length > 0);
  between.of = b;
  await forks(client.get("f"));
  await write(b, "c");
  await forks((await again({ growth: { intervalMs: 0 } })).get("f"));
  // A shorter log is older than what was seen, and so it is after a restart.
  await write(a, "d");
  await write(a, "e");
  between.of = a;
  const reader = await Client.open(between.endpoint, { trust: a.vkey });
  await reader.get("f");
  between.of = b;
  await assert.rejects(reader.get("f"), { reason: "older" });
});

test("a client follows the ledger's key, and believes nobody with the old one", { timeout: 120_000 }, async () => {
  const base = await ledger("rotated");
  const read = async (from, options) => (await Client.open(from.endpoint, { trust: base.vkey, ...options })).get("k");
  const old = await Client.open(base.endpoint, { trust: base.vkey });
  await old.put("k", "1");
  const before = old.memory();
  // The next key must be there when the ledger starts; its thief goes on with the old one.
  command(base, "keygen", "--out", join(base.dir, "next.key"), "--name", base.vkey.split("+")[0]);
  const [dev, thief] = await twins(base, "thief");
  command(dev, "rotate-key", `@${join(dev.dir, "next.vkey")}`, "--reason", "rehearsal");
  const between = await relay(dev);
  const client = await Client.open(between.endpoint, { trust: base.vkey, store: { load: () => before, save: () => {} } });
  await client.put("k", "2");
  const after = client.memory();
  const fresh = await readFile(join(dev.dir, "next.vkey"), "utf8");
  for (const trust of [base.vkey, fresh]) {
    assert.equal(text((await read(dev, { trust })).value.value), "2");
    assert.equal(text((await read(dev, { trust, store: { load: () => after, save: () => {} } })).value.value), "2");
  }
  // Checkpoints of the old key are not believed, though they are larger.
  const robber = await UnverifiedClient.open(thief.endpoint);
  for (let i = 0; i < 5; i += 1) await robber.put("k", `stolen ${i}`);
  between.of = thief;
  await distrusts(client.get("k"), "signed by the old key");
});

test("a log that is not proven to grow is not believed for long", async () => {
  via.lie = null;
  const store = { load: () => null, save: () => {} };
  const client = await open({ store, patienceMs: 0, growth: { intervalMs: 0, patienceMs: 0 } });
  await client.put("g", "1");
  via.lie = (method, path) => (path.includes("/checkpoint") ? refusal(503, "UNAVAILABLE") : null);
  await assert.rejects(client.put("g", "2"), { reason: "unproven" });
  via.lie = null;
  assert.equal(text((await client.get("g")).value.value), "2");
});

test("malformed and endless answers end in time as errors of the package", async () => {
  const client = await UnverifiedClient.open(via.endpoint, { timeoutMs: 500, patienceMs: 0, answerBytesMax: 1 << 20 });
  for (const body of ["", "[]", "7", "{}", "nonsense", "[".repeat(100_000), '{"epoch":[],"version":{}}']) {
    via.lie = () => ({ body: Buffer.from(body) });
    const calls = [() => client.head(), () => client.history("k"), () => client.session(), () => client.diff(1, 2)];
    calls.push(() => client.put("k", "v"), () => client.get("k"), () => client.watch().next());
    for (const call of calls) await assert.rejects(call, Untrusted, body.slice(0, 20));
  }
  via.lie = () => refusal(400, "\u001b[2J".repeat(1000));
  await assert.rejects(client.head(), (error) => error instanceof Refused && !error.message.includes("\u001b"));
  const send = (first, part) => (method, path, pass, response) => {
    response.writeHead(200, first);
    const go = () => {
      while (!response.destroyed && response.write(part));
    };
    response.on("drain", go);
    go();
    return new Promise(() => {});
  };
  for (const [name, lie, why] of [
    ["chunks without an end", send({}, "x".repeat(1 << 16)), /more than 1048576 bytes/],
    ["a length that is too large", send({ "content-length": "99999999999" }, "x"), /more than 1048576 bytes/],
    ["silence", () => new Promise(() => {}), /time for an answer is over/],
    ["elsewhere", () => ({ status: 302, headers: { location: "http://127.0.0.1:1/" }, body: Buffer.alloc(0) }), /no answer/],
  ]) {
    via.lie = lie;
    const began = performance.now();
    await assert.rejects(client.head(), (error) => error instanceof Refused && why.test(error.message), name);
    assert.ok(performance.now() - began < 4000, name);
  }
  via.lie = null;
});
