// Tests of the scripts' own logic, run by k6 itself: `loadtest/k6/test_k6.py` starts them.
import { check } from 'k6';
import { b64decode, b64encode } from 'k6/encoding';
import coppice from 'k6/x/coppice';
import { Zipfian, below, keyOf, mix } from './lib/keys.js';
import { Ledger, Refused, causeOf } from './lib/ledger.js';
import { PHASES, SHOWN, paced, phaseAt, spiked, thresholds } from './lib/plan.js';
import { PARAMETERS, SCENARIOS, endpoints, parameters } from './lib/settings.js';
import { digest, html, split, text } from './lib/summary.js';
import { Lane } from './scenarios/members.js';
import { conditionally } from './scenarios/records.js';

export const options = { iterations: 1, vus: 1, thresholds: { checks: ['rate==1'] } };

const target = {
  secure: false, addresses: ['one:1', 'two:2'], tls: {}, timeout: '1s', patienceMs: 300, proofShare: 0,
  protos: { api: import.meta.resolve('../../proto'), errors: import.meta.resolve('./proto') },
};
const ledger = new Ledger(target);

function is(what, holds) {
  // k6 gives two colons a meaning of its own.
  if (!check(null, { [what.replace(/::/g, ': :')]: () => holds })) console.error(`not so: ${what}`);
}

function same(what, found, expected) {
  const [one, other] = [JSON.stringify(found), JSON.stringify(expected)];
  is(`${what}: ${other}`, one === other);
  if (one !== other) console.error(`  but ${one}`);
}

function fails(what, words, work) {
  let said = 'nothing';
  try {
    work();
  } catch (error) {
    said = error.message;
  }
  is(`${what} is refused with the words "${words}"; said was "${said}"`, said.includes(words));
}

function units() {
  const of = (environment) => parameters('blocks', environment).values;
  same('30s', of({ DURATION: '30s' }).DURATION, 30_000);
  same('1h30m', of({ DURATION: '1h30m' }).DURATION, 5_400_000);
  same('250ms', of({ BLOCK_INTERVAL: '250ms' }).BLOCK_INTERVAL, 250);
  same('1.5s', of({ BLOCK_INTERVAL: '1.5s' }).BLOCK_INTERVAL, 1500);
  same('4KiB', of({ VALUE_BYTES: '4KiB' }).VALUE_BYTES, 4096);
  same('17', of({ VALUE_BYTES: '17' }).VALUE_BYTES, 17);
  same('2.5%', of({ PROOF_SHARE: '2.5%' }).PROOF_SHARE, 0.025);
  same('0.5', of({ PROOF_SHARE: '0.5' }).PROOF_SHARE, 0.5);
  same('200/s', parameters('payment', { RATE: '200/s' }).values.RATE, 200);
  same('30/m', parameters('payment', { RATE: '30/m' }).values.RATE, 0.5);
  same('an empty one is not given', of({ DURATION: '' }).DURATION, 30_000);
  same('what was given is told', parameters('blocks', { DURATION: '7s' }).texts.DURATION, '7s');
}

