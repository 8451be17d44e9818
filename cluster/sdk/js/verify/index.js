// Checks proof files and evidence of a Coppice ledger, offline: glue around the module that
// `verify.wasm` is. The module has no imports, so it can neither read nor send anything.

const ABI = 1;
// Kinds of the fields of a request (docs/proof-files.md).
const FIELD = {
  file: 1,
  key: 2,
  policy: 3,
  newer: 4,
  expectKey: 5,
  low: 6,
  high: 7,
  batch: 8,
  version: 9,
  encoding: 10,
};
const OPTIONS = ["keys", "policy", "newer", "expect", "encoding"];
const EVIDENCE_OPTIONS = ["keys", "policy"];
const EXPECTATIONS = ["keys", "range", "batch", "version"];
// Numbers of docs/proof-files.md, "Rules of trust".
const DISTRUST = [
  null,
  ["forked", "the log has two roots of the same size: keep both checkpoints, they are evidence"],
  ["changed", "a different key change than the one that is known: keep both, they are evidence of a fork"],
  ["late", "its checkpoint is signed by a key that the ledger had replaced before: keep it, it is evidence"],
  ["older", "it is older than what this client had seen before it asked"],
  ["not_head", "the version that was read is not the one that was asked for"],
  ["shrunk", "the proof ends below a checkpoint that was seen before it was asked for"],
];
const [IS_NEWEST, IS_PROVEN, HAS_CHANGES, IS_ONE_LOG] = [8, 9, 10, 11].map((bit) => 1 << bit);
// An instance whose memory has grown beyond this is not kept for the next file.
const KEPT_BYTES_MAX = 16 << 20;

/**
 * Loads the verifier. Without an argument, it is the `verify.wasm` beside this file.
 */
export async function load(source = new URL("./verify.wasm", import.meta.url)) {
  return new Verifier(await compiled(source));
}

/** Loads the rules of trust. Without an argument, they are the `trust.wasm` beside this file. */
export async function loadRules(source = new URL("./trust.wasm", import.meta.url)) {
  return new Rules(await compiled(source));
}

async function compiled(source) {
  if (source instanceof WebAssembly.Module) return source;
  return WebAssembly.compile(source instanceof URL ? await fetched(source) : source);
}

async function fetched(url) {
  if (url.protocol === "file:") {
    const { readFile } = await import("node:fs/promises");
    return readFile(url);
  }
  const response = await fetch(url);
  if (!response.ok) throw new Error(`${url}: ${response.status}`);
  return response.arrayBuffer();
}

/** A module whose instance is kept between calls. */
class Host {
  #module;
  #instance = null;

  constructor(module) {
    this.#module = module;
    this.#exports();
  }

  /** Calls with a request. `take` reads the answer while it is there. */
  run(name, request, take) {
    const exports = this.#exports();
    const { memory, alloc, free, [name]: judge } = exports;
    // After a trap, the instance can't be used again.
    const instance = this.#instance;
    this.#instance = null;
    const at = alloc(request.length) >>> 0;
    if (at === 0) throw new RangeError("the files are too long: a proof file has at most 64 MiB");
    new Uint8Array(memory.buffer, at, request.length).set(request);
    const answer = take(judge(at, request.length), exports);
    free(at, request.length);
    if (memory.buffer.byteLength <= KEPT_BYTES_MAX) this.#instance = instance;
    return answer;
  }

  #exports() {
    this.#instance ??= new WebAssembly.Instance(this.#module, {});
    const { exports } = this.#instance;
    if (exports.abi?.() !== ABI) throw new Error("the module is not the verifier that belongs to this file");
    return exports;
  }
}

export class Verifier {
  #host;

  constructor(module) {
    this.#host = new Host(module);
  }

  /** Judges a proof file. Throws only if the call itself makes no sense, or if memory runs out. */
  verify(file, options) {
    return parse(this.verifyText(file, options));
  }

