// The client against a real ledger: answers, refusals, writes once, watches, stores.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { Batch, Client, CoppiceError, Refused, UnverifiedClient } from "../index.js";
import { end, ledger, refusal, relay } from "./bed.js";

const text = (bytes) => new TextDecoder().decode(bytes);
let dev;

before(async () => (dev = await ledger("ledger")));
after(end);

const open = (endpoint = dev.endpoint, options = {}) => Client.open(endpoint, { trust: dev.vkey, ...options });
const refused = (reason, promise) => assert.rejects(promise, (error) => error instanceof Refused && error.reason === reason);

async function all(pages) {
  const found = [];
  for await (const page of pages) found.push(...page.value);
  return found;
}

test("any bytes are written and read", async () => {
  const [client, believing] = [await open(), await UnverifiedClient.open(dev.endpoint)];
  const keys = ["\0", "a/b?c=d&e#%25 +", "..", ".", "...", "ä", "k".repeat(512), "history", Uint8Array.of(0xff, 0xfe)];
  for (const [at, key] of keys.entries()) {
    await client.put(key, `\0value ${at}`);
    assert.equal(text((await client.get(key)).value.value), `\0value ${at}`);
    await client.delete(key);
    assert.equal((await client.get(key)).value, null);
  }
  const done = await believing.put("empty", "");
  assert.deepEqual([done.verified, (await client.get("empty")).value.value.length], [false, 0]);
  assert.deepEqual((await believing.get("empty")).value, (await client.get("empty")).value);
  assert.equal((await believing.get("nothing")).value, null);
});

test("a read is of its version, and several reads are of one", async () => {
  const client = await open();
  const first = await client.put("read", "1");
  const second = await client.put("read", "2");
  assert.deepEqual((await client.get("read")).value.lastChanged, second.version);
  const old = await client.get("read", { version: first.version.version });
  assert.deepEqual([text(old.value.value), old.version], ["1", first.version]);
  const many = await client.getMany(["read", "none", "read"]);
  assert.deepEqual(many.map((one) => one.value && text(one.value.value)), ["2", null, "2"]);
  assert.equal(new Set(many.map((one) => one.version.version)).size, 1);
  assert.deepEqual((await client.head()).value, second.version);
  await refused("NOT_YET", client.get("read", { version: 1e12 }));
  assert.throws(() => new Batch().put("a", "1").delete("a"), RangeError);
});

test("a range comes in pages of one version, whatever is written meanwhile", async () => {
  const [client, believing] = [await open(), await UnverifiedClient.open(dev.endpoint)];
  const batch = new Batch();
  for (let i = 0; i < 23; i += 1) batch.put(`page/${String(i).padStart(3, "0")}`, `value ${i}`);
  await client.commit(batch.put("page0", "not in it"));
  for (const reader of [client, believing]) {
    for (const page of [1, 7, 23, 1000]) assert.equal((await all(reader.range({ prefix: "page/", page }))).length, 23);
    assert.equal((await all(reader.range({ low: "page/005", high: "page/009", page: 4 }))).length, 4);
    assert.deepEqual(await all(reader.range({ low: "b1", high: "b0" })), []);
  }
  const pages = client.range({ prefix: "page/", page: 10 });
  const { value: first } = await pages.next();
  await client.put("page/0105", "later");
  assert.equal(first.value.length + (await all(pages)).length, 23);
});

test("histories, differences, logs and watches are a coordinator's word", async () => {
  const client = await open();
  const first = (await client.put("story", "0")).version;
  await client.put("story", Uint8Array.of(0xff));
  const last = (await client.delete("story")).version;
  const { verified, value } = await client.history("story");
  assert.equal(verified, false);
  assert.deepEqual(value.changes.map((change) => change.value && [...change.value]), [null, [0xff], [48]]);
  const [gone, ...more] = (await client.diff(first.version, last.version, { prefix: "story" })).value;
  assert.deepEqual([text(gone.before.value), gone.after, more], ["0", null, []]);
  const entries = [];
  for await (const one of client.log()) entries.push(one.value);
  assert.deepEqual([entries[0].kind, entries.at(-1).version], ["genesis", last]);
  const watch = client.watch(entries.length - 1);
  assert.equal((await watch.next()).value.value.sequence, entries.length - 1);
  const done = await client.put("watched", "1");
  assert.deepEqual((await watch.next()).value.value.version, done.version);
  await watch.return();
  for await (const _ of client.watch(undefined, { quietMs: 300 })) assert.fail("nothing was written");
});

