// Records that are loaded before the test. All scenarios except `payment` use them.
import { Values, Zipfian, below, keyOf, textValue } from '../lib/keys.js';

const BATCH_RECORDS_MAX = 1000;
const BATCH_BYTES_MAX = 4 << 20;

// Writes numbered records, once for each set. A marker, written last, says that the set is
// complete.
export function fill(ledger, set, count, bytes, nameOf, valueOf) {
  const marker = keyOf(`${set}/all`);
  if (ledger.read([marker]).records[0].found) return;
  const batch = Math.max(1, Math.min(BATCH_RECORDS_MAX, Math.floor(BATCH_BYTES_MAX / (bytes + 64))));
  for (let from = 0; from < count; from += batch) {
    const operations = [];
    for (let number = from; number < Math.min(count, from + batch); number++) operations.push({ key: keyOf(nameOf(number)), put: valueOf(number) });
    ledger.commit(operations);
  }
  ledger.commit([{ key: marker, put: textValue(`${count}`) }]);
}

export class Records {
  constructor(ledger, { RECORDS, VALUE_BYTES }) {
    this.ledger = ledger;
    this.count = RECORDS;
    this.values = new Values(VALUE_BYTES);
    this.set = `k6/${VALUE_BYTES}B`;
    this.zipfian = null;
    this.inserted = [];
  }

  fill() {
    fill(this.ledger, `${this.set}/${this.count}`, this.count, this.values.bytes, (number) => `${this.set}/${number}`, () => this.values.next());
  }

  // One of a few keys that are read often.
  popular() {
    this.zipfian = this.zipfian || new Zipfian(this.count);
    return this.numbered(this.zipfian.next());
  }

  any() {
    return this.numbered(below(this.count));
  }

  numbered(number) {
    return keyOf(`${this.set}/${number}`);
  }

  absent() {
    return keyOf(`${this.set}/none/${below(1e9)}`);
  }

  // One of the newest keys: of those that this client inserted, or else of those loaded last.
  latest() {
    this.zipfian = this.zipfian || new Zipfian(this.count);
    const back = this.zipfian.next();
    const own = this.inserted.length - 1 - back;
    return own >= 0 ? this.inserted[own] : this.numbered(Math.max(0, this.count - 1 - (back - this.inserted.length)));
  }

  read(key) {
    return this.ledger.measured('read', () => this.ledger.read([key]));
  }

  update(key) {
    return this.ledger.measured('update', () => this.ledger.commit([{ key, put: this.values.next() }]));
  }

  // YCSB's read-modify-write, on the condition that nobody wrote in between; otherwise it is
  // repeated.
  modify(key) {
    return this.ledger.measured('modify', () => conditionally(this.ledger, [key], () => [this.values.next()]));
  }

  insert() {
    const key = keyOf(`${this.set}/new/${Date.now().toString(36)}${below(1e9).toString(36)}`);
    const done = this.ledger.measured('insert', () => this.ledger.commit([{ key, put: this.values.next() }]));
    if (done) this.inserted.push(key);
    if (this.inserted.length > 1000) this.inserted.shift();
  }

  scan(key, limit) {
    return this.ledger.measured('scan', () => this.ledger.scan(key, limit));
  }
}

// Most repetitions of a write after conflicts.
const CONFLICTS_MAX = 50;

// Reads keys, and writes what `change` makes of their records, on the condition that they have not
// changed.
export function conditionally(ledger, keys, change) {
  for (let conflicts = 0; ; conflicts++) {
    const { records } = ledger.read(keys);
    const put = change(records);
    const preconditions = records.map(({ key, found, lastChanged }) => (found ? { key, lastChanged } : { key, absent: true }));
    try {
      return ledger.commit(keys.map((key, at) => ({ key, put: put[at] })), { preconditions });
    } catch (error) {
      if (error.reason !== 'PRECONDITION_FAILED' || conflicts >= CONFLICTS_MAX) throw error;
      ledger.conflict();
    }
  }
}
