// Reads with proofs: of one key, of several keys, of absent keys, and of old versions.
import { draw } from '../lib/ledger.js';
import { paced } from '../lib/plan.js';
import { Records } from './records.js';

const SEVERAL = 10;
const OLD_VERSIONS = 5;

export class Reads {
  constructor(ledger, values) {
    this.ledger = ledger;
    this.records = new Records(ledger, values);
  }

  // Also makes a few versions, each of which changes one record; these are read later as old
  // versions.
  prepare() {
    this.records.fill();
    const old = [];
    for (let count = 0; count < OLD_VERSIONS; count++) {
      old.push(this.ledger.commit([{ key: this.records.popular(), put: this.records.values.next() }]).stamp);
    }
    return old;
  }

  step(old, drawn = draw()) {
    if (drawn < 0.1) return this.one('prove_absence', [this.records.absent()]);
    if (drawn < 0.2) return this.one('prove_several', Array.from({ length: SEVERAL }, () => this.records.any()));
    if (drawn < 0.3) return this.one('prove_old', [this.records.popular()], old[Math.floor(Math.random() * old.length)]);
    return this.one('prove', [this.records.popular()]);
  }

  one(op, keys, at) {
    return this.ledger.measured(op, () => this.ledger.read([...new Set(keys)], { at, prove: true }));
  }
}

export const READ_OPS = { prove: 'read', prove_several: 'read', prove_absence: 'read', prove_old: 'read' };

export function verifiedReads(ledger, values) {
  const reads = new Reads(ledger, values);
  return {
    ops: READ_OPS,
    scenarios: { main: paced(values) },
    setup: () => reads.prepare(),
    main: (old) => reads.step(old),
  };
}
