// Parameters of each scenario from the environment, with their units. This file imports nothing of
// k6; a wrong parameter is an Error that explains it.

const DURATION_MS = { ms: 1, s: 1000, m: 60_000, h: 3_600_000 };
const SIZE_BYTES = { '': 1, B: 1, KiB: 1 << 10, MiB: 1 << 20 };

// A duration like 250ms, 30s or 1h30m, in ms.
function duration(text) {
  if (!/^(\d+(\.\d+)?(ms|s|m|h))+$/.test(text)) throw new Error('is a duration such as 250ms, 30s or 1h30m');
  const parts = text.match(/\d+(\.\d+)?(ms|s|m|h)/g);
  return parts.reduce((sum, part) => sum + parseFloat(part) * DURATION_MS[part.replace(/[\d.]/g, '')], 0);
}

// A rate like 200/s or 30/m, in operations a second.
function rate(text) {
  const match = /^(\d+(?:\.\d+)?)\/(s|m|h)$/.exec(text);
  if (!match) throw new Error('is a rate such as 200/s or 30/m');
  return (parseFloat(match[1]) * 1000) / DURATION_MS[match[2]];
}

function size(text) {
  const match = /^(\d+)(|B|KiB|MiB)$/.exec(text);
  if (!match) throw new Error('is a number of bytes such as 1024, 64KiB or 1MiB');
  return parseInt(match[1], 10) * SIZE_BYTES[match[2]];
}

function count(text) {
  if (!/^\d+$/.test(text)) throw new Error('is a whole number such as 1000');
  return parseInt(text, 10);
}

// A share like 5% or 0.05.
function share(text) {
  const match = /^(\d+(?:\.\d+)?)(%?)$/.exec(text);
  if (!match) throw new Error('is a share such as 5% or 0.05');
  return parseFloat(match[1]) / (match[2] ? 100 : 1);
}

function yes(text) {
  if (text !== 'yes' && text !== 'no') throw new Error('is yes or no');
  return text === 'yes';
}

// Kind, unit within the program, and bounds in that unit. VALUE_BYTES_MAX is the ledger's limit.
const VALUE_BYTES_MAX = 1 << 20;
const HOUR = DURATION_MS.h;
export const PARAMETERS = {
  DURATION: { parse: duration, min: 1000, max: 168 * HOUR, help: 'how long load is put on' },
  VUS: { parse: count, min: 1, max: 2000, help: 'clients; with RATE, how many there may be at most' },
  RATE: { parse: rate, min: 0.001, max: 100_000, help: 'operations that begin each second, whatever the answers do' },
  SPIKE_RATE: { parse: rate, min: 0.001, max: 100_000, help: 'RATE at the height of the spike' },
  RECORDS: { parse: count, min: 10, max: 10_000_000, help: 'records that are loaded before' },
  VALUE_BYTES: { parse: size, min: 1, max: VALUE_BYTES_MAX, help: 'size of a value' },
  ACCOUNTS: { parse: count, min: 4, max: 1_000_000, help: 'accounts' },
  ACTIVE: { parse: share, min: 0.000001, max: 1, help: 'the share of the accounts that pay and are paid' },
  MEMBERS: { parse: count, min: 1, max: 255, help: 'members of the ledger that append, each in up to 16 lanes' },
  JOURNALS: { parse: count, min: 1, max: 1024, help: 'journals of a request, under one signature' },
  CLUES: { parse: count, min: 1, max: 1_000_000, help: 'clues that journals name, a few of them often' },
  JOURNAL_CLUES: { parse: count, min: 0, max: 16, help: 'clues of a journal' },
  SPREAD: { parse: yes, help: 'yes: the ledger lies over all shards that hold ledgers' },
  BLOCK_INTERVAL: { parse: duration, min: 1, max: HOUR, help: 'time from one block to the next' },
  BLOCK_RECORDS: { parse: count, min: 1, max: 10_000, help: 'records that a block writes' },
  READERS: { parse: count, min: 0, max: 1000, help: 'clients that read at the heights of blocks' },
  PRUNE_INTERVAL: { parse: duration, min: 100, max: HOUR, help: 'time from one prune to the next' },
  KEEP: { parse: count, min: 1, max: 1_000_000, help: 'versions that a prune leaves' },
  DRILL_INTERVAL: { parse: duration, min: 100, max: HOUR, help: 'time from one rollback to the next' },
  DESTRUCTIVE: { parse: yes, help: 'yes: the ledger is there for this test, which takes versions away' },
  PROOF_SHARE: { parse: share, min: 0, max: 1, help: 'the share of answers whose proofs the judge verifies' },
  READ_P95: { parse: duration, min: 1, max: HOUR, help: 'service level: 95% of reads are faster' },
  WRITE_P95: { parse: duration, min: 1, max: HOUR, help: 'service level: 95% of writes are faster' },
  ADMIN_P95: { parse: duration, min: 1, max: HOUR, help: 'service level: 95% of prunes and rollbacks are faster' },
  ERROR_SHARE: { parse: share, min: 0, max: 1, help: 'service level: the share of operations that may fail after all repetitions' },
  LATE_SHARE: { parse: share, min: 0, max: 1, help: 'service level: the share of operations of RATE that may not even begin in time' },
  TIMEOUT: { parse: duration, min: 100, max: HOUR, help: 'how long one attempt waits for its answer' },
  PATIENCE: { parse: duration, min: 0, max: HOUR, help: 'how long an operation is repeated' },
};

