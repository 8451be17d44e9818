// Judges every stored proof file in the wasm32 build: node run.mjs MODULE proofs.json
import { readFileSync } from "node:fs";

// The steps in the order of their numbers (`Step::ALL`; `tests/no_std.rs` compares them).
const steps = [
  "format", "keys", "checkpoint", "newest_header", "header", "epoch", "state", "tree", "query",
  "value", "journal", "list", "leaf", "request", "envelope", "lineage", "standing", "cosignatures",
  "question",
];
const [modulePath, vectorsPath] = process.argv.slice(2);
const module = await WebAssembly.compile(readFileSync(modulePath));
const vectors = JSON.parse(readFileSync(vectorsPath, "utf8"));
let judged = 0;

for (const { name, file, newer, valid, "failed step": failedStep } of vectors.cases) {
  // The entry point takes no newer checkpoint.
  if (newer) continue;
  // Each file gets a new instance, since the allocator never frees.
  const { exports } = await WebAssembly.instantiate(module, {});
  const put = (bytes) => {
    const at = exports.reserve(bytes.length);
    new Uint8Array(exports.memory.buffer, at, bytes.length).set(bytes);
    return [at, bytes.length];
  };
  const result = exports.verify_proof(...put(Buffer.from(file, "hex")), ...put(Buffer.from(vectors.vkey)));
  if (!valid && !steps.includes(failedStep)) throw new Error(`${name}: there is no step ${failedStep}`);
  const expected = valid ? 0 : 1 + steps.indexOf(failedStep);
  if (result !== expected) throw new Error(`${name}: ${result} instead of ${expected}`);
  judged += 1;
}
if (judged === 0) throw new Error("no proof file was judged");
console.log(`wasm32: ${judged} proof files judged as they should be`);