function refusals() {
  const payment = (environment) => () => parameters('payment', environment);
  fails('no scenario', 'ycsb-a, ', () => parameters(undefined, {}));
  fails('an unknown scenario', 'SCENARIO=pay: it is one of', () => parameters('pay', {}));
  fails('a duration without a unit', 'DURATION=30: it is a duration such as', payment({ DURATION: '30' }));
  fails('a negative duration', 'DURATION=-3s', payment({ DURATION: '-3s' }));
  fails('a rate without a unit', 'RATE=200: it is a rate such as', payment({ RATE: '200' }));
  fails('a count with a unit', 'VUS=8s: it is a whole number', payment({ VUS: '8s' }));
  fails('a share of words', 'ACTIVE=few: it is a share', payment({ ACTIVE: 'few' }));
  fails('too many', 'ACTIVE=101%: it is too large', payment({ ACTIVE: '101%' }));
  fails('none', 'VUS=0: it is too small', payment({ VUS: '0' }));
  fails('one active account', 'two accounts at least', payment({ ACCOUNTS: '10', ACTIVE: '10%' }));
  fails('a parameter of others', 'BLOCK_INTERVAL is not a parameter of payment; it takes DURATION', payment({ BLOCK_INTERVAL: '1s' }));
  fails('a value over the limit', 'VALUE_BYTES=2MiB: it is too large', () => parameters('ycsb-a', { VALUE_BYTES: '2MiB' }));
  fails('a block over a batch', 'at most 6MiB', () => parameters('blocks', { BLOCK_RECORDS: '100', VALUE_BYTES: '1MiB' }));
  const shared = (environment) => () => parameters('ledger', environment);
  fails('records of a ledger of members', 'RECORDS is not a parameter of ledger; it takes DURATION', shared({ RECORDS: '100' }));
  fails('more clients than lanes', 'VUS is at most 16 times MEMBERS', shared({ VUS: '33', MEMBERS: '2' }));
  fails('too many members', 'MEMBERS=256: it is too large', shared({ MEMBERS: '256' }));
  fails('no journals', 'JOURNALS=0: it is too small', shared({ JOURNALS: '0' }));
  fails('more clues of a journal than there are', 'JOURNAL_CLUES is at most CLUES', shared({ CLUES: '2', JOURNAL_CLUES: '3' }));
  fails('a payload over the limit', 'VALUE_BYTES=1048576: it is too large', shared({ VALUE_BYTES: '1MiB', JOURNALS: '1' }));
  fails('a request over a batch', 'at most 4MiB', shared({ JOURNALS: '100', VALUE_BYTES: '100KiB' }));
  fails('a spike below its base', 'above RATE', () => parameters('spike', { RATE: '9/s', SPIKE_RATE: '9/s' }));
  for (const scenario of ['prune-under-load', 'rollback-drill']) {
    fails(`${scenario} by accident`, 'DESTRUCTIVE=yes', () => parameters(scenario, {}));
  }
  for (const scenario of Object.keys(SCENARIOS)) {
    is(`the defaults of ${scenario} are in order`, Boolean(parameters(scenario, SCENARIOS[scenario].DESTRUCTIVE ? { DESTRUCTIVE: 'yes' } : {}).values.DURATION));
    is(`${scenario} takes only known parameters`, Object.keys(SCENARIOS[scenario]).every((name) => PARAMETERS[name].help));
  }
}

function places() {
  same('one', endpoints({ COPPICE_ENDPOINT: 'http://127.0.0.1:7' }), { secure: false, addresses: ['127.0.0.1:7'] });
  const tls = { COPPICE_ENDPOINT: 'https://a.b:1,https://[::1]:2', COPPICE_CA: 'ca.pem' };
  same('two by TLS', endpoints(tls), { secure: true, addresses: ['a.b:1', '[::1]:2'] });
  same('a CA alone says TLS', endpoints({ COPPICE_ENDPOINT: 'a:1', COPPICE_CA: 'ca.pem' }).secure, true);
  fails('none', 'http://HOST:PORT', () => endpoints({}));
  fails('no port', 'http://HOST:PORT', () => endpoints({ COPPICE_ENDPOINT: 'http://ledger' }));
  fails('https without a CA', 'COPPICE_CA', () => endpoints({ COPPICE_ENDPOINT: 'https://a:1' }));
  fails('http with a CA', 'only https', () => endpoints({ COPPICE_ENDPOINT: 'http://a:1', COPPICE_CA: 'ca.pem' }));
  fails('half an identity', 'given together', () => endpoints({ ...tls, COPPICE_CLIENT_CERT: 'c.pem' }));
}

function keys() {
  const first = new Uint8Array(b64decode(keyOf('k6/1')));
  same('a key ends in its name', String.fromCharCode(...first.slice(4)), 'k6/1');
  const high = Array.from({ length: 1000 }, (_, at) => new Uint8Array(b64decode(keyOf(`k6/${at}`)))[0] >= 128).filter(Boolean).length;
  is(`keys are spread over the shards: ${high} of 1000 are in the upper half`, high > 400 && high < 600);
  is('mixing keeps 32 bits', mix(-1) >= 0 && mix(7) < 2 ** 32 && mix(7) !== mix(8));
  is('draws stay below', Array.from({ length: 100 }, () => below(3)).every((draw) => draw >= 0 && draw < 3));
  const zipfian = new Zipfian(1000);
  const draws = Array.from({ length: 2000 }, (_, at) => zipfian.next((at + 0.5) / 2000));
  is('few records are asked for often', draws.filter((draw) => draw < 10).length > 600);
  is('all are within, and the rare ones come, too', draws.every((draw) => draw >= 0 && draw < 1000) && draws.some((draw) => draw > 900));
}