// The parameters of all scenarios.
const COMMON = {
  DURATION: '30s', PROOF_SHARE: '5%', READ_P95: '250ms', WRITE_P95: '500ms', ERROR_SHARE: '0.1%', TIMEOUT: '10s', PATIENCE: '20s',
};
// Lanes of a member, and the largest payload: an envelope also has clues and a nonce.
export const LANES = 16;
const PAYLOAD_BYTES_MAX = VALUE_BYTES_MAX - (16 << 10);
const RECORDS = { RECORDS: '10000', VALUE_BYTES: '1000' };
const YCSB = { ...COMMON, ...RECORDS, VUS: '8', RATE: null };
const PAYMENT = { ACCOUNTS: '30000', ACTIVE: '3%' };
// With a rate: the share of operations that may be late because no client is free.
const PACED = { LATE_SHARE: '1%' };

// Scenarios with their parameters and defaults; null marks an optional parameter.
export const SCENARIOS = {
  'ycsb-a': { ...YCSB, ...PACED },
  'ycsb-b': { ...YCSB, ...PACED },
  'ycsb-c': { ...YCSB, ...PACED },
  'ycsb-d': { ...YCSB, ...PACED },
  'ycsb-e': { ...YCSB, ...PACED },
  'ycsb-f': { ...YCSB, ...PACED },
  payment: { ...COMMON, ...PAYMENT, ...PACED, VUS: '8', RATE: null },
  blocks: { ...COMMON, ...PACED, RECORDS: '10000', VALUE_BYTES: '200', BLOCK_INTERVAL: '500ms', BLOCK_RECORDS: '200', READERS: '2', PROOF_SHARE: '20%' },
  'verified-reads': { ...YCSB, ...PACED, PROOF_SHARE: '20%' },
  soak: { ...COMMON, ...RECORDS, ...PAYMENT, ...PACED, DURATION: '30m', RATE: '40/s', VUS: '32' },
  spike: { ...COMMON, ...RECORDS, ...PACED, DURATION: '1m', RATE: '20/s', SPIKE_RATE: '200/s', VUS: '64' },
  ledger: {
    ...COMMON, ...PACED, VUS: '8', RATE: null, MEMBERS: '4', JOURNALS: '4', VALUE_BYTES: '1000', CLUES: '1000', JOURNAL_CLUES: '1', SPREAD: 'no', PROOF_SHARE: '20%',
  },
  'prune-under-load': { ...COMMON, ...RECORDS, VUS: '8', PRUNE_INTERVAL: '3s', KEEP: '200', ADMIN_P95: '5s', DESTRUCTIVE: 'no' },
  'rollback-drill': { ...COMMON, ...RECORDS, VUS: '4', DRILL_INTERVAL: '3s', ADMIN_P95: '5s', DESTRUCTIVE: 'no' },
};

function one(name, text) {
  const { parse, min, max } = PARAMETERS[name];
  let value;
  try {
    value = parse(text);
  } catch (error) {
    throw new Error(`${name}=${text}: it ${error.message}`);
  }
  if (value < min) throw new Error(`${name}=${text}: it is too small`);
  if (value > max) throw new Error(`${name}=${text}: it is too large`);
  return value;
}

