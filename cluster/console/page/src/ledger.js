// What this page believes of the ledger: the key and policy of its user, and the newest checkpoint
// that it has verified. All verdicts are made here.
//
// A fact is *proven* if the verifier accepted a file for exactly this question, under a key that
// came from the user, and if its checkpoint belongs to the one log that this page has seen. Under a
// key that the server itself has named, the same fact is only *said*.
import * as api from "./api.js";
import { evidence, verify } from "./judge.js";

/** Attempts to get two proofs that end in the same checkpoint, while the log grows. */
const GROWTH_TRIES = 5;
/** Longest file that a browser is asked to keep: a checkpoint is in every one, a short one too. */
const KEPT_BYTES_MAX = 32 << 10;
const KEY_STORED = "coppice-key";
const CHECKPOINT_STORED = "coppice-checkpoint:";

/** An answer that does not hold. The page shows nothing else of it. */
export class Broken extends Error {
  constructor(step, why, files) {
    super(why);
    this.step = step;
    this.files = files;
  }
}

const state = { settings: null, key: null, from: "nobody", policy: null, seen: null, kept: null, origin: null };
const listeners = new Set();

/** What is believed now. */
export const trust = () => ({ ...state });
export const onTrust = (listener) => (listeners.add(listener), () => listeners.delete(listener));

const stored = (name) => {
  try {
    return localStorage.getItem(name);
  } catch {
    return null;
  }
};
const store = (name, value) => {
  try {
    if (value === null) localStorage.removeItem(name);
    else localStorage.setItem(name, value);
  } catch {
    // A browser may forbid it: then nothing is remembered.
  }
};

const base64 = (bytes) => btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
const bytesOf = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));

function changed() {
  for (const listener of listeners) listener();
}

/** Learns whom to trust: the settings of the user's own program, else the stored key. */
export async function begin() {
  state.settings = await api.json("settings.json");
  const { key, policy } = state.settings;
  state.policy = policy ?? null;
  if (key || policy) {
    Object.assign(state, { key: key ?? null, from: "program" });
  } else if (stored(KEY_STORED)) {
    Object.assign(state, { key: stored(KEY_STORED), from: "browser" });
  } else {
    const { vkey } = await api.json("v1/status");
    Object.assign(state, { key: vkey || null, from: "server" });
  }
  changed();
}

/** Takes a key that the user has pasted, or forgets it. */
export function choose(key) {
  store(KEY_STORED, key);
  for (const name of Object.keys(localStorage)) if (name.startsWith(CHECKPOINT_STORED)) store(name, null);
  location.reload();
}

/** The badge of what was verified: under a key of the server's, nothing is more than its word. */
export const badge = () => (state.from === "server" || state.from === "nobody" ? "said" : "proven");

const believed = (more) => ({
  ...(state.key && { keys: state.key }),
  ...(state.policy && { policy: state.policy }),
  ...more,
});

/** Judges a file of the server. Throws `Broken` if it does not hold. */
async function judged(file, options) {
  let result;
  try {
    result = await verify(file, believed(options));
  } catch (error) {
    if (error.misuse) throw new Broken("trust", error.message);
    throw new Broken("format", error.message);
  }
  if (!result.valid) throw new Broken(result.failed_step, result.error, [["answer.proof", file]]);
  return result;
}

const cosigned = () => (state.policy ? "&cosigned=true" : "");

/** The verified proof that the log of a newer checkpoint goes on from that of `size` entries. */
async function standing(size) {
  const file = await api.proof(`v1/checkpoint?since=${size}${cosigned()}`);
  const result = await judged(file);
  if (result.kind !== "standing" || Number(result.old_size) !== Number(size)) {
    throw new Broken("question", "the answer shows the growth of another log", [["answer.proof", file]]);
  }
  return { file, result };
}

const named = (result, file) => ({
  size: Number(result.checkpoint.size),
  root: result.checkpoint.root,
  time: Number(result.timestamp_ms),
  version: result.newest,
  origin: result.checkpoint.origin,
  file,
});

/** The contradiction of two checkpoints, of which both files are kept. */
function fork(a, b) {
  const words =
    `the server shows two logs: one of ${a.size} entries with root ${a.root}, and one of ${b.size} entries with root ${b.root} ` +
    "that does not go on from it. Keep both files: they are evidence";
  return new Broken("fork", words, [["one.proof", a.file], ["other.proof", b.file]]);
}

