import type { Bytes, Integer, Rules, Verifier } from "@coppice/verify";

/** A key or a value. Text is taken as UTF-8. */
export type Data = string | Bytes;

/** A version, and the epoch in which it was made. Each rollback begins an epoch. */
export interface Stamp {
  epoch: Integer;
  version: Integer;
}

/** A key with its value, and the version of its last change. */
export interface Record {
  key: Uint8Array;
  value: Uint8Array;
  lastChanged: Stamp;
}

/** An answer that is proven at `version`, under a checkpoint that the ledger has signed. */
export interface Verified<T> {
  verified: true;
  value: T;
  version: Stamp;
  checkpoint: { size: Integer; root: string };
  /** The file that proves it, for others: `coppice verify` takes it. */
  proof: Uint8Array;
}

/** The word of a coordinator, which nobody has checked. */
export interface Unverified<T> {
  verified: false;
  value: T;
}

/** The version that has a batch. `replayed`: it was sent before; `null` if a receipt does not say. */
export interface Committed {
  version: Stamp;
  replayed: boolean | null;
}

/** Changes of a key, newest first. `truncated`: older ones are not shown. */
export interface History {
  changes: { version: Stamp; value: Uint8Array | null }[];
  truncated: boolean;
}

/** A key whose record differs between two versions. A side is `null` where it has none. */
export interface Difference {
  key: Uint8Array;
  before: Record | null;
  after: Record | null;
}

/** An entry of the root log. `fields` has all of it, as `coppice log --json` prints it. */
export interface Entry {
  sequence: number;
  kind: string;
  version: Stamp;
  timestampMs: Integer;
  fields: { [name: string]: unknown };
}

export interface Call {
  /** Ends the call with the signal's reason. A write may have been written all the same. */
  signal?: AbortSignal;
}

export interface Conditions extends Call {
  /** Only if the key has no record. */
  ifAbsent?: boolean;
  /** Only if the record was changed last at this version. */
  ifChanged?: Stamp;
}

/** Keys from `low` on and below `high`, or those that begin with `prefix`. */
export type Bounds =
  | { low?: Data; high?: Data | null; prefix?: undefined }
  | { prefix: Data; low?: undefined; high?: undefined };

export interface Read extends Call {
  version?: Integer;
}

export interface Options {
  /** For proxies and certificates; `fetch` of the platform if it is not given. */
  fetch?: (url: string, options: RequestInit) => Promise<Response>;
  /** Longest time of an attempt. */
  timeoutMs?: number;
  /** Longest time for which a call is repeated while the ledger is unavailable. */
  patienceMs?: number;
  /** Largest answer. */
  answerBytesMax?: number;
}

/** Keeps what a client knows, for the next one. Only this program may be able to write there. */
export interface Store {
  load(): Promise<string | null | undefined> | string | null | undefined;
  save(text: string): Promise<void> | void;
}

export interface TrustOptions extends Options {
  /** The ledger's public key: the text of `ledger.vkey`. */
  trust: string;
  store?: Store;
  /** A verifier that is loaded already. */
  verifier?: Verifier;
  rules?: Rules;
  /** Time between proofs that the log only grew (10 s), and the longest time without one (60 s). */
  growth?: { intervalMs?: number; patienceMs?: number };
}

/** Changes of which all happen or none. Each key occurs once. */
export class Batch {
  put(key: Data, value: Data): this;
  delete(key: Data): this;
  get puts(): [key: Uint8Array, value: Uint8Array][];
  get deletes(): Uint8Array[];
}

/** `Done` is the form of an answer to a commit. */
interface Writes<Done> {
  put(key: Data, value: Data, options?: Conditions): Promise<Done>;
  delete(key: Data, options?: Omit<Conditions, "ifAbsent">): Promise<Done>;
  commit(batch: Batch, options?: Call): Promise<Done>;
}

/** Numbers its writes, so that each takes place at most once, however often it is sent. */
export interface Session<Done> extends Writes<Done> {
  readonly id: Uint8Array;
  highest: bigint;
}