  /** Like `verify`, as the JSON text that `coppice verify --json` prints. */
  verifyText(file, options) {
    return this.#call("verify", request(file, options));
  }

  /** Judges an evidence file. Throws only if the call itself makes no sense, or if memory runs out. */
  evidence(file, options) {
    return parse(this.evidenceText(file, options));
  }

  /** Like `evidence`, as the JSON text that `coppice evidence verify --json` prints. */
  evidenceText(file, options = {}) {
    known(options, EVIDENCE_OPTIONS);
    return this.#call("evidence", request(file, options));
  }

  #call(name, request) {
    const text = this.#host.run(name, request, (packed, { memory, free }) => {
      const answer = BigInt.asUintN(64, packed);
      const [from, length] = [Number(answer & 0xffffffffn), Number(answer >> 32n)];
      const text = new TextDecoder().decode(new Uint8Array(memory.buffer, from, length));
      free(from, length);
      return text;
    });
    if (text.startsWith('{"error":')) throw new TypeError(JSON.parse(text).error.message);
    return text;
  }
}

/** The rules by which a client believes results of a verifier, from one to the next. */
export class Rules {
  #host;

  constructor(module) {
    this.#host = new Host(module);
  }

  /**
   * Judges a result of `verify` by what a client remembers. Changes nothing: what the client should
   * remember from now on is in the answer.
   */
  trust(memory, asked, result) {
    const { marks, changes } = memory;
    const none = { size: 0, root: "" };
    const { newest, proven } = marks ?? { newest: none, proven: none };
    const numbers = [asked.seen ?? 0, result.version, result.newest.version, asked.ofHead ? 1 : 0, changes.length];
    const { bits, ...answer } = this.#number("trust", [
      ...[newest, proven, result.checkpoint].map(mark), ...numbers.map(u64), ...[...changes, ...result.key_changes].map(change),
    ]);
    if (answer.distrust) return { ...answer, memory };
    const shown = bits & HAS_CHANGES ? result.key_changes : changes;
    return { ...answer, memory: { marks: marked(marks, bits, result.checkpoint), changes: shown } };
  }

  /**
   * Judges two results of kind `standing` by what a client remembers: the growth from the checkpoint
   * that was proven last, and the growth from the newest one. `growth` has both, as they were when
   * the proofs were asked for. Changes nothing.
   */
  grown(memory, growth, fromProven, fromNewest) {
    const { newest, proven } = memory.marks;
    for (const result of [fromProven, fromNewest]) {
      if (result.kind !== "standing") throw new TypeError("growth is shown by proofs of kind standing");
    }
    const { bits, ...answer } = this.#number("grown", [
      mark(growth.proven), mark(growth.newest), mark(newest), mark(proven),
      ...[fromProven, fromNewest].flatMap((result) => [mark({ size: result.old_size, root: result.old_root }), mark(result.checkpoint)]),
    ]);
    if (answer.distrust) return { ...answer, memory };
    const marks = marked(memory.marks, bits, fromProven.checkpoint);
    return { ...answer, isOneLog: (bits & IS_ONE_LOG) !== 0, memory: { ...memory, marks } };
  }

  #number(name, parts) {
    const number = this.#host.run(name, concatenated(parts), (answer) => answer);
    const [distrust, error] = DISTRUST[number & 0xff] ?? [null, null];
    if (number & 0xff && !distrust) throw new TypeError("what is remembered is malformed");
    return { distrust, error, bits: number };
  }
}

