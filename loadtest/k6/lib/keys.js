// Keys, values and the draws of YCSB. Bytes are base64 everywhere, as in protobuf's JSON.
import crypto from 'k6/crypto';
import { b64decode, b64encode } from 'k6/encoding';

const POOL_BYTES = 1 << 21;

// Spreads the bits of a 32-bit number (the finaliser of murmur3).
export function mix(number) {
  let bits = number | 0;
  bits = Math.imul(bits ^ (bits >>> 16), 0x85ebca6b);
  bits = Math.imul(bits ^ (bits >>> 13), 0xc2b2ae35);
  return (bits ^ (bits >>> 16)) >>> 0;
}

// The key of a name: four bytes that spread names over all shards, then the name, which is ASCII.
export function keyOf(name) {
  let hash = 0x811c9dc5;
  for (let at = 0; at < name.length; at++) hash = Math.imul(hash ^ name.charCodeAt(at), 0x01000193);
  const bits = mix(hash);
  const bytes = new Uint8Array(4 + name.length);
  for (let at = 0; at < 4; at++) bytes[at] = bits >>> (8 * at);
  for (let at = 0; at < name.length; at++) bytes[4 + at] = name.charCodeAt(at);
  return b64encode(bytes.buffer);
}

// Values that don't compress: pieces of a pool of random bytes.
export class Values {
  constructor(bytes) {
    this.bytes = bytes;
    this.pool = null;
  }

  next() {
    this.pool = this.pool || crypto.randomBytes(POOL_BYTES);
    const from = below(POOL_BYTES - this.bytes);
    return b64encode(this.pool.slice(from, from + this.bytes));
  }
}

export function textOf(base64) {
  return b64decode(base64, 'std', 's');
}

export function textValue(text) {
  return b64encode(text);
}

export function randomId() {
  return b64encode(crypto.randomBytes(16));
}

// A random whole number from 0 to below `limit`.
export function below(limit) {
  return Math.floor(Math.random() * limit);
}

// Draws from 0 to below `count`, small numbers much more often (Gray et al., "Quickly generating
// billion-record synthetic databases", as YCSB does).
export class Zipfian {
  constructor(count, theta = 0.99) {
    this.count = count;
    this.theta = theta;
    this.zetan = 0;
    for (let rank = 1; rank <= count; rank++) this.zetan += 1 / Math.pow(rank, theta);
    const zeta2 = 1 + Math.pow(0.5, theta);
    this.alpha = 1 / (1 - theta);
    this.eta = (1 - Math.pow(2 / count, 1 - theta)) / (1 - zeta2 / this.zetan);
  }

  next(random = Math.random()) {
    const place = random * this.zetan;
    if (place < 1) return 0;
    if (place < 1 + Math.pow(0.5, this.theta)) return 1;
    return Math.min(this.count - 1, Math.floor(this.count * Math.pow(this.eta * random - this.eta + 1, this.alpha)));
  }
}
