/** A whole number. If a `number` can't hold it exactly, it is a string of digits. */
export type Integer = number | string;

/** Bytes, or text that is taken as UTF-8. */
export type Bytes = Uint8Array | ArrayBuffer;

/** The form of keys, values and payloads. */
export type Encoding = "utf8" | "hex";

/** What the proof must answer; else it fails at step `question`. At most one of keys, range, batch. */
export interface Expectation {
  /** Keys that the proof must answer for. */
  keys?: string | Bytes | readonly (string | Bytes)[];
  /** Exactly this range: from the first key to before the second; `null` or empty: to the end. */
  range?: readonly [low: string | Bytes, high?: string | Bytes | null];
  /** Hash of the batch's journal entry, 64 hex digits. */
  batch?: string;
  version?: Integer | bigint;
}

/** At least `keys` or `policy` must be given: whom to trust. */
export interface Options {
  /** Public keys of the ledger (the text of `ledger.vkey`). With several, one must do. */
  keys?: string | readonly string[];
  /** A C2SP policy: the newest checkpoint shown must have its quorum of cosignatures. */
  policy?: string | Bytes;
  /** A newer checkpoint, at which the version must still stand. */
  newer?: string | Bytes;
  expect?: Expectation;
  /** Text if it is UTF-8, else hex, if this is not given. */
  encoding?: Encoding;
}

/** The steps of docs/verification.md, section 13. */
export type Step =
  | "format"
  | "keys"
  | "checkpoint"
  | "newest_header"
  | "header"
  | "epoch"
  | "state"
  | "tree"
  | "query"
  | "value"
  | "journal"
  | "list"
  | "leaf"
  | "request"
  | "envelope"
  | "lineage"
  | "time"
  | "standing"
  | "cosignatures"
  | "question";

export interface Refused {
  valid: false;
  failed_step: Step;
  error: string;
}

export interface Checkpoint {
  origin: string;
  size: Integer;
  root: string;
}

/** What every valid file shows. */
export interface Shown {
  valid: true;
  failed_step: null;
  epoch: Integer;
  version: Integer;
  /** Time of the version by the ledger's clock. */
  timestamp_ms: Integer;
  state_root: string;
  cluster_id: string;
  /** The newest version at the checkpoint. */
  newest: { epoch: Integer; version: Integer };
  checkpoint: Checkpoint;
  /** The public key that signed the checkpoint. */
  signed_by: string;
  key_changes: { sequence: Integer; vkey: string }[];
  newer_checkpoint: Checkpoint | null;
  /** The witnesses that the policy counted; `null` without a policy. */
  cosignatures: { witness: string; key_name: string; time: Integer }[] | null;
}

export interface Found {
  found: true;
  key: string;
  key_encoding: Encoding;
  value_sha256: string;
  value_bytes: Integer;
  /** Missing if the file has no values. */
  value?: string;
  last_changed: { epoch: Integer; version: Integer };
  /** The encoding of the value, or of the key if there is no value. */
  encoding: Encoding;
}

export interface Absent {
  found: false;
  key: string;
  key_encoding: Encoding;
  value_sha256: null;
  encoding: Encoding;
}

export interface Membership extends Shown, Found {
  kind: "membership";
}

export interface Absence extends Shown, Absent {
  kind: "absence";
}

export interface Keys extends Shown {
  kind: "keys";
  found: boolean;
  keys: (Found | Absent)[];
}

/** These records and no others. */
export interface Range extends Shown {
  kind: "range";
  found: boolean;
  low: string;
  low_encoding: Encoding;
  high: string | null;
  /** Missing without a high. */
  high_encoding?: Encoding;
  records: Found[];
}

export interface Receipt extends Shown {
  kind: "receipt";
  journal_index: Integer;
  entry_hash: string;
  session: { id: string; number: Integer } | null;
  metadata_hash: string;
  shards: { shard: Integer; operations_hash: string }[];
  /** Hash of the ledger's map of shards, by which `shards` are numbered. */
  shard_map_hash: string;
}

export interface Standing extends Shown {
  kind: "standing";
  old_size: Integer;
  old_root: string;
  epochs: { epoch: Integer; base: Integer }[];
}

export interface Journal {
  jsn: Integer;
  kind: Integer;
  member_id: string;
  agent_id: string | null;
  public_key: string;
  signature_verified: boolean;
  lane: Integer;
  number: Integer;
  epoch: Integer;
  version: Integer;
  leaf_hash: string;
  request_hash: string;
  clues: { hash: string; ordinal: Integer }[];
  /** Missing if the file does not show it. */
  payload?: string;
  encoding?: Encoding;
}

export interface Journals extends Shown {
  kind: "journals";
  ledger: string;
  ledger_size: Integer;
  ledger_root: string;
  known: { size: Integer; root: string } | null;
  journals: Journal[];
}

export interface Lineage extends Shown {
  kind: "lineage";
  ledger: string;
  clue_hash: string;
  count: Integer;
  complete: boolean;
  journals: Journal[];
}

