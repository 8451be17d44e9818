// Changes of which all happen or none.

import { asBytes, asKey, hex } from "./bytes.js";

export class Batch {
  #puts = new Map();
  #deletes = new Map();

  /** Gives a key a value. A batch changes a key once. */
  put(key, value) {
    const bytes = this.#new(key);
    this.#puts.set(hex(bytes), [bytes, asBytes(value)]);
    return this;
  }

  delete(key) {
    const bytes = this.#new(key);
    this.#deletes.set(hex(bytes), bytes);
    return this;
  }

  /** Pairs of key and value. */
  get puts() {
    return [...this.#puts.values()];
  }

  get deletes() {
    return [...this.#deletes.values()];
  }

  #new(key) {
    const bytes = asKey(key);
    const name = hex(bytes);
    if (this.#puts.has(name) || this.#deletes.has(name)) throw new RangeError("a batch changes a key once");
    return bytes;
  }
}
