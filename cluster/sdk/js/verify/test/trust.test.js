// The rules of trust, as a client of this package runs them.
import assert from "node:assert/strict";
import { test } from "node:test";

import { loadRules } from "../index.js";

const rules = await loadRules();
const root = (byte) => byte.toString(16).padStart(2, "0").repeat(32);
const mark = (size, byte) => ({ size, root: root(byte) });
// The last 32 of the 33 bytes are the public key.
const change = (sequence, byte) => ({ sequence, vkey: `l+00000000+${Buffer.alloc(33, byte).toString("base64")}` });
const shown = (checkpoint, { version = 4, newest = 4, changes = [] } = {}) => ({
  version,
  newest: { epoch: 0, version: newest },
  checkpoint,
  key_changes: changes,
});
const standing = (old, end) => ({ ...shown(end), kind: "standing", old_size: old.size, old_root: old.root });
const known = { marks: { newest: mark(7, 7), proven: mark(5, 5) }, changes: [] };

test("the first answer is remembered, and larger ones take its place", () => {
  const first = rules.trust({ marks: null, changes: [] }, { ofHead: true }, shown(mark(5, 5)));
  assert.deepEqual(first, { distrust: null, error: null, memory: { marks: { newest: mark(5, 5), proven: mark(5, 5) }, changes: [] } });
  assert.deepEqual(rules.trust(first.memory, { seen: 5 }, shown(mark(7, 7))).memory, known);
  assert.deepEqual(rules.trust(known, {}, shown(mark(6, 6))).memory, known);
  const large = "9223372036854775807";
  assert.equal(rules.trust(known, {}, shown(mark(large, 8), { version: large, newest: large })).memory.marks.newest.size, large);
});

test("what is old, of another log or not of head is not believed, and nothing is learned from it", () => {
  for (const [distrust, asked, result] of [
    ["older", { seen: 7 }, shown(mark(6, 6))],
    ["not_head", { ofHead: true }, shown(mark(8, 8), { version: 3 })],
    ["forked", {}, shown(mark(7, 9))],
    ["forked", {}, shown(mark(5, 9))],
  ]) {
    const judged = rules.trust(known, asked, result);
    assert.deepEqual([judged.distrust, judged.memory], [distrust, known]);
    assert.ok(judged.error.length > 20);
  }
});

test("key changes are followed, and neither replaced nor left out", () => {
  const [a, b, other] = [change(3, 1), change(6, 2), change(3, 9)];
  for (const [before, changes, size, distrust] of [
    [[], [a], 9, null],
    [[a], [a, b], 9, null],
    [[a, b], [a], 6, null],
    [[a, b], [a], 8, "late"],
    [[a], [other], 9, "changed"],
  ]) {
    const judged = rules.trust({ ...known, changes: before }, {}, shown(mark(size, size), { changes }));
    assert.equal(judged.distrust, distrust);
    assert.deepEqual(judged.memory.changes, changes.length > before.length ? changes : before);
  }
  assert.throws(() => rules.trust({ ...known, changes: [{ sequence: 1, vkey: "l" }] }, {}, shown(mark(9, 9))), TypeError);
});

test("two proofs of growth show one log, or a fork, or nothing", () => {
  const growth = known.marks;
  const grown = (...results) => rules.grown(known, growth, ...results);
  const tied = grown(standing(mark(5, 5), mark(9, 9)), standing(mark(7, 7), mark(9, 9)));
  assert.deepEqual(tied, { distrust: null, error: null, isOneLog: true, memory: { ...known, marks: { newest: mark(9, 9), proven: mark(9, 9) } } });
  const apart = grown(standing(mark(5, 5), mark(8, 8)), standing(mark(7, 7), mark(9, 9)));
  assert.deepEqual([apart.isOneLog, apart.memory], [false, known]);
  for (const [distrust, one, two] of [
    ["forked", standing(mark(5, 4), mark(9, 9)), standing(mark(7, 7), mark(9, 9))],
    ["forked", standing(mark(5, 5), mark(9, 9)), standing(mark(7, 7), mark(9, 8))],
    ["shrunk", standing(mark(5, 5), mark(6, 6)), standing(mark(7, 7), mark(9, 9))],
  ]) {
    assert.deepEqual([grown(one, two).distrust, grown(one, two).memory], [distrust, known]);
  }
  assert.throws(() => grown(shown(mark(9, 9)), shown(mark(9, 9))), TypeError);
});