/** The version was the newest one at `time_ms`; `timestamp_ms` is its own time. */
export interface Time extends Shown {
  kind: "time";
  time_ms: Integer;
  /** False if a later version may have the time, too. */
  final: boolean;
  /** The version after it, or null if the version was head. */
  next: { epoch: Integer; version: Integer; timestamp_ms: Integer } | null;
}

export type Proven = Membership | Absence | Keys | Range | Receipt | Standing | Journals | Time | Lineage;
export type Result = Proven | Refused;

/** At least `keys`, or a policy that names the ledger's key, must be given. */
export interface EvidenceOptions {
  /** Public keys of the ledger. With several, one must do. */
  keys?: string | readonly string[];
  /** A C2SP policy: names the witnesses that are judged. */
  policy?: string | Bytes;
}

/** The steps of docs/verification.md, section 20. */
export type EvidenceStep = "format" | "keys" | "notes" | "proof" | "conflict";

/** The file proves nothing. */
export interface NoEvidence {
  valid: false;
  failed_step: EvidenceStep;
  error: string;
}

export interface SignedCheckpoint {
  size: Integer;
  root: string;
  /** The ledger's key that signed it. */
  signed_by: string;
}

/** What every valid evidence file shows. */
export interface Convicting {
  valid: true;
  failed_step: null;
  origin: string;
  a: SignedCheckpoint;
  b: SignedCheckpoint;
  /** One key signed both notes: its holder is convicted. If not, at least one of the two holders is. */
  one_key: boolean;
  /** Witnesses of the policy that are convicted: each cosigned both notes. */
  cosigners: { witness: string; key_name: string; time_a: Integer; time_b: Integer }[];
  /** Lines on both notes that are of no given key. Nobody has verified them. */
  unknown_cosigners: { key_name: string; key_id: string }[];
}

/** The log of note B had another root at the size of note A. */
export interface Contradiction extends Convicting {
  kind: "contradiction";
  root_in_b: string;
}

/** The key of note A had been replaced. */
export interface Late extends Convicting {
  kind: "late";
  /** The entry of B's log that replaced it. */
  index: Integer;
  replaced_by: string;
}

export type EvidenceResult = Contradiction | Late | NoEvidence;

/** A size of the log, and its root there in hex. */
export interface Mark {
  size: Integer;
  root: string;
}

/** What a client remembers from one answer to the next. It is plain data, for JSON. */
export interface Memory {
  /** `null` before the first answer. */
  marks: {
    /** The largest checkpoint that was seen. */
    newest: Mark;
    /** The last checkpoint that was proven to extend the ones before it. */
    proven: Mark;
  } | null;
  changes: readonly { sequence: Integer; vkey: string }[];
}

/** Why an answer whose proof holds is not believed. The first three are evidence of a fork. */
export type Distrust = "forked" | "changed" | "late" | "older" | "not_head" | "shrunk";

/** `memory` is what the client remembers from now on. */
export type Judged = { distrust: Distrust; error: string; memory: Memory } | { distrust: null; error: null; memory: Memory };

export class Verifier {
  constructor(module: WebAssembly.Module);
  /**
   * Judges a proof file.
   * @throws TypeError if no key is given, a key does not parse, or options make no sense.
   */
  verify(file: Bytes, options: Options): Result;
  /** The result as JSON text without control characters, as `coppice verify --json` prints it. */
  verifyText(file: Bytes, options: Options): string;
  /**
   * Judges an evidence file.
   * @throws TypeError if no key is given, a key does not parse, or options make no sense.
   */
  evidence(file: Bytes, options: EvidenceOptions): EvidenceResult;
  /** The result as JSON text without control characters, as `coppice evidence verify --json` prints it. */
  evidenceText(file: Bytes, options: EvidenceOptions): string;
}

/** The rules by which a client believes results of a verifier, from one to the next. */
export class Rules {
  constructor(module: WebAssembly.Module);
  /**
   * Judges a valid result by what a client remembers: whether it is no older than what was seen, of
   * the same log, and under the key in force. `seen` is the size of the newest checkpoint that was
   * known before the question; 0 if an older one is accepted.
   * @throws TypeError if what is remembered is malformed.
   */
  trust(memory: Memory, asked: { seen?: Integer; ofHead?: boolean }, result: Proven): Judged;
  /**
   * Judges two proofs of growth, from the checkpoint that was proven last and from the newest one.
   * They show one log if `isOneLog`; else their ends can't be compared: ask for both again.
   * @throws TypeError if what is remembered is malformed.
   */
  grown(
    memory: Memory,
    growth: { proven: Mark; newest: Mark },
    fromProven: Proven,
    fromNewest: Proven,
  ): Judged & { isOneLog?: boolean };
}

/** Loads the verifier: the `verify.wasm` beside this file, or another source of it. */
export function load(source?: URL | Bytes | WebAssembly.Module): Promise<Verifier>;

/** Loads the rules of trust: the `trust.wasm` beside this file, or another source of them. */
export function loadRules(source?: URL | Bytes | WebAssembly.Module): Promise<Rules>;

/** Text of strangers, safe to show to people: control characters are shown by number. */
export function visible(text: unknown): string;

/** Parses what `verifyText` gave; for `evidenceText`, name the type. */
export function parse<R = Result>(json: string): R;