interface Ledger<Done> extends Writes<Done> {
  /** Opens a session, or finds it again by its 16 bytes. */
  session(id?: Bytes, options?: Call): Promise<Session<Done>>;
  history(key: Data, options?: Read & { limit?: number }): Promise<Unverified<History>>;
  diff(from: Integer, to: Integer, options?: Bounds & Call): Promise<Unverified<Difference[]>>;
  log(from?: number, options?: Call & { to?: number }): AsyncGenerator<Unverified<Entry>, void, undefined>;
  watch(from?: number, options?: Call & { quietMs?: number }): AsyncGenerator<Unverified<Entry>, void, undefined>;
}

export class Client implements Ledger<Verified<Committed>> {
  private constructor();
  /** @throws TypeError if the key does not parse, or the store has the memory of another ledger. */
  static open(endpoints: string | readonly string[], options: TrustOptions): Promise<Client>;
  /** What a later client should know. */
  memory(): string;
  head(options?: Call): Promise<Verified<Stamp>>;
  get(key: Data, options?: Read & { stale?: boolean }): Promise<Verified<Record | null>>;
  getMany(keys: readonly Data[], options?: Read): Promise<Verified<Record | null>[]>;
  range(options?: Bounds & Read & { page?: number }): AsyncGenerator<Verified<Record[]>, void, undefined>;
  put(key: Data, value: Data, options?: Conditions): Promise<Verified<Committed>>;
  delete(key: Data, options?: Omit<Conditions, "ifAbsent">): Promise<Verified<Committed>>;
  commit(batch: Batch, options?: Call): Promise<Verified<Committed>>;
  session(id?: Bytes, options?: Call): Promise<Session<Verified<Committed>>>;
  history(key: Data, options?: Read & { limit?: number }): Promise<Unverified<History>>;
  diff(from: Integer, to: Integer, options?: Bounds & Call): Promise<Unverified<Difference[]>>;
  log(from?: number, options?: Call & { to?: number }): AsyncGenerator<Unverified<Entry>, void, undefined>;
  watch(from?: number, options?: Call & { quietMs?: number }): AsyncGenerator<Unverified<Entry>, void, undefined>;
}

export class UnverifiedClient implements Ledger<Unverified<Committed>> {
  private constructor();
  static open(endpoints: string | readonly string[], options?: Options): Promise<UnverifiedClient>;
  head(options?: Call): Promise<Unverified<Stamp>>;
  get(key: Data, options?: Read & { stale?: boolean }): Promise<Unverified<Record | null>>;
  range(options?: Bounds & Read & { page?: number }): AsyncGenerator<Unverified<Record[]>, void, undefined>;
  put(key: Data, value: Data, options?: Conditions): Promise<Unverified<Committed>>;
  delete(key: Data, options?: Omit<Conditions, "ifAbsent">): Promise<Unverified<Committed>>;
  commit(batch: Batch, options?: Call): Promise<Unverified<Committed>>;
  session(id?: Bytes, options?: Call): Promise<Session<Unverified<Committed>>>;
  history(key: Data, options?: Read & { limit?: number }): Promise<Unverified<History>>;
  diff(from: Integer, to: Integer, options?: Bounds & Call): Promise<Unverified<Difference[]>>;
  log(from?: number, options?: Call & { to?: number }): AsyncGenerator<Unverified<Entry>, void, undefined>;
  watch(from?: number, options?: Call & { quietMs?: number }): AsyncGenerator<Unverified<Entry>, void, undefined>;
}

/** A call that failed. `outcomeUnknown`: a write may have been written, or may still be. */
export class CoppiceError extends Error {
  readonly outcomeUnknown: boolean;
}

/** The ledger refused, or nobody answered in time. */
export class Refused extends CoppiceError {
  /** A name of docs/http.md; empty if no coordinator gave one. */
  readonly reason: string;
  /** The code of HTTP; 0 without an answer. */
  readonly status: number;
}

/** An answer that is not proven, or whose proof is of something else. */
export class Untrusted extends CoppiceError {
  /** The step of docs/verification.md that failed, if one did. */
  readonly step: string;
  /** The rule that the proof breaks, if its steps hold. */
  readonly reason: "" | "forked" | "changed" | "late" | "older" | "not_head" | "shrunk" | "unproven";
  readonly proof: Uint8Array;
}

/** The ledger has shown two logs. Keep `known` and `proof`: both are signed evidence. */
export class Forked extends Untrusted {
  readonly known: Uint8Array;
}