test("a condition that does not hold is refused, and nothing was written", async () => {
  const client = await open();
  const { version } = await client.put("refused", "1");
  await refused("PRECONDITION_FAILED", client.put("refused", "2", { ifAbsent: true }));
  await client.put("refused", "2", { ifChanged: version });
  await refused("PRECONDITION_FAILED", client.delete("refused", { ifChanged: version }));
  await assert.rejects(client.put(".", "1", { ifAbsent: true }), TypeError);
  await assert.rejects(client.get(""), RangeError);
  for (const wrong of ["127.0.0.1:1", "ftp://h", "http://u:p@h", "http://h/v1", []]) await assert.rejects(open(wrong), /endpoint/);
});

test("a session writes once though answers are lost", async () => {
  const before = await relay(dev);
  const client = await open(before.endpoint);
  const session = await client.session();
  let lost = 0;
  before.lie = async (method, path, pass, response) => {
    if (method === "GET" || lost++ % 2 === 1) return null;
    await pass();
    response.destroy();
    return null;
  };
  const { value } = await client.head();
  await Promise.all([session.put("once", "1"), session.commit(new Batch().put("once", "2").put("twice", "2"))]);
  assert.deepEqual([(await client.head()).value.version, lost], [value.version + 2, 4]);
  assert.equal((await client.session(session.id)).highest, 2n);
  await refused("PRECONDITION_FAILED", session.put("once", "3", { ifAbsent: true }));
  assert.equal(session.highest, 2n);
});

test("a write outside of a session is sent again only if it had no effect", async () => {
  const before = await relay(dev);
  const cases = [
    ["RESOURCE_EXHAUSTED", 429, true, false],
    ["NOT_LEADER", 503, true, false],
    ["UNAVAILABLE", 503, false, true],
    ["DENIED", 403, false, false],
  ];
  for (const [reason, status, again, unknown] of cases) {
    [before.calls, before.lie] = [[], () => refusal(status, reason)];
    const client = await UnverifiedClient.open(before.endpoint, { patienceMs: 1500 });
    await assert.rejects(client.put("unsafe", "1"), { reason, status, outcomeUnknown: unknown }, reason);
    assert.equal(before.calls.length > 1, again, reason);
  }
  before.lie = (method, path, pass, response) => void response.destroy();
  const client = await UnverifiedClient.open(before.endpoint, { patienceMs: 1500 });
  await assert.rejects(client.put("unsafe", "1"), { reason: "", status: 0, outcomeUnknown: true });
  // A coordinator that is not there is gone around.
  before.lie = null;
  const gone = await relay(dev);
  await gone.close();
  const two = await UnverifiedClient.open([gone.endpoint, before.endpoint]);
  assert.equal((await two.put("safe", "1")).verified, false);
});

test("a signal ends a call and a watch with its reason", async () => {
  const before = await relay(dev);
  before.lie = () => new Promise(() => {});
  const client = await UnverifiedClient.open(before.endpoint);
  const controller = new AbortController();
  const call = client.head({ signal: controller.signal });
  const watch = client.watch(0, { signal: controller.signal }).next();
  controller.abort(new RangeError("enough"));
  await assert.rejects(call, /enough/);
  await assert.rejects(watch, /enough/);
  await assert.rejects(client.head({ signal: AbortSignal.abort() }), { name: "AbortError" });
});

test("a store keeps what was seen for the next client, and a store that fails is told", async () => {
  const store = { text: null, load: async () => store.text, save: async (text) => void (store.text = text) };
  const client = await open(dev.endpoint, { store });
  await Promise.all([client.put("stored", "1"), client.put("stored2", "1")]);
  assert.equal(store.text, client.memory());
  const next = await open(dev.endpoint, { store });
  assert.equal(next.memory(), store.text);
  await next.get("stored");
  const other = await ledger("another");
  await assert.rejects(Client.open(other.endpoint, { trust: other.vkey, store }), TypeError);
  const failing = { load: async () => null, save: async () => assert.fail("full") };
  const told = (error) => error instanceof CoppiceError && error.outcomeUnknown && /store/.test(error.message);
  await assert.rejects((await open(dev.endpoint, { store: failing })).put("stored", "2"), told);
});
