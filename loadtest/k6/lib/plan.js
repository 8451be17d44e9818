// The form of the load, and the thresholds that state the service levels: k6's options, from a
// scenario's parameters.

// A closed loop of clients; with a rate, an open loop, which begins operations at fixed times
// without waiting for answers.
export function paced(values) {
  const duration = `${values.DURATION}ms`;
  if (values.RATE === undefined) return { executor: 'constant-vus', exec: 'main', vus: values.VUS, duration };
  return { executor: 'constant-arrival-rate', exec: 'main', ...perSecond(values.RATE), duration, preAllocatedVUs: values.VUS, maxVUs: values.VUS };
}

// One client that does something at each interval.
export function each(intervalMs, values, execName) {
  const unit = { rate: 1, timeUnit: `${intervalMs}ms` };
  return { executor: 'constant-arrival-rate', exec: execName, ...unit, duration: `${values.DURATION}ms`, preAllocatedVUs: 1, maxVUs: 1 };
}

// k6 accepts only whole rates.
export function perSecond(rate) {
  return { rate: Math.round(rate * 1000), timeUnit: '1000s' };
}

// The parts of a spike, as shares of the time: calm, up, height, down, calm.
const SPIKE = [0.3, 0.05, 0.2, 0.05, 0.4];
export function spiked(values) {
  const whole = (rate) => Math.max(1, Math.round(rate * 60));
  const [calm, height] = [whole(values.RATE), whole(values.SPIKE_RATE)];
  const stages = [calm, height, height, calm, calm].map((target, part) => ({ target, duration: `${Math.round(SPIKE[part] * values.DURATION)}ms` }));
  return { executor: 'ramping-arrival-rate', exec: 'main', startRate: calm, timeUnit: '1m', stages, preAllocatedVUs: values.VUS, maxVUs: values.VUS };
}

// Phases of a run, with the share of the time at which each ends. After a spike the ledger has as
// long as the way down to recover.
export const PHASES = {
  spike: [['before', 0.3], ['during', 0.65], ['after', Infinity]],
  soak: [['first', 1 / 3], ['middle', 2 / 3], ['last', Infinity]],
};

export function phaseAt(phases, shareOfTime) {
  return phases.find(([, end]) => shareOfTime < end)[0];
}

// k6 reports figures by tag only if they have a threshold; this one always holds.
export const SHOWN = 'max>=0';

// Thresholds. `ops`: kinds of operation by name, each `read`, `write` or `admin`.
export function thresholds(scenario, values, ops) {
  const limits = { read: values.READ_P95, write: values.WRITE_P95, admin: values.ADMIN_P95 };
  const held = {
    ops_failed: [`rate<=${values.ERROR_SHARE}`],
    invariants_broken: ['count==0'],
    proofs_bad: [{ threshold: 'count==0', abortOnFail: true }],
    proofs_unjudged: ['count==0'],
  };
  if (values.PROOF_SHARE > 0) held.proofs_checked = ['count>0'];
  // A spike is meant to exceed what the ledger can take.
  if (values.RATE && scenario !== 'spike') held.dropped_iterations = [`count<=${Math.floor((values.LATE_SHARE * values.RATE * values.DURATION) / 1000)}`];
  if (values.BLOCK_INTERVAL) held.dropped_iterations = [`count<=${Math.floor((values.LATE_SHARE * values.DURATION) / values.BLOCK_INTERVAL)}`];
  for (const [op, kind] of Object.entries(ops)) {
    const faster = [`p(95)<${limits[kind]}`];
    held[`ops{op:${op}}`] = ['count>0'];
    if (!PHASES[scenario]) held[`op_duration{op:${op}}`] = faster;
    // The height of a spike may be slow; before and after it, the normal levels hold.
    for (const [phase] of PHASES[scenario] || []) held[`op_duration{op:${op},phase:${phase}}`] = phase === 'during' ? [SHOWN] : faster;
  }
  return held;
}