// The parameters of a scenario: `values` in the units of the program (ms, bytes, per second,
// shares), `texts` as they were given.
export function parameters(scenario, environment) {
  const defaults = SCENARIOS[scenario];
  if (!defaults) throw new Error(`SCENARIO=${scenario || ''}: it is one of ${Object.keys(SCENARIOS).join(', ')}`);
  const given = (name) => environment[name] !== undefined && environment[name] !== '';
  for (const name of Object.keys(PARAMETERS)) {
    if (given(name) && !(name in defaults)) {
      throw new Error(`${name} is not a parameter of ${scenario}; it takes ${Object.keys(defaults).join(', ')}`);
    }
  }
  const values = {};
  const texts = {};
  for (const [name, otherwise] of Object.entries(defaults)) {
    const text = given(name) ? environment[name] : otherwise;
    if (text !== null) {
      values[name] = one(name, text);
      texts[name] = text;
    }
  }
  together(scenario, values);
  return { values, texts };
}

// Checks parameters that contradict each other.
function together(scenario, values) {
  if (values.DESTRUCTIVE === false) {
    throw new Error(`${scenario} takes versions away for good: for a ledger that is there for this test, say DESTRUCTIVE=yes`);
  }
  if (values.ACTIVE && values.ACCOUNTS * values.ACTIVE < 2) throw new Error('ACTIVE: two accounts at least must be active, so that one can pay the other');
  if (values.SPIKE_RATE && values.SPIKE_RATE <= values.RATE) throw new Error('SPIKE_RATE must be above RATE');
  if (values.BLOCK_RECORDS > values.RECORDS) throw new Error('BLOCK_RECORDS is at most RECORDS');
  if (values.BLOCK_RECORDS * values.VALUE_BYTES > 6 << 20) throw new Error('BLOCK_RECORDS times VALUE_BYTES is at most 6MiB, so that a block is one batch');
  if (values.MEMBERS) members(values);
}

function members({ VUS, MEMBERS, JOURNALS, VALUE_BYTES, CLUES, JOURNAL_CLUES }) {
  if (VUS > LANES * MEMBERS) throw new Error(`VUS is at most ${LANES} times MEMBERS, so that each client has a lane of its own`);
  if (JOURNAL_CLUES > CLUES) throw new Error('JOURNAL_CLUES is at most CLUES');
  if (VALUE_BYTES > PAYLOAD_BYTES_MAX) throw new Error(`VALUE_BYTES=${VALUE_BYTES}: it is too large; a payload has at most ${PAYLOAD_BYTES_MAX} bytes`);
  if (JOURNALS * VALUE_BYTES > 4 << 20) throw new Error('JOURNALS times VALUE_BYTES is at most 4MiB, so that they are one request');
}

// The ledger's endpoints, as for the `coppice` command: COPPICE_ENDPOINT, and for https COPPICE_CA,
// COPPICE_CLIENT_CERT and COPPICE_CLIENT_KEY, which name files.
export function endpoints(environment) {
  const text = environment.COPPICE_ENDPOINT || '';
  const found = text.split(',').map((part) => {
    const match = /^(?:(https?):\/\/)?([^/:\s]+|\[[0-9a-fA-F:]+\]):(\d+)\/?$/.exec(part.trim());
    if (!match) throw new Error(`COPPICE_ENDPOINT=${text}: it is http://HOST:PORT or https://HOST:PORT, several with commas between`);
    return { secure: match[1] ? match[1] === 'https' : Boolean(environment.COPPICE_CA), address: `${match[2]}:${match[3]}` };
  });
  const secure = found[0].secure;
  if (found.some((endpoint) => endpoint.secure !== secure)) throw new Error('COPPICE_ENDPOINT: either all are https or none is');
  if (secure && !environment.COPPICE_CA) throw new Error('COPPICE_CA: https needs the file of the authority of the server\'s certificate');
  if (!secure && environment.COPPICE_CA) throw new Error('COPPICE_ENDPOINT: with COPPICE_CA only https is spoken');
  if (Boolean(environment.COPPICE_CLIENT_CERT) !== Boolean(environment.COPPICE_CLIENT_KEY)) {
    throw new Error('COPPICE_CLIENT_CERT and COPPICE_CLIENT_KEY are given together');
  }
  return { secure, addresses: found.map((endpoint) => endpoint.address) };
}
