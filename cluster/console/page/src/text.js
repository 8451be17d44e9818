// Texts for people: keys and values of strangers, times, sizes, versions.
export { visible } from "../../../sdk/js/verify/index.js";

const HEX = /^(?:0x)?((?:[0-9a-f]{2})*)$/i;

export const hexOf = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");

export function bytesOfHex(text) {
  const [, digits] = HEX.exec(text) ?? [];
  return digits === undefined ? null : Uint8Array.from(digits.match(/../g) ?? [], (byte) => parseInt(byte, 16));
}

/** Text as UTF-8; `null` if the bytes are none. */
export function textOfBytes(bytes) {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    return null;
  }
}

/** Bytes as a person typed them: text, hex with `0x`, or text behind `text:`. */
export function typed(text) {
  if (text.startsWith("text:")) return new TextEncoder().encode(text.slice(5));
  if (text.startsWith("0x")) return bytesOfHex(text) ?? new TextEncoder().encode(text);
  return new TextEncoder().encode(text);
}

/** Bytes in the form that `typed` reads. */
export function typable(bytes) {
  const text = textOfBytes(bytes);
  if (text === null) return `0x${hexOf(bytes)}`;
  return text.startsWith("0x") || text.startsWith("text:") ? `text:${text}` : text;
}

// Characters that move the cursor, turn the direction of text, or are invisible.
export const CONTROL = /([\p{Cc}\p{Cf}\p{Zl}\p{Zp}\u115f\u1160\u2065\u3164\uffa0\u{e0000}-\u{e0fff}])/u;

/** A key as an argument of a command: nothing in it is for the shell or the terminal. */
export function argument(bytes) {
  const text = typable(bytes);
  const plain = CONTROL.test(text) || /^[-@]|^esc:/.test(text) ? `0x${hexOf(bytes)}` : text;
  return `'${plain.replaceAll("'", "'\\''")}'`;
}

/** Bytes of a text of the verifier, whose encoding it names. */
export function shown(text, encoding) {
  return encoding === "hex" ? (bytesOfHex(text) ?? new Uint8Array()) : new TextEncoder().encode(text);
}

/** Bytes of the JSON of the HTTP API: a text, or an object with hex. */
export function told(value) {
  if (typeof value === "string") return new TextEncoder().encode(value);
  return bytesOfHex(String(value?.hex ?? "")) ?? new Uint8Array();
}

/** Bytes for a path or query. */
export function encoded(bytes) {
  return Array.from(bytes, (byte) => {
    const c = String.fromCharCode(byte);
    return /[A-Za-z0-9._~-]/.test(c) ? c : `%${byte.toString(16).padStart(2, "0").toUpperCase()}`;
  }).join("");
}

export const sameBytes = (a, b) => a.length === b.length && a.every((byte, at) => byte === b[at]);

export function compareBytes(a, b) {
  for (let at = 0; at < Math.min(a.length, b.length); at += 1) {
    if (a[at] !== b[at]) return a[at] - b[at];
  }
  return a.length - b.length;
}

export const stamp = ({ epoch, version }) => `${epoch}.${version}`;

export const count = (number) => String(number).replace(/\B(?=(\d{3})+$)/g, "\u202f");

export function size(bytes) {
  const number = Number(bytes);
  if (number < 1024) return `${number} B`;
  const at = Math.min(4, Math.floor(Math.log2(number) / 10));
  return `${(number / 1024 ** at).toFixed(1)} ${["", "KiB", "MiB", "GiB", "TiB"][at]}`;
}

/** A time of the ledger's clock, in UTC. */
export function time(ms) {
  const date = new Date(Number(ms));
  return Number.isNaN(date.getTime()) ? `${ms} ms` : date.toISOString().replace("T", " ").replace(/\.\d+Z$/, " UTC");
}

/** A time span in words. */
export function ago(ms, now = Date.now()) {
  const seconds = Math.round((now - Number(ms)) / 1000);
  if (seconds < -2) return "in the future by your clock";
  const steps = [[60, "second"], [60, "minute"], [24, "hour"], [Infinity, "day"]];
  let left = Math.max(0, seconds);
  for (const [limit, unit] of steps) {
    if (left < limit) return left === 0 ? "just now" : `${left} ${unit}${left === 1 ? "" : "s"} ago`;
    left = Math.floor(left / limit);
  }
  return "";
}

/** Words of a problem that say what to do next. */
export function advice(error) {
  const known = {
    PRUNED: "Old versions were dropped for good. Read a newer one; the root log says who dropped them, and why.",
    ROLLED_BACK: "This version was rolled back. The root log says who did it, and why.",
    NOT_YET: "The ledger has not got that far. Wait, or read an older version.",
    DENIED: "The certificate of this console has no role for it.",
    UNAVAILABLE: "The ledger does not answer now. Try again in a moment.",
    INVALID_ARGUMENT: "Change the request.",
    RESERVED: "Such keys belong to the ledgers of members.",
  };
  return known[error.reason] ?? "";
}
