// The stored proof files of cluster/verify/vectors, with the verdict that each must get.
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";

const folder = new URL("../../../../verify/vectors/", import.meta.url);

function stored(name) {
  return JSON.parse(readFileSync(new URL(name, folder), "utf8"));
}

const bytes = (hex) => (hex ? new Uint8Array(Buffer.from(hex, "hex")) : undefined);

/** All proof files: `{ name, file, options, valid, step, claim }`. */
export function cases() {
  const one = (from, { name, file, newer, claim, "failed step": step }, trust, valid) => ({
    name: `${from}: ${name}`,
    file: bytes(file),
    options: { ...trust, newer: bytes(newer) },
    valid,
    step: step ?? null,
    claim,
  });
  const [proofs, ledgers, times, rules, rotation] = ["proofs", "ledgers", "times", "cases", "rotation"].map((name) =>
    stored(`${name}.json`),
  );
  return [
    ...proofs.cases.map((it) => one("proofs", it, { keys: proofs.vkey }, it.valid)),
    ...ledgers.cases.map((it) => one("ledgers", it, { keys: ledgers.vkey }, it["failed step"] === null)),
    ...times.cases.map((it) => one("times", it, { keys: times.vkey }, it["failed step"] === null)),
    ...rules.cases.map((it) => one("cases", it, it.policy ? { policy: it.policy } : { keys: it.vkey }, it.valid)),
    ...rotation.cases.flatMap((it) =>
      it.results.map((result) =>
        one("rotation", { ...it, ...result, claim: undefined }, { keys: result.key }, result.valid),
      ),
    ),
  ];
}

/** All evidence files: `{ name, file, options, valid, step, verdict }`. */
export function evidence() {
  return stored("evidence.json").cases.map(({ name, file, vkey, policy, valid, verdict, "failed step": step }) => ({
    name: `evidence: ${name}`,
    file: new TextEncoder().encode(file),
    options: { keys: vkey, policy: policy ?? undefined },
    valid,
    step,
    verdict,
  }));
}

/** One valid file of each kind, the shortest. */
export function oneOfEachKind(verifier) {
  const found = new Map();
  for (const it of cases().filter(({ valid, options }) => valid && options.keys && !options.newer)) {
    const { kind } = verifier.verify(it.file, it.options);
    if (!(found.get(kind)?.file.length <= it.file.length)) found.set(kind, it);
  }
  return found;
}

/** The file with its checksum corrected, so that the verifier gets to the changed bytes. */
export function sealed(file) {
  const copy = Uint8Array.from(file);
  const body = copy.subarray(0, -8);
  copy.set(createHash("sha256").update(Uint8Array.of(0x1e)).update(body).digest().subarray(0, 8), body.length);
  return copy;
}