// A ledger whose attempts follow a script.
function scripted(answers) {
  const asked = [];
  const made = Object.create(ledger);
  Object.assign(made, { session: null, turn: 0, connected: true, unjudged: [], measuring: false });
  made.leave = () => asked.push('leave');
  made.attempt = (method, request) => {
    asked.push(request.number ? `${method} ${request.number}` : method);
    const next = answers.shift();
    if (!next) throw new Error('asked too often');
    return typeof next === 'string' ? { cause: causeOf(next === 'lost' ? 'Unavailable' : 'FailedPrecondition', next === 'lost' ? { message: 'gone' } : info(next)) } : { message: next };
  };
  return { made, asked };
}

function info(reason) {
  return { message: reason.toLowerCase(), details: [{ '@type': 'type.googleapis.com/google.rpc.ErrorInfo', reason, domain: 'coppice.v1', metadata: {} }] };
}

function refusal(work) {
  try {
    work();
    return null;
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    return [error.reason, error.unknown];
  }
}

function repetitions() {
  const lost = scripted(['lost', 'NOT_LEADER', 'RESOURCE_EXHAUSTED', { stamp: 1 }]);
  same('it is asked again until it answers', lost.made.call('Commit', {}), { stamp: 1 });
  same('by another coordinator, except for one that is busy', lost.asked, ['Commit', 'leave', 'Commit', 'leave', 'Commit', 'Commit']);
  for (const reason of ['PRECONDITION_FAILED', 'PRUNED', 'INVALID_ARGUMENT', 'LIMIT_EXCEEDED', 'CORRUPTED']) {
    same(`${reason} is final`, refusal(() => scripted([reason]).made.call('Get', {})), [reason, false]);
  }
  for (const reason of ['UNAVAILABLE', 'STATE_MISSING', 'FENCED_FOR_ROLLBACK', 'MISSED_ADMIN', 'STALE_TERM', 'BASE_MISMATCH']) {
    same(`${reason} is for a moment`, scripted([reason, { ok: 1 }]).made.call('Get', {}), { ok: 1 });
  }
  same('a denied call is not made again', causeOf('PermissionDenied', { message: 'no' }).again, false);
  same('a foreign reason is none', causeOf('NotFound', { details: [{ reason: 'UNAVAILABLE', domain: 'elsewhere' }] }).reason, 'NotFound');
  same('an outcome stays open', refusal(() => scripted(['lost', 'PRECONDITION_FAILED']).made.call('Commit', {})), ['PRECONDITION_FAILED', true]);
  same('a refusal of the number itself is certain', refusal(() => scripted(['lost', 'ROLLED_BACK']).made.call('Commit', {})), ['ROLLED_BACK', false]);
  same('a prune without an answer is not repeated', refusal(() => scripted(['lost']).made.call('Prune', {}, false)), ['Unavailable', true]);
  same('a prune that was not begun is repeated', scripted(['NOT_LEADER', { ok: 1 }]).made.call('Prune', {}, false), { ok: 1 });
  same('patience ends', refusal(() => scripted(Array(100).fill('lost')).made.call('Get', {})), ['Unavailable', true]);
}

function sessions() {
  const { made, asked } = scripted([{}, { stamp: 1 }, 'lost', { stamp: 2 }, 'ROLLED_BACK', 'PRECONDITION_FAILED', { stamp: 5 }, 'UNKNOWN_SESSION', {}, { stamp: 6 }]);
  made.commit([]);
  made.commit([]);
  same('a batch that was taken back', refusal(() => made.commit([])), ['ROLLED_BACK', false]);
  same('a refused batch', refusal(() => made.commit([])), ['PRECONDITION_FAILED', false]);
  made.commit([]);
  made.commit([]);
  same('numbers are used up by what was committed, and a session that ended is opened again', asked, [
    'OpenSession', 'Commit 1', 'Commit 2', 'leave', 'Commit 2', 'Commit 3', 'Commit 4', 'Commit 4', 'Commit 5', 'OpenSession', 'Commit 1',
  ]);
  const open = scripted([{}, ...Array(100).fill('lost')]);
  same('nobody answers', refusal(() => open.made.commit([])), ['Unavailable', true]);
  same('what follows is in another session', open.made.session, null);
  const record = (version) => ({ records: [{ key: 'a', found: true, value: 'MQ==', lastChanged: { epoch: '0', version } }], readAt: null });
  const sent = [];
  const other = scripted([]);
  other.made.read = () => record(`${sent.length}`);
  other.made.commit = (operations, more) => {
    sent.push(more.preconditions);
    if (sent.length === 1) throw new Refused('PRECONDITION_FAILED', 'no', false);
    return { stamp: 9 };
  };
  conditionally(other.made, ['a'], () => ['Mg==']);
  same('after a conflict it is read again', sent.map(([condition]) => condition.lastChanged.version), ['0', '1']);
}

