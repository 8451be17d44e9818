// The shards of a ledger by their lowest keys, and the hash that names a batch in its receipt
// (docs/verification.md, section 8).

import { compare, hex, joined, little, sha256, unhex } from "./bytes.js";

const NO_PARENT = 0xffff_ffff;
const [MAP, OPERATIONS, METADATA, ENTRY] = [0x17, 0x1a, 0x1b, 0x19];

const hash = (tag, ...parts) => sha256(joined(Uint8Array.of(tag), ...parts));
const str16 = (bytes) => joined(little(bytes.length, 2), bytes);

export class Shards {
  /** Reads them from the genesis entry as JSON. */
  static async of(shards) {
    const bound = (text) => (text === null ? null : unhex(text));
    const all = shards.map(({ shard, low, high }) => ({ shard, low: unhex(low), high: bound(high) }));
    const encoded = all.flatMap(({ shard, low, high }) => [
      little(shard, 4),
      little(NO_PARENT, 4),
      str16(low),
      high === null ? Uint8Array.of(0) : joined(Uint8Array.of(1), str16(high)),
    ]);
    const mapHash = hex(await hash(MAP, Uint8Array.of(1), little(all.length, 4), ...encoded));
    return Object.assign(new Shards(), { all, mapHash });
  }

  /** The hash of a batch: its changes, and the session with its number if there is one. */
  async entryHash({ puts, deletes }, session) {
    const lists = new Map();
    const list = (key, part) => {
      const shard = this.#of(key);
      lists.set(shard, [...(lists.get(shard) ?? []), part]);
    };
    for (const [key, value] of puts) {
      list(key, joined(Uint8Array.of(0), str16(key), little(value.length, 4), await sha256(value)));
    }
    for (const key of deletes) list(key, joined(Uint8Array.of(1), str16(key)));
    const touched = [];
    for (const [shard, parts] of [...lists].sort(([a], [b]) => a - b)) {
      touched.push(little(shard, 4), await hash(OPERATIONS, little(parts.length, 4), ...parts));
    }
    const by = session ? joined(Uint8Array.of(1), session.id, little(session.number, 8)) : Uint8Array.of(0);
    const noMetadata = await hash(METADATA, little(0, 4));
    const head = [Uint8Array.of(0), by, noMetadata, Uint8Array.of(0, 0), little(lists.size, 4)];
    return hex(await hash(ENTRY, ...head, ...touched));
  }

  #of(key) {
    return this.all.filter(({ low }) => compare(low, key) <= 0).at(-1).shard;
  }
}
