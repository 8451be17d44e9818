// Keys, values and texts of the API.

const encoder = new TextEncoder();

export function asBytes(data) {
  if (typeof data === "string") return encoder.encode(data);
  if (data instanceof ArrayBuffer) return new Uint8Array(data.slice(0));
  if (ArrayBuffer.isView(data)) return new Uint8Array(data.buffer, data.byteOffset, data.byteLength).slice();
  throw new TypeError("bytes are a string, a Uint8Array or an ArrayBuffer");
}

export function asKey(key) {
  const bytes = asBytes(key);
  if (bytes.length === 0) throw new RangeError("a key must have at least one byte");
  return bytes;
}

export const hex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");

export function unhex(text) {
  const digits = text.startsWith("0x") ? text.slice(2) : text;
  if (digits.length % 2 !== 0 || !/^[0-9a-f]*$/i.test(digits)) throw new RangeError("not hex digits");
  const bytes = new Uint8Array(digits.length / 2);
  for (let at = 0; at < bytes.length; at += 1) bytes[at] = parseInt(digits.slice(2 * at, 2 * at + 2), 16);
  return bytes;
}

/** Bytes for a path or a query: letters and digits as they are, all others with a percent sign. */
export function inUrl(bytes) {
  const plain = (byte) => (byte > 47 && byte < 58) || (byte > 64 && byte < 91) || (byte > 96 && byte < 123);
  const encoded = (byte) => `%${byte.toString(16).padStart(2, "0").toUpperCase()}`;
  return Array.from(bytes, (byte) => (plain(byte) ? String.fromCharCode(byte) : encoded(byte))).join("");
}

/** Whether a URL would take the key for a step in its path, in whatever form it stands there. */
export const isStep = (key) => key.length <= 2 && key.every((byte) => byte === 46);

/** The lowest key above all keys with this prefix; null if there is none. */
export function afterPrefix(prefix) {
  let length = prefix.length;
  while (length > 0 && prefix[length - 1] === 0xff) length -= 1;
  if (length === 0) return null;
  const after = prefix.slice(0, length);
  after[length - 1] += 1;
  return after;
}

/** The lowest key above this one. */
export function successor(key) {
  const next = new Uint8Array(key.length + 1);
  next.set(key);
  return next;
}

export function compare(a, b) {
  const length = Math.min(a.length, b.length);
  for (let at = 0; at < length; at += 1) if (a[at] !== b[at]) return a[at] - b[at];
  return a.length - b.length;
}

export const equal = (a, b) => (a === null || b === null ? a === b : compare(a, b) === 0);

export function joined(...parts) {
  const whole = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

/** A number in little-endian, of this many bytes. */
export function little(value, bytes) {
  let left = BigInt(value);
  return Uint8Array.from({ length: bytes }, () => {
    const byte = Number(left & 0xffn);
    left >>= 8n;
    return byte;
  });
}

export async function sha256(bytes) {
  const { subtle } = globalThis.crypto ?? {};
  if (!subtle) throw new Error("SHA-256 needs a secure context: HTTPS, or a page of localhost");
  return new Uint8Array(await subtle.digest("SHA-256", bytes));
}