// A lane whose ledger follows a script, with a module that signs nothing.
function lane(answers) {
  const { made, asked } = scripted(answers);
  made.head = () => ({ clusterId: 'c', stamp: { epoch: '0' }, checkpoint: 'note' });
  const told = [];
  const signed = [];
  const module = {
    request: (text) => {
      const { number, journals } = JSON.parse(text);
      signed.push(number);
      return JSON.stringify({ signed: `s${number}`, signature: '', items: journals, hash: `h${signed.length}` });
    },
    newest: (text) => text && JSON.stringify(JSON.parse(text).record),
    author: (text) => JSON.stringify(JSON.parse(text).by),
    acknowledge: (text) => told.push(JSON.parse(text)),
  };
  return { lane: new Lane(made, module, { ledger: 'l', member: 'm', lane: 0 }), asked, told, signed };
}

const at = (number, firstJsn) => ({ record: { number: `${number}`, firstJsn: `${firstJsn}` } });
const from = (hash) => ({ journals: [{ by: hash }] });
const done = (firstJsn) => ({ firstJsn: `${firstJsn}`, checkpoint: 'note' });

function lanes() {
  const one = lane([at(4, 9), done(10), 'lost', done(12)]);
  same('a request follows the newest of its lane', [one.lane.append([1, 2]), one.lane.append([3])], [10, 12]);
  same('a repetition is the same request', [one.asked, one.signed], [['GetMember', 'Append', 'Append', 'leave', 'Append'], ['5', '6']]);
  same('all are told to the books', one.told, [{ request: 'h1', firstJsn: '10', count: 2 }, { request: 'h2', firstJsn: '12', count: 1 }]);

  const own = lane([at(4, 9), 'lost', 'LANE', at(5, 10), from('h1')]);
  same('a refused repetition that was applied', [own.lane.append([1]), own.signed, own.lane.pending], [10, ['5'], null]);
  const other = lane([at(4, 9), 'lost', 'LANE', at(5, 10), from('another'), done(11)]);
  same('a number that another author has used', [other.lane.append([1]), other.signed, other.told.length], [11, ['5', '6'], 1]);
  const late = lane([at(4, 9), 'lost', 'LANE', at(6, 12)]);
  same('numbers behind it leave the outcome open', [refusal(() => late.lane.append([1])), late.told, late.lane.pending], [['LANE', true], [], null]);
  const first = lane([at(4, 9), 'LANE', at(6, 12), done(13)]);
  same('without an attempt before, it is certain', [first.lane.append([1]), first.signed], [13, ['5', '7']]);
  const epoch = lane([at(4, 9), 'STALE_VIEW', at(4, 9), done(10)]);
  same('another epoch is looked at', [epoch.lane.append([1]), epoch.signed], [10, ['5', '5']]);
  same('a refusal for good', refusal(() => lane([at(4, 9), 'ROLE_MISSING']).lane.append([1])), ['ROLE_MISSING', false]);

  const open = lane([at(4, 9), ...Array(100).fill('lost')]);
  same('nobody answers', refusal(() => open.lane.append([1])), ['Unavailable', true]);
  open.lane.ledger.attempt = () => ({ message: done(open.told.length ? 11 : 10) });
  same('the open request is sent first', [open.lane.append([2]), open.signed, open.told.map(({ request }) => request)], [11, ['5', '6'], ['h1', 'h2']]);
}

// The module itself: it signs what it is given, and says what it can't sign.
function signatures() {
  const note = 'coppice/test\n3\nBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=\n\n\u2014 coppice/test ' + `${'A'.repeat(88)}AAA=\n`;
  const given = { cluster: 'AAAAAAAAAAAAAAAAAAAAAA==', epoch: '0', checkpoint: b64encode(note), name: 'n', ledger: 'AAAAAAAAAAAAAAAAAAAAAA==', member: 'm', lane: 3, number: '7' };
  const { signed, signature, items, hash } = JSON.parse(coppice.request(JSON.stringify({ ...given, journals: [{ payload: 'MQ==', clues: ['Mg=='] }] })));
  same('its lengths', [signature, hash].map((bytes) => b64decode(bytes).byteLength), [64, 32]);
  is('what is signed says what it is', b64decode(signed, 'std', 's').slice(1, 16) === 'coppice-journal' && items.length === 1);
  fails('a request without journals', '1 to 1,024 items', () => coppice.request(JSON.stringify({ ...given, journals: [] })));
  fails('an answer without a request', '32 bytes', () => coppice.acknowledge('{}'));
  coppice.acknowledge(JSON.stringify({ request: hash, firstJsn: '9', count: 1 }));
  fails('a ledger without an acknowledged request', 'one of them at journal 9', () => coppice.finish());
}

