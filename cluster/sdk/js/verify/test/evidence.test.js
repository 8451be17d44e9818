// Evidence files get the verdict of the vectors, and changed ones convict nobody.
import assert from "node:assert/strict";
import { test } from "node:test";

import { load } from "../index.js";
import { evidence } from "./vectors.js";

const verifier = await load();

test("every stored evidence file gets its verdict", () => {
  const counted = { true: 0, false: 0 };
  for (const { name, file, options, valid, step, verdict } of evidence()) {
    const result = verifier.evidence(file, options);
    counted[valid] += 1;
    if (valid) {
      assert.deepEqual(result, verdict, name);
      continue;
    }
    assert.deepEqual([result.valid, result.failed_step], [false, step], name);
    assert.ok(result.error.startsWith(`${step}: `), name);
  }
  console.log(`judged ${counted.true} valid evidence files and ${counted.false} others`);
  assert.ok(counted.true > 12 && counted.false > 55, JSON.stringify(counted));
});

test("every flipped bit of evidence is refused", () => {
  const { file, options } = evidence().find(({ name }) => name === "evidence: another log that has grown on");
  for (let bit = 0; bit < file.length * 8; bit += 1) {
    const flipped = Uint8Array.from(file);
    flipped[bit >> 3] ^= 1 << (bit & 7);
    assert.equal(verifier.evidence(flipped, options).valid, false, `bit ${bit}`);
  }
});

test("one of several keys must do, and a policy can name the key", () => {
  const found = (name) => evidence().find((it) => it.name === `evidence: ${name}`);
  const { file, options } = found("another log that has grown on");
  const stranger = found("another trusted key").options.keys;
  assert.equal(verifier.evidence(file, { keys: [stranger, options.keys] }).valid, true);
  assert.equal(verifier.evidence(file, { keys: [stranger] }).failed_step, "notes");
  const cosigned = found("a witness cosigned both notes");
  const { policy } = cosigned.options;
  assert.deepEqual(verifier.evidence(cosigned.file, { policy }), cosigned.verdict);
  assert.equal(verifier.evidence(cosigned.file, { keys: stranger, policy }).failed_step, "notes");
});

test("a call that makes no sense has no verdict", () => {
  const [{ file, options }] = evidence();
  for (const wrong of [
    {},
    { keys: [] },
    { keys: "nonsense" },
    { policy: "nonsense" },
    { policy: "quorum none\n" },
    { ...options, expect: {} },
    { ...options, encoding: "hex" },
  ]) {
    assert.throws(() => verifier.evidence(file, wrong), TypeError, JSON.stringify(wrong));
  }
  assert.throws(() => verifier.evidence("text", options), TypeError);
  assert.equal(verifier.evidence(file, options).valid, true);
});
