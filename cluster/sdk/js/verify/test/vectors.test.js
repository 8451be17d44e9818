// All stored proof files get the verdict, and show the content, that the vectors say.
import assert from "node:assert/strict";
import { test } from "node:test";

import { load } from "../index.js";
import { cases } from "./vectors.js";

const verifier = await load();

test("every stored proof file gets its verdict", () => {
  const counted = { true: 0, false: 0 };
  for (const { name, file, options, valid, step } of cases()) {
    const result = verifier.verify(file, options);
    assert.deepEqual([result.valid, result.failed_step], [valid, step], name);
    assert.ok(valid || result.error.startsWith(`${step}: `), name);
    counted[valid] += 1;
  }
  console.log(`judged ${counted.true} valid files and ${counted.false} lies`);
  assert.ok(counted.true > 50 && counted.false > 260, JSON.stringify(counted));
});

const hex = (text) => `0x${text}`;
const stamp = ({ epoch, version }) => [epoch, version];

function record({ found, key, value, value_sha256, value_bytes, last_changed }) {
  if (!found) return { key, found: null };
  return { key, found: { stamp: stamp(last_changed), value_sha256, length: value_bytes, value: value ?? null } };
}

/** What a result says, in the words of the vectors. */
function said(result) {
  const version = stamp(result);
  switch (result.kind) {
    case "membership":
    case "absence":
      return { kind: "keys", version, keys: [record(result)] };
    case "keys":
      return { kind: "keys", version, keys: result.keys.map(record) };
    case "range":
      return { kind: "range", version, low: result.low, high: result.high, records: result.records.map(record) };
    case "receipt":
      return { kind: "receipt", version, index: result.journal_index };
    case "standing":
      return {
        kind: "standing",
        "old size": result.old_size,
        "old root": result.old_root,
        pairs: result.epochs.map(({ epoch, base }) => [epoch, base]),
      };
  }
  throw new Error(`a kind without a claim: ${result.kind}`);
}

/** The claim of proofs.json, with bytes as results have them. */
function claimed({ entry, ...what }) {
  const found = (found) => found && { ...found, value: found.value === null ? null : hex(found.value) };
  const record = (record) => ({ key: hex(record.key), found: found(record.found) });
  if (what.keys) return { ...what, keys: what.keys.map(record) };
  if (!what.records) return what;
  return { ...what, low: hex(what.low), high: what.high && hex(what.high), records: what.records.map(record) };
}

test("valid proof files show what the vectors claim", () => {
  const valid = cases().filter(({ name, valid }) => valid && name.startsWith("proofs: "));
  assert.equal(valid.length, 11);
  for (const { name, file, options, claim } of valid) {
    const result = verifier.verify(file, { ...options, encoding: "hex" });
    assert.deepEqual(said(result), claimed(claim.what), name);
    const { size, root } = result.checkpoint;
    assert.deepEqual([result.cluster_id, size, root], [claim.cluster, claim.size, claim.root], name);
  }
});

test("ledgers of members show what the vectors claim", () => {
  const valid = cases().filter(({ name, valid }) => valid && name.startsWith("ledgers: "));
  assert.ok(valid.length >= 10);
  for (const { name, file, options, claim } of valid) {
    const result = verifier.verify(file, { ...options, encoding: "hex" });
    assert.deepEqual([result.kind, result.ledger, stamp(result)], [claim.kind, claim.ledger, claim.version], name);
    const journals = result.journals.map(({ jsn, signature_verified: signed, payload }) => ({
      jsn,
      signed,
      payload: payload ?? null,
    }));
    const expected = claim.journals.map(({ jsn, signed, payload }) => ({
      jsn,
      signed,
      payload: payload && hex(payload),
    }));
    assert.equal(journals.length, expected.length, name);
    for (const [at, journal] of journals.entries()) {
      assert.deepEqual([journal.jsn, journal.signed], [expected[at].jsn, expected[at].signed], name);
      // The vectors have whole envelopes of some journals, which contain the payload.
      if (journal.payload) assert.ok(expected[at].payload.includes(journal.payload.slice(2)), name);
    }
    if (claim.kind === "journals")
      assert.deepEqual([result.ledger_size, result.ledger_root], [claim.size, claim.root], name);
    else assert.deepEqual([result.count, result.complete], [claim.count, claim.after === 0], name);
  }
});

test("the version of a time is what the vectors claim", () => {
  const valid = cases().filter(({ name, valid }) => valid && name.startsWith("times: "));
  assert.ok(valid.length >= 14);
  for (const { name, file, options, claim } of valid) {
    const result = verifier.verify(file, options);
    const { kind, time_ms, timestamp_ms, next } = result;
    const shown = {
      kind,
      version: stamp(result),
      // Numbers above 2^53 are strings of digits.
      time: String(time_ms),
      committed: timestamp_ms,
      next: next && [stamp(next), next.timestamp_ms],
      final: result.final,
    };
    // The largest time is rounded where JSON is read as it stands.
    const time = name.endsWith("the end of time") ? "18446744073709551615" : String(claim.time);
    assert.deepEqual(shown, { ...claim, time }, name);
  }
});

test("a policy without witnesses counts none, and others count both types", () => {
  const under = cases().filter(({ valid, options }) => valid && options.policy);
  const named = ({ options }) => options.policy.includes("witness");
  const counted = under.filter(named).map(({ file, options }) => verifier.verify(file, options).cosignatures.length);
  assert.deepEqual(counted, [1, 2, 2]);
  const judged = under.filter((it) => !named(it));
  assert.ok(judged.length > 0);
  for (const { name, file, options } of judged) assert.deepEqual(verifier.verify(file, options).cosignatures, [], name);
});

test("a change of key is followed, and shown", () => {
  for (const { name, file, options, valid } of cases().filter(({ name }) => name.startsWith("rotation: "))) {
    if (!valid) continue;
    const { signed_by, key_changes } = verifier.verify(file, options);
    const keys = [options.keys, ...key_changes.map(({ vkey }) => vkey)];
    assert.ok(keys.includes(signed_by) || options.newer, name);
  }
});
