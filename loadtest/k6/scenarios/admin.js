// Operations that drop versions while clients read and write. For a ledger that exists only for
// this test.
import { keyOf } from '../lib/keys.js';
import { Refused, draw, invariant, metrics } from '../lib/ledger.js';
import { each, paced } from '../lib/plan.js';
import { Records } from './records.js';
import { UPDATES, opsOf, step } from './ycsb.js';

const PRINCIPAL = 'k6';

// The reason of a refusal; null if there was none.
function refusal(work) {
  try {
    work();
    return null;
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    return error.reason;
  }
}

export function pruneUnderLoad(ledger, values) {
  const records = new Records(ledger, values);

  // A version below the boundary is refused; the boundary itself is read and proven.
  function prune() {
    const { stamp, prunedBoundary } = ledger.head();
    const before = Number(stamp.version) - values.KEEP;
    if (before <= Number(prunedBoundary)) return;
    const request = { before: `${before}`, reason: 'load test', principal: PRINCIPAL };
    if (!ledger.measured('prune', () => ledger.call('Prune', request, false))) return;
    const at = (version) => ({ epoch: stamp.epoch, version: `${version}` });
    const below = refusal(() => ledger.read([records.any()], { at: at(before - 1) }));
    invariant(below === 'PRUNED', `version ${before - 1} is below the boundary ${before}, and reading it gives ${below}`);
    ledger.measured('read_boundary', () => ledger.read([records.any()], { at: at(before), prove: true }));
  }

  return {
    ops: { ...opsOf(UPDATES), prune: 'admin', read_boundary: 'read' },
    scenarios: { main: paced(values), side: each(values.PRUNE_INTERVAL, values, 'side') },
    // There must be something to prune from the first time on.
    setup: () => {
      records.fill();
      const head = ledger.head();
      const missing = values.KEEP + 2 - (Number(head.stamp.version) - Number(head.prunedBoundary));
      for (let count = 0; count < missing; count++) ledger.commit([{ key: records.any(), put: records.values.next() }], { exclusive: true });
    },
    main: () => step(records, UPDATES),
    side: prune,
  };
}

export function rollbackDrill(ledger, values) {
  const records = new Records(ledger, values);
  const key = keyOf('k6/drill');

  // Writes a record twice and rolls the second version back, with everything that others wrote
  // since.
  function drill() {
    const [kept, lost] = [records.values.next(), records.values.next()];
    const first = ledger.measured('drill_write', () => ledger.commit([{ key, put: kept }], { exclusive: true }));
    const second = first && ledger.measured('drill_write', () => ledger.commit([{ key, put: lost }], { exclusive: true }));
    if (!second) return;
    const { id, highest } = ledger.session;
    const request = { to: first.stamp.version, reason: 'drill', principal: PRINCIPAL };
    const done = ledger.measured('rollback', () => ledger.call('Rollback', request, false));
    if (!done) return;
    const { epoch, version } = done.head;
    invariant(version === first.stamp.version && Number(epoch) === Number(second.stamp.epoch) + 1, `head is (${epoch}, ${version}) after a rollback to ${first.stamp.version}`);
    // Reads are proven: the target's state by the version's number, and the later state by its name
    // and by its number in the session.
    const then = ledger.measured('read_target', () => ledger.read([key], { at: done.head, prove: true }));
    invariant(then === null || then.records[0].value === kept, 'the target of the rollback has another value');
    const gone = refusal(() => ledger.readAsked([key], { at: second.stamp }));
    invariant(gone === 'ROLLED_BACK', `reading version (${second.stamp.epoch}, ${second.stamp.version}), which was rolled back, gives ${gone}`);
    const again = { batch: { operations: [{ key, put: lost }], exclusive: true }, sessionId: id, number: String(highest) };
    const replayed = refusal(() => ledger.call('Commit', again));
    invariant(replayed === 'ROLLED_BACK', `a batch that was rolled back, sent again, gives ${replayed}`);
  }

  // An acknowledged write may be rolled back; a client that is told so has not failed.
  function load() {
    if (draw() < 0.5) return records.read(records.popular());
    return ledger.measured('update', () => {
      try {
        return ledger.commit([{ key: records.popular(), put: records.values.next() }]);
      } catch (error) {
        if (error.reason !== 'ROLLED_BACK') throw error;
        metrics.rolledBack.add(1);
        return error;
      }
    });
  }

  return {
    ops: { read: 'read', update: 'write', drill_write: 'write', rollback: 'admin', read_target: 'read' },
    scenarios: { main: paced(values), side: each(values.DRILL_INTERVAL, values, 'side') },
    setup: () => records.fill(),
    main: load,
    side: drill,
  };
}
