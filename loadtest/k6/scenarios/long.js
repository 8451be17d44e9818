// `soak`: payments, verified reads and updates at one rate for a long time. Latencies must be as
// good at the end as at first.
// `spike`: reads and updates at a rate that rises and falls. Before and after that, the normal
// levels hold, and nothing fails at any time.
import exec from 'k6/execution';
import { draw } from '../lib/ledger.js';
import { PHASES, paced, phaseAt, spiked } from '../lib/plan.js';
import { Accounts } from './payment.js';
import { READ_OPS, Reads } from './reads.js';
import { Records } from './records.js';
import { UPDATES, opsOf, step } from './ycsb.js';

// Tags measurements with the phase of the run.
export function phaseTags(scenario, values) {
  const phases = PHASES[scenario];
  return () => ({ phase: phaseAt(phases, (Date.now() - exec.scenario.startTime) / values.DURATION) });
}

export function soak(ledger, values) {
  const accounts = new Accounts(ledger, values);
  const reads = new Reads(ledger, values);
  function main(old) {
    const drawn = draw();
    if (drawn < 0.4) return accounts.pay();
    if (drawn < 0.8) return reads.step(old, (drawn - 0.4) / 0.4);
    return reads.records.update(reads.records.popular());
  }
  return {
    ops: { payment: 'write', update: 'write', ...READ_OPS },
    scenarios: { main: paced(values) },
    setup: () => {
      accounts.fill();
      return reads.prepare();
    },
    main,
    teardown: () => accounts.audit(),
  };
}

export function spike(ledger, values) {
  const records = new Records(ledger, values);
  return {
    ops: opsOf(UPDATES),
    scenarios: { main: spiked(values) },
    setup: () => records.fill(),
    main: () => step(records, UPDATES),
  };
}
