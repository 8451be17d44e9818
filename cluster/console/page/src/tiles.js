// The root log as its server publishes it (C2SP tlog-tiles). A page of entries is proven if, with
// the hashes of all others, they give the root that the ledger's key has signed.
import * as api from "./api.js";
import { evidence } from "./judge.js";
import { sha256 } from "./sha256.js";
import { hexOf } from "./text.js";

const WIDTH = 256;
/** Levels of a tile: each has the roots of 2^8 hashes of the one below. */
const HEIGHT = 8;

const base64 = (bytes) => btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
const bytesOf = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));

/** The parts of a signed note, of which nothing is verified yet. */
export function parseNote(note) {
  const [origin, size, root] = note.split("\n");
  if (!/^(0|[1-9]\d{0,14})$/.test(size ?? "")) throw new Error("the checkpoint is malformed");
  return { note, origin, size: Number(size), root: bytesOf(root) };
}

/**
 * Whether a key has signed a note. The verifier judges evidence: two notes that agree convict
 * nobody, but it sees that only after both signatures were found to hold.
 */
export async function isSigned({ note, size, root }, key) {
  const length = new TextEncoder().encode(note).length;
  const text = `coppice-evidence/v1\ncontradiction\nsize ${size}\nroot ${base64(root)}\na ${length}\n${note}b ${length}\n${note}`;
  const { failed_step: step } = await evidence(new TextEncoder().encode(text), { keys: key });
  return step === "conflict";
}

/** The path of a tile or bundle that has `width` parts. */
function pathOf(kind, number, width) {
  const digits = String(number).padStart(Math.ceil(String(number).length / 3) * 3, "0");
  const groups = digits.match(/.{3}/g);
  const path = groups.map((group, at) => (at < groups.length - 1 ? `x${group}` : group)).join("/");
  return `tile/${kind}/${path}${width < WIDTH ? `.p/${width}` : ""}`;
}

/** The number of hashes of a level in a log of this size. */
const hashesAt = (level, size) => Math.floor(size / 2 ** (HEIGHT * level));

/** The entries of a bundle. */
export async function bundle(number, size) {
  const width = Math.min(WIDTH, size - number * WIDTH);
  const { bytes } = await api.get(pathOf("entries", number, width));
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const entries = [];
  for (let at = 0; at < bytes.length; ) {
    const length = view.getUint16(at);
    entries.push(bytes.slice(at + 2, at + 2 + length));
    at += 2 + length;
  }
  if (entries.length !== width) throw new Error("the entries are not those that were asked for");
  return entries;
}

const leaf = (entry) => sha256(Uint8Array.of(0, ...entry));
const inner = (left, right) => sha256(Uint8Array.of(1, ...left, ...right));

/** The largest power of two below a number. */
function split(count) {
  let power = 1;
  while (power * 2 < count) power *= 2;
  return power;
}

/** The root of a log with these entries from `from` on, whose other hashes its server names. */
export async function rootWith(from, entries, size) {
  const leaves = entries.map(leaf);
  const tiles = new Map();
  const tile = (level, number) => {
    const name = `${level}/${number}`;
    const width = Math.min(WIDTH, hashesAt(level, size) - number * WIDTH);
    if (!tiles.has(name)) tiles.set(name, api.get(pathOf(level, number, width)).then(({ bytes }) => bytes));
    return tiles.get(name);
  };
  /** The root of a full subtree of 2^`power` entries, from the tiles. */
  const stored = async (low, power) => {
    const level = Math.floor(power / HEIGHT);
    const [first, count] = [low / 2 ** (HEIGHT * level), 2 ** (power % HEIGHT)];
    const bytes = await tile(level, Math.floor(first / WIDTH));
    const at = first % WIDTH;
    let hashes = Array.from({ length: count }, (_, i) => bytes.subarray(32 * (at + i), 32 * (at + i + 1)));
    while (hashes.length > 1) hashes = Array.from({ length: hashes.length / 2 }, (_, i) => inner(hashes[2 * i], hashes[2 * i + 1]));
    return hashes[0];
  };
  const root = async (low, high) => {
    const count = high - low;
    const isOurs = low < from + leaves.length && high > from;
    if (count === 1 && isOurs) return leaves[low - from];
    const power = Math.log2(count);
    if (!isOurs && Number.isInteger(power)) return stored(low, power);
    const middle = low + split(count);
    return inner(await root(low, middle), await root(middle, high));
  };
  return root(0, size);
}

const KINDS = ["genesis", "commit", "rollback", "prune", "reshard", "config", "key", "anchor"];

/** A header as the JSON of the HTTP API names its fields (docs/verification.md, section 9). */
export function decode(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  let at = 0;
  const take = (length) => {
    if (at + length > bytes.length) throw new Error("an entry ends early");
    at += length;
    return bytes.subarray(at - length, at);
  };
  const number = (length) => {
    take(length);
    const value = length === 8 ? view.getBigUint64(at - 8, true) : length === 4 ? view.getUint32(at - 4, true) : length === 2 ? view.getUint16(at - 2, true) : view.getUint8(at - 1);
    return value <= Number.MAX_SAFE_INTEGER ? Number(value) : String(value);
  };
  const text = () => new TextDecoder().decode(take(number(2)));
  const stamp = () => ({ epoch: number(8), version: number(8) });
  const format = number(1);
  const kind = number(1);
  const entry = { kind: KINDS[kind] ?? `kind ${kind}`, cluster_id: hexOf(take(16)), sequence: number(8), ...stamp(), timestamp_ms: number(8) };
  Object.assign(entry, { state_root: hexOf(take(32)), state_leaves: number(4), shard_map_hash: hexOf(take(32)) });
  Object.assign(entry, { journal_root: hexOf(take(32)), journal_count: number(4), epochs_root: hexOf(take(32)), epoch_pairs: number(4) });
  Object.assign(entry, { admin_sequence: number(8), ...(format > 1 && { key_changes: number(4) }), previous: hexOf(take(32)), entry_hash: hexOf(leaf(bytes)) });
  const length = number(2);
  if (at + length !== bytes.length) throw new Error("an entry has another length than it says");
  const by = () => ({ principal: text(), reason: text() });
  if (entry.kind === "rollback") entry.rollback = { target: stamp(), head_before: stamp(), ...by() };
  if (entry.kind === "prune") entry.prune = { boundary: number(8), ...by() };
  if (entry.kind === "key") {
    entry.key = { number: number(4), old: hexOf(take(32)), new: hexOf(take(32)) };
    take(128);
    Object.assign(entry.key, by());
  }
  if (entry.kind === "anchor" && number(1) === 1) entry.anchor = { stamped_size: number(8), stamped_root: hexOf(take(32)), tokens: [] };
  return entry;
}