/** The fields of a request, one after the other: u8 kind, u32 length, bytes. */
function request(file, options = {}) {
  known(options, OPTIONS);
  const { keys, policy, newer, expect = {}, encoding } = options;
  known(expect, EXPECTATIONS);
  const fields = [[FIELD.file, bytes(file)]];
  const given = (kind, value) => {
    if (value !== undefined && value !== null) fields.push([kind, text(value)]);
  };
  for (const key of list(keys)) given(FIELD.key, key);
  given(FIELD.policy, policy);
  given(FIELD.newer, newer);
  for (const key of list(expect.keys)) given(FIELD.expectKey, key);
  if (expect.range !== undefined && expect.range !== null) {
    const [low, high, ...more] = list(expect.range);
    if (more.length > 0) throw new TypeError("a range has two bounds");
    // A range that is expected is always asked for, even if it has no bounds.
    given(FIELD.low, low ?? "");
    given(FIELD.high, high);
  }
  given(FIELD.batch, expect.batch);
  given(FIELD.version, typeof expect.version === "string" ? expect.version : expect.version?.toString());
  given(FIELD.encoding, encoding);
  return joined(fields);
}

function joined(fields) {
  const request = new Uint8Array(fields.reduce((sum, [, value]) => sum + 5 + value.length, 0));
  const view = new DataView(request.buffer);
  let at = 0;
  for (const [kind, value] of fields) {
    view.setUint8(at, kind);
    view.setUint32(at + 1, value.length, true);
    request.set(value, at + 5);
    at += 5 + value.length;
  }
  return request;
}

// Parts of requests to the rules of trust, which have a fixed form.

function u64(value) {
  const bytes = new Uint8Array(8);
  new DataView(bytes.buffer).setBigUint64(0, BigInt(value), true);
  return bytes;
}

function unhex(text) {
  const bytes = new Uint8Array(32);
  for (const [at, byte] of (text.match(/../g) ?? []).entries()) bytes[at] = parseInt(byte, 16);
  return bytes;
}

const mark = ({ size, root }) => concatenated([u64(size), unhex(root)]);

/** A key change: the entry of the log, and the public key at the end of the text. */
function change({ sequence, vkey }) {
  const [, encoded] = /\+([A-Za-z0-9+/]{44})$/.exec(vkey) ?? [];
  if (!encoded) throw new TypeError("a key change without a public key");
  return concatenated([u64(sequence), Uint8Array.from(atob(encoded), (c) => c.charCodeAt(0)).subarray(1)]);
}

function marked(marks, bits, { size, root }) {
  const shown = { size, root };
  return {
    newest: bits & IS_NEWEST ? shown : marks.newest,
    proven: bits & IS_PROVEN ? shown : marks.proven,
  };
}

function concatenated(parts) {
  const whole = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

/** A misspelt option is refused, because its expectation would not be checked. */
function known(options, names) {
  for (const name of Object.keys(options)) {
    if (!names.includes(name)) throw new TypeError(`${name} is not an option`);
  }
}

function list(value = []) {
  return Array.isArray(value) ? value : [value];
}

function text(value) {
  return typeof value === "string" ? new TextEncoder().encode(value) : bytes(value);
}

function bytes(value) {
  if (value instanceof ArrayBuffer) return new Uint8Array(value);
  if (ArrayBuffer.isView(value)) return new Uint8Array(value.buffer, value.byteOffset, value.byteLength);
  throw new TypeError("bytes are a Uint8Array or an ArrayBuffer");
}

/** Parses an answer. Integers that a number can't hold become strings of digits. */
export function parse(json) {
  if (!/:\d{16}/.test(json)) return JSON.parse(json);
  let inString = false;
  const exact = json.replace(/\\.|"|\d{16,20}/g, (part) => {
    if (part === '"') inString = !inString;
    return inString || part < "0" || part > ":" || Number.isSafeInteger(Number(part)) ? part : `"${part}"`;
  });
  return JSON.parse(exact);
}

// Characters that move the cursor, turn the direction of text, or are invisible.
const CONTROL = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\u115f\u1160\u2065\u3164\uffa0\u{e0000}-\u{e0fff}\\]/gu;

/** Text of strangers, safe to show to people: control characters by number, as the command shows them. */
export function visible(text) {
  return String(text).replace(CONTROL, (c) => {
    if (c === "\\") return "\\\\";
    const number = c.codePointAt(0).toString(16);
    return c < "\x80" ? `\\x${number.padStart(2, "0")}` : `\\u{${number}}`;
  });
}
