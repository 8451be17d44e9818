// Compiled, not run: the types tell every kind of result apart, and refuse wrong options.
import { load, parse, type EvidenceResult, type Integer, type Result } from "@coppice/verify";

export async function value(file: Uint8Array, vkey: string): Promise<string | null> {
  const verifier = await load();
  const result: Result = verifier.verify(file, { keys: [vkey], expect: { keys: ["alice"], version: 1n } });
  if (!result.valid) throw new Error(`${result.failed_step}: ${result.error}`);
  const version: Integer = result.version;
  switch (result.kind) {
    case "membership":
      return `${version} ${result.last_changed.version} ${result.value ?? ""}`;
    case "absence":
      return result.value_sha256;
    case "keys":
      return result.keys.map((key) => (key.found ? key.value_sha256 : key.key)).join();
    case "range":
      return result.records.map((record) => record.key).join();
    case "receipt":
      return result.entry_hash;
    case "standing":
      return result.old_root;
    case "journals":
      return result.journals.map((journal) => journal.payload).join();
    case "time":
      return result.final ? `${result.time_ms}` : null;
    case "lineage":
      return result.complete ? result.clue_hash : null;
    default: {
      const never: never = result;
      return never;
    }
  }
}

export async function wrong(file: Uint8Array, vkey: string): Promise<void> {
  const verifier = await load();
  // @ts-expect-error the option is `keys`
  verifier.verify(file, { key: vkey });
  // @ts-expect-error a file is bytes
  verifier.verify("alice.proof", { keys: vkey });
  // @ts-expect-error somebody must be trusted
  verifier.verify(file);
  const result = verifier.verify(file, { keys: vkey });
  // @ts-expect-error a refused file shows nothing
  result.checkpoint;
  // @ts-expect-error there is no such step
  if (!result.valid && result.failed_step === "signature") return;
}

export async function convicted(file: Uint8Array, vkey: string, policy: string): Promise<string> {
  const verifier = await load();
  const result: EvidenceResult = verifier.evidence(file, { keys: vkey, policy });
  // @ts-expect-error there is no such step
  if (!result.valid && result.failed_step === "checkpoint") return "";
  if (!result.valid) throw new Error(`${result.failed_step}: ${result.error}`);
  // @ts-expect-error evidence answers no question
  verifier.evidence(file, { keys: vkey, expect: { version: 1 } });
  const same = parse<EvidenceResult>(verifier.evidenceText(file, { keys: [vkey] }));
  const cosigners = result.cosigners.map(({ witness }) => witness).join();
  switch (result.kind) {
    case "contradiction":
      return `${result.root_in_b} ${result.a.signed_by} ${cosigners} ${same.valid}`;
    case "late":
      return `${result.index} ${result.replaced_by} ${result.one_key}`;
    default: {
      const never: never = result;
      return never;
    }
  }
}
