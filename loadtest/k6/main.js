// The entry point of k6 for `make load SCENARIO=...`. docs/load-testing.md says how to run it and
// read its results.
import { Ledger, Refused, invariant, metrics } from './lib/ledger.js';
import { thresholds } from './lib/plan.js';
import { endpoints, parameters } from './lib/settings.js';
import { summaries } from './lib/summary.js';
import { pruneUnderLoad, rollbackDrill } from './scenarios/admin.js';
import { blocks } from './scenarios/blocks.js';
import { phaseTags, soak, spike } from './scenarios/long.js';
import { members } from './scenarios/members.js';
import { payment } from './scenarios/payment.js';
import { verifiedReads } from './scenarios/reads.js';
import { ycsb } from './scenarios/ycsb.js';

// Only this scenario needs the k6 that scripts/k6 builds. The others run with any k6.
const ledgerOfMembers = (ledger, values) => members(ledger, values, require('k6/x/coppice'));

const MAKERS = {
  payment, blocks, soak, spike, ledger: ledgerOfMembers, 'verified-reads': verifiedReads, 'prune-under-load': pruneUnderLoad, 'rollback-drill': rollbackDrill,
};

const name = __ENV.SCENARIO;
const { values, texts } = parameters(name, __ENV);
const { secure, addresses } = endpoints(__ENV);
if (values.PROOF_SHARE > 0 && !__ENV.JUDGE) throw new Error('JUDGE: the address of the judge of proofs, as http://HOST:PORT; or PROOF_SHARE=0');
// An option that is not given must be absent, not empty.
const files = { cacerts: 'COPPICE_CA', cert: 'COPPICE_CLIENT_CERT', key: 'COPPICE_CLIENT_KEY' };
const tls = Object.fromEntries(Object.entries(files).filter(([, variable]) => __ENV[variable]).map(([name, variable]) => [name, open(__ENV[variable])]));
const target = {
  secure,
  addresses,
  tls,
  protos: { api: import.meta.resolve('../../proto'), errors: import.meta.resolve('./proto') },
  timeout: `${values.TIMEOUT}ms`,
  patienceMs: values.PATIENCE,
  proofShare: values.PROOF_SHARE,
  judge: __ENV.JUDGE,
};
const phased = name === 'soak' || name === 'spike';
const ledger = new Ledger(target, phased ? phaseTags(name, values) : undefined);
const scenario = MAKERS[name] ? MAKERS[name](ledger, values) : ycsb(name, ledger, values);

export const options = {
  scenarios: scenario.scenarios,
  thresholds: thresholds(name, values, scenario.ops),
  setupTimeout: '10m',
  teardownTimeout: '10m',
  summaryTrendStats: ['count', 'avg', 'min', 'med', 'p(90)', 'p(95)', 'p(99)', 'max'],
};

export function setup() {
  // Events that never happen must be counted, too.
  for (const counter of ['retries', 'conflicts', 'unknown', 'rolledBack', 'broken', 'checked', 'bad', 'unjudged']) metrics[counter].add(0);
  return { prepared: scenario.setup(), began: Date.now() };
}

// One iteration. A refusal outside of a measured operation is a failure, too. Any other error
// counts as a broken invariant; k6 alone would log it and go on.
async function iterate(work, prepared) {
  try {
    await work(prepared);
  } catch (error) {
    if (error instanceof Refused) metrics.failed.add(true);
    else invariant(false, `the script: ${error.stack || error}`);
    console.error(String(error));
  }
}

export function main({ prepared }) {
  return iterate(scenario.main, prepared);
}

export function side({ prepared }) {
  return iterate(scenario.side, prepared);
}

export function teardown({ prepared }) {
  if (scenario.teardown) scenario.teardown(prepared);
}

export function handleSummary(data) {
  return summaries(data, { scenario: name, parameters: texts, endpoint: __ENV.COPPICE_ENDPOINT, ops: scenario.ops }, __ENV.OUT);
}