function plans() {
  const closed = parameters('ycsb-a', {}).values;
  same('a closed loop', paced(closed), { executor: 'constant-vus', exec: 'main', vus: 8, duration: '30000ms' });
  const open = parameters('ycsb-a', { RATE: '0.5/s' }).values;
  same('an open loop', [paced(open).rate, paced(open).timeUnit], [500, '1000s']);
  const spike = spiked(parameters('spike', {}).values);
  same('a spike', spike.stages.map(({ target: height }) => height), [1200, 12000, 12000, 1200, 1200]);
  same('takes all of its time', spike.stages.reduce((sum, { duration }) => sum + parseInt(duration, 10), 0), 60_000);
  same('phases', [0, 0.4, 0.64, 0.65, 2].map((at) => phaseAt(PHASES.spike, at)), ['before', 'during', 'during', 'after', 'after']);
  const held = thresholds('ycsb-a', open, { read: 'read', update: 'write' });
  same('levels', [held['op_duration{op:read}'], held['op_duration{op:update}']], [['p(95)<250'], ['p(95)<500']]);
  same('each operation happens', held['ops{op:update}'], ['count>0']);
  same('few begin late', held.dropped_iterations, ['count<=0']);
  same('one bad proof ends it', held.proofs_bad, [{ threshold: 'count==0', abortOnFail: true }]);
  is('no proof at all is not a success', held.proofs_checked[0] === 'count>0');
  const phased = Object.entries(thresholds('spike', parameters('spike', {}).values, { read: 'read' })).filter(([name]) => name.startsWith('op_duration'));
  same('a spike is judged before and after', phased.map(([name, [level]]) => [name, level]), [
    ['op_duration{op:read,phase:before}', 'p(95)<250'], ['op_duration{op:read,phase:during}', SHOWN], ['op_duration{op:read,phase:after}', 'p(95)<250'],
  ]);
}

function reports() {
  const trend = { count: 9, med: 1, 'p(90)': 2, 'p(95)': 3, 'p(99)': 4, max: 5 };
  const data = {
    state: { testRunDurationMs: 2000 },
    metrics: {
      'op_duration{op:read}': { type: 'trend', values: trend, thresholds: { 'p(95)<2': { ok: false } } },
      'ops{op:read}': { type: 'counter', values: { count: 9 }, thresholds: { 'count>0': { ok: true } } },
      ops: { type: 'counter', values: { count: 9 } },
      ops_failed: { type: 'rate', values: { rate: 0.25 }, thresholds: { 'rate<=0.5': { ok: true } } },
      grpc_req_duration: { type: 'trend', values: trend },
    },
  };
  const result = digest(data, { scenario: 'a<b', endpoint: 'here', parameters: { VUS: '8' } });
  same('it does not hold', [result.holds, result.levels[0]], [false, { metric: 'op_duration{op:read}', level: 'p(95)<2', measured: 3, holds: false }]);
  same('operations', result.operations, [{ op: 'read', phase: null, count: 9, latency_ms: { med: 1, 'p(90)': 2, 'p(95)': 3, 'p(99)': 4, max: 5 } }]);
  same('counts', [result.counts, result.operations_per_second], [{ ops: 9, ops_failed: 0.25 }, 4.5]);
  is('the terminal says what is missed', text(result).includes('MISSED op_duration{op:read} p(95)<2: 3'));
  const page = html(result);
  is('the page says it, and escapes', page.includes('DOES NOT HOLD') && page.includes('a&lt;b') && !page.includes('a<b'));
  same('tags', split('a{op:x,phase:y}'), { metric: 'a', tags: { op: 'x', phase: 'y' } });
}

export default function () {
  for (const part of [units, refusals, places, keys, repetitions, sessions, lanes, signatures, plans, reports]) {
    try {
      part();
    } catch (error) {
      is(`${part.name} ends by itself, not with ${error}`, false);
    }
  }
}
