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
// An instance whose memory has grown beyond this is not kept for the next file.
const KEPT_BYTES_MAX = 16 << 20;

/**
 * Loads the verifier. Without an argument, it is the `verify.wasm` beside this file.
 */
export async function load(source = new URL("./verify.wasm", import.meta.url)) {
  if (source instanceof WebAssembly.Module) return new Verifier(source);
  const bytes = source instanceof URL ? await fetched(source) : source;
  return new Verifier(await WebAssembly.compile(bytes));
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

export class Verifier {
  #module;
  #instance = null;

  constructor(module) {
    this.#module = module;
    this.#exports();
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
    const { memory, alloc, free, [name]: judge } = this.#exports();
    // After a trap, the instance can't be used again.
    const instance = this.#instance;
    this.#instance = null;
    const at = alloc(request.length) >>> 0;
    if (at === 0) throw new RangeError("the files are too long: a proof file has at most 64 MiB");
    new Uint8Array(memory.buffer, at, request.length).set(request);
    const answer = BigInt.asUintN(64, judge(at, request.length));
    const [from, length] = [Number(answer & 0xffffffffn), Number(answer >> 32n)];
    const text = new TextDecoder().decode(new Uint8Array(memory.buffer, from, length));
    free(at, request.length);
    free(from, length);
    if (memory.buffer.byteLength <= KEPT_BYTES_MAX) this.#instance = instance;
    if (text.startsWith('{"error":')) throw new TypeError(JSON.parse(text).error.message);
    return text;
  }

  #exports() {
    this.#instance ??= new WebAssembly.Instance(this.#module, {});
    const { exports } = this.#instance;
    if (exports.abi?.() !== ABI) throw new Error("the module is not the verifier that belongs to this file");
    return exports;
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