/** Checks that two checkpoints are of one log. Returns the larger one. */
async function joined(a, b) {
  const [small, large] = a.size <= b.size ? [a, b] : [b, a];
  if (small.size === large.size) {
    if (small.root !== large.root) throw fork(a, b);
    return large;
  }
  for (let tries = 0; tries < GROWTH_TRIES; tries += 1) {
    const [one, other] = await Promise.all([standing(small.size), standing(large.size)]);
    const [first, second] = [named(one.result, one.file), named(other.result, other.file)];
    if (one.result.old_root !== small.root) throw fork(small, first);
    if (other.result.old_root !== large.root) throw fork(large, second);
    if (first.size === second.size) {
      if (first.root !== second.root) throw fork(first, second);
      return first;
    }
  }
  throw new Broken("growth", "the server does not prove that its log has only grown");
}

/** Only one check at a time compares checkpoints, so each joins the one before. */
let line = Promise.resolve();
function follow(result, file) {
  const next = line.then(async () => {
    const now = named(result, file);
    const before = state.seen ?? recalled(now.origin);
    const kept = before ? await joined(before, now) : now;
    state.seen = kept.file && kept.size >= now.size ? kept : now;
    if (badge() === "proven" && state.seen.file) remember(state.seen);
    changed();
  });
  line = next.catch(() => {});
  return next;
}

/** The checkpoint that this browser saw last, in an earlier visit. */
function recalled(origin) {
  if (state.from === "server") return null;
  try {
    const { file, ...rest } = JSON.parse(stored(CHECKPOINT_STORED + origin));
    state.kept = rest;
    return { ...rest, origin, file: bytesOf(file) };
  } catch {
    return null;
  }
}

function remember({ size, root, time, version, origin, file }) {
  if (file.length > KEPT_BYTES_MAX) return;
  const kept = { size, root, time, version, at: Date.now(), file: base64(file) };
  store(CHECKPOINT_STORED + origin, JSON.stringify(kept));
}

/** The largest log that this page has verified, in entries. */
const sizeSeen = () => state.seen?.size ?? 0;

/**
 * Asks for a proof file and verifies it. `expect` is the question; `version` the one that was asked
 * for, as `VERSION` or `EPOCH.VERSION`, or empty for head.
 */
export async function prove(path, { expect, version }) {
  const before = sizeSeen();
  const file = await api.proof(path + (path.includes("?") ? cosigned() : cosigned().replace("&", "?")));
  const [wanted, epoch] = String(version ?? "").split(".").reverse();
  const result = await judged(file, { expect: { ...expect, ...(wanted && { version: wanted }) } });
  if (epoch && String(result.epoch) !== epoch) {
    throw new Broken("question", "the answer is of another epoch", [["answer.proof", file]]);
  }
  const isHead = String(result.version) === String(result.newest.version) && String(result.epoch) === String(result.newest.epoch);
  if (!wanted && !isHead) throw new Broken("question", "the answer is not of the newest version under its own checkpoint", [["answer.proof", file]]);
  if (!wanted && Number(result.checkpoint.size) < before) {
    throw new Broken("stale", `the answer is of ${result.checkpoint.size} entries, and this page has seen ${before}`, [["answer.proof", file]]);
  }
  await follow(result, file);
  return { result, file, badge: badge() };
}

/** The newest state, under a checkpoint of a log that goes on from the one seen before. */
export async function proveHead() {
  const before = sizeSeen();
  const { file, result } = await standing(before || 1);
  if (Number(result.checkpoint.size) < before) {
    throw new Broken("stale", `the log has ${result.checkpoint.size} entries, and this page has seen ${before}`, [["answer.proof", file]]);
  }
  await follow(result, file);
  return { result, file, badge: badge(), kept: state.kept };
}

/** Judges a file of anybody, offline. */
export async function judge(file, { key, policy, newer, expect }) {
  const options = {
    ...(key && { keys: key }),
    ...(policy && { policy }),
    ...(newer && { newer }),
    ...(expect && { expect }),
  };
  const head = new TextDecoder().decode(file.subarray(0, 64));
  if (head.startsWith("coppice-evidence/")) {
    const { newer: _, expect: __, ...rest } = options;
    return { ...(await evidence(file, rest)), is_evidence: true };
  }
  return verify(file, options);
}
