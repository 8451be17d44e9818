// The core workloads of YCSB (Cooper et al., "Benchmarking cloud serving systems with YCSB"). Keys
// are hashed, so a scan goes over the neighbours of a hash.
import { below } from '../lib/keys.js';
import { draw } from '../lib/ledger.js';
import { paced } from '../lib/plan.js';
import { Records } from './records.js';

const SCAN_RECORDS_MAX = 100;

// The share of reads, the other kind of operation, and which records are read.
const MIXES = {
  'ycsb-a': { first: 'read', share: 0.5, second: 'update' },
  'ycsb-b': { first: 'read', share: 0.95, second: 'update' },
  'ycsb-c': { first: 'read', share: 1 },
  'ycsb-d': { first: 'read', share: 0.95, second: 'insert', latest: true },
  'ycsb-e': { first: 'scan', share: 0.95, second: 'insert' },
  'ycsb-f': { first: 'read', share: 0.5, second: 'modify' },
};
const KINDS = { read: 'read', scan: 'read', update: 'write', insert: 'write', modify: 'write' };

// One operation of a mix.
export function step(records, { first, share, second, latest }) {
  const op = draw() < share ? first : second;
  if (op === 'insert') return records.insert();
  if (op === 'scan') return records.scan(records.popular(), 1 + below(SCAN_RECORDS_MAX));
  return records[op](latest ? records.latest() : records.popular());
}

export function opsOf({ first, second }) {
  return Object.fromEntries([first, second].filter(Boolean).map((op) => [op, KINDS[op]]));
}

export function ycsb(name, ledger, values) {
  const mix = MIXES[name];
  const records = new Records(ledger, values);
  return {
    ops: opsOf(mix),
    scenarios: { main: paced(values) },
    setup: () => records.fill(),
    main: () => step(records, mix),
  };
}

export const UPDATES = MIXES['ycsb-a'];
