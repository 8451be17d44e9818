// One writer makes a block at each interval: a version of its own, on the head that it knows.
// Clients read at the heights of blocks.
import { below, keyOf, textValue } from '../lib/keys.js';
import { each } from '../lib/plan.js';
import { Records } from './records.js';

const TIP = 'k6/blocks/tip';
const HEIGHTS = 50;

export function blocks(ledger, values) {
  const records = new Records(ledger, values);
  let head = null;

  function block() {
    head = head || ledger.head().stamp;
    const height = Number(head.version) + 1;
    const keys = new Set([keyOf(TIP)]);
    while (keys.size < values.BLOCK_RECORDS) keys.add(records.any());
    const operations = [...keys].map((key) => ({ key, put: records.values.next() }));
    ledger.measured('block', () => {
      try {
        head = ledger.commit(operations, { expectedHead: head, exclusive: true, metadata: textValue(`block ${height}`) }).stamp;
      } catch (error) {
        // Another client writes, or the outcome is unknown: the next block begins with the present
        // head.
        head = null;
        throw error;
      }
    });
  }

  // Reads the key that each block writes, and another one, at one of the newest heights.
  function read() {
    const newest = ledger.head();
    const lowest = Math.max(Number(newest.prunedBoundary), Number(newest.stamp.version) - HEIGHTS, 0);
    const version = lowest + below(Number(newest.stamp.version) - lowest + 1);
    const at = { epoch: newest.stamp.epoch, version: `${version}` };
    ledger.measured('read_at_height', () => ledger.read([keyOf(TIP), records.any()], { at }));
  }

  const readers = { executor: 'constant-vus', exec: 'side', vus: values.READERS, duration: `${values.DURATION}ms` };
  return {
    ops: values.READERS ? { block: 'write', read_at_height: 'read' } : { block: 'write' },
    scenarios: { main: each(values.BLOCK_INTERVAL, values, 'main'), ...(values.READERS ? { side: readers } : {}) },
    setup: () => records.fill(),
    main: block,
    side: read,
  };
}
