// No file and no request makes the module trap, and no damaged file is valid.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { Verifier, load } from "../index.js";
import { cases, oneOfEachKind, sealed } from "./vectors.js";

const verifier = await load();
// The seed of each run; `SEED` repeats one.
const SEED = Number(process.env.SEED ?? Date.now() % 1e9);

function flipped(file, bit) {
  const copy = Uint8Array.from(file);
  copy[bit >> 3] ^= 1 << (bit & 7);
  return copy;
}

/** Random numbers from the seed (mulberry32). */
function random(seed) {
  let state = seed >>> 0;
  return (below) => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) % below;
  };
}

test("every flipped bit of a file of each kind is refused", () => {
  const kinds = oneOfEachKind(verifier);
  assert.equal(kinds.size, 9, [...kinds.keys()].join());
  for (const [kind, { file, options }] of kinds) {
    for (let bit = 0; bit < file.length * 8; bit += 1) {
      assert.equal(verifier.verify(flipped(file, bit), options).valid, false, `${kind}, bit ${bit}`);
    }
  }
});

test("every length of a file of each kind is refused", () => {
  for (const [kind, { file, options }] of oneOfEachKind(verifier)) {
    for (let length = 0; length < file.length; length += 1) {
      const cut = file.subarray(0, length);
      assert.equal(verifier.verify(cut, options).valid, false, `${kind}, ${length} bytes`);
      if (length >= 8) assert.equal(verifier.verify(sealed(cut), options).valid, false, `${kind}, ${length} bytes`);
    }
  }
});

// The rest of the file may also answer a changed question. So either verdict is right, but there
// must be one.
test("changed files whose checksum fits get a verdict", () => {
  const next = random(SEED);
  console.log(`SEED=${SEED}`);
  const steps = new Map();
  for (const { file, options } of cases()) {
    for (let round = 0; round < 40; round += 1) {
      let changed = flipped(file, next(file.length * 8));
      if (round % 4 === 0) changed = flipped(changed, next(file.length * 8));
      if (round % 4 === 1) changed[next(file.length)] = [0, 0xff, 0x7f, 0x80][next(4)];
      if (round % 4 === 2) changed = changed.slice(0, 30 + next(file.length - 30));
      const { valid, failed_step } = verifier.verify(sealed(changed), options);
      assert.equal(typeof valid, "boolean");
      steps.set(failed_step, (steps.get(failed_step) ?? 0) + 1);
    }
  }
  console.log([...steps].map(([step, count]) => `${step ?? "valid"} ${count}`).join(", "));
  assert.ok(steps.size > 10, "the changes reach the later steps");
});

test("requests of random bytes get an answer", () => {
  const module = new WebAssembly.Module(readFileSync(new URL("../verify.wasm", import.meta.url)));
  const { memory, alloc, free, verify } = new WebAssembly.Instance(module, {}).exports;
  const next = random(SEED);
  for (let round = 0; round < 20000; round += 1) {
    const length = 1 + next(40);
    const request = Uint8Array.from({ length }, (_, at) => (at % 5 && next(3) ? 0 : next(round % 2 ? 256 : 12)));
    const at = alloc(length);
    new Uint8Array(memory.buffer, at, length).set(request);
    const answer = BigInt.asUintN(64, verify(at, length));
    const [from, size] = [Number(answer & 0xffffffffn), Number(answer >> 32n)];
    const { valid, error } = JSON.parse(Buffer.from(memory.buffer, from, size).toString());
    assert.ok(valid === false || typeof error.message === "string");
    free(at, length);
    free(from, size);
  }
  assert.ok(memory.buffer.byteLength < 4 << 20, "memory is returned");
});

test("files and requests that are too long are refused", () => {
  const { file, options } = cases()[0];
  const long = new Uint8Array((64 << 20) + 1);
  long.set(file);
  assert.equal(verifier.verify(sealed(long), options).failed_step, "format");
  const longest = new Uint8Array(64 << 20);
  longest.set(file);
  assert.equal(verifier.verify(sealed(longest), options).failed_step, "format");
  assert.throws(() => verifier.verify(long, { ...options, newer: new Uint8Array(66 << 20) }), /too long/);
  // The instance that grew was given up, and the next file is judged all the same.
  assert.equal(verifier.verify(file, options).valid, true);
});

test("a trap is an error, and the next file is judged by another instance", async () => {
  // Exports `memory`, `abi` that gives 1, `alloc` that gives 8, `free`, and `verify`, which traps.
  const sections = [
    "0115 04 600001 7f 60017f017f 60027f7f00 60027f7f017e",
    "0305 04 00010203",
    "0503 010001",
    "0728 05 066d656d6f72790200 036162690000 05616c6c6f630001 04667265650002 067665726966790003",
    "0a12 04 040041010b 040041080b 02000b 0300000b",
  ];
  const trapping = Buffer.from(`0061736d01000000${sections.join("").replaceAll(" ", "")}`, "hex");
  const trapped = await load(trapping);
  for (const round of [1, 2]) {
    assert.throws(() => trapped.verify(new Uint8Array(8), { keys: "k" }), WebAssembly.RuntimeError, `call ${round}`);
  }
  const none = await WebAssembly.compile(Buffer.from("0061736d01000000", "hex"));
  assert.throws(() => new Verifier(none), /not the verifier/);
});
