// A client of the ledger over k6's gRPC. It retries as docs/consistency.md allows, numbers its
// batches in a session, counts errors, and has a sample of the proofs judged.
import exec from 'k6/execution';
import http from 'k6/http';
import grpc from 'k6/net/grpc';
import { sleep } from 'k6';
import { Counter, Rate, Trend } from 'k6/metrics';
import { randomId } from './keys.js';

const PAUSE_MIN_MS = 20;
const PAUSE_MAX_MS = 500;
const ANSWER_BYTES_MAX = 96 << 20;
const DOMAIN = 'coppice.v1';
// Temporary reasons, as in docs/consistency.md and in the Rust client.
const AGAIN = new Set(['NOT_LEADER', 'UNAVAILABLE', 'STATE_MISSING', 'FENCED_FOR_ROLLBACK', 'MISSED_ADMIN', 'STALE_TERM', 'BASE_MISMATCH']);
const EXHAUSTED = 'RESOURCE_EXHAUSTED';
// Codes of the transport for failures without a reason. A missing permission is permanent.
const TRANSPORT_AGAIN = new Set(['Canceled', 'Unknown', 'DeadlineExceeded', 'Aborted', 'Unavailable']);

export const metrics = {
  duration: new Trend('op_duration', true),
  done: new Counter('ops'),
  failed: new Rate('ops_failed'),
  retries: new Counter('retries'),
  conflicts: new Counter('conflicts'),
  unknown: new Counter('outcomes_unknown'),
  rolledBack: new Counter('rolled_back'),
  broken: new Counter('invariants_broken'),
  checked: new Counter('proofs_checked'),
  bad: new Counter('proofs_bad'),
  unjudged: new Counter('proofs_unjudged'),
};

// The ledger refused, or did not answer. `unknown`: an attempt may have taken effect, or may still.
export class Refused extends Error {
  constructor(reason, message, unknown) {
    super(`${reason}: ${message}`);
    this.reason = reason;
    this.unknown = unknown;
  }
}

// The cause of a failed call: the ledger's reason, or else the transport's code, which k6 gives as
// an object with a name. `again`: the call may be retried; `idle`: it certainly had no effect.
export function causeOf(status, error) {
  const details = (error && error.details) || [];
  const info = details.find((detail) => detail.domain === DOMAIN);
  const message = (error && error.message) || '';
  if (info) {
    return { reason: info.reason, message, again: AGAIN.has(info.reason) || info.reason === EXHAUSTED, idle: info.reason === 'NOT_LEADER' || info.reason === EXHAUSTED };
  }
  return { reason: `${status}`, message, again: TRANSPORT_AGAIN.has(`${status}`), idle: /connection refused/i.test(message) };
}

export class Ledger {
  // Call this in the init context. `tags` returns the tags of measurements.
  constructor(target, tags = () => ({})) {
    this.target = target;
    this.tags = tags;
    this.client = new grpc.Client();
    this.client.load([target.protos.api, target.protos.errors], 'coppice/v1/ledger.proto', 'google/rpc/error_details.proto');
    this.connected = false;
    this.turn = null;
    this.session = null;
    this.genesis = null;
    this.measuring = false;
    this.unjudged = [];
  }

  // Runs an operation, and measures its duration including retries, and whether it failed. Returns
  // its result; null if it failed.
  measured(op, work) {
    const tags = { op, ...this.tags() };
    const began = Date.now();
    this.measuring = true;
    const failed = (error) => {
      this.measuring = false;
      if (!(error instanceof Refused)) throw error;
      if (error.unknown) metrics.unknown.add(1, tags);
      metrics.failed.add(true, tags);
      console.warn(`${op}: ${error.message}`);
      this.flush();
      // A client that is refused repeatedly slows down.
      sleep(PAUSE_MAX_MS / 1000);
      return null;
    };
    const done = (result) => {
      this.measuring = false;
      metrics.duration.add(Date.now() - began, tags);
      metrics.failed.add(false, tags);
      metrics.done.add(1, tags);
      this.flush();
      return result;
    };
    try {
      const result = work();
      return result instanceof Promise ? result.then(done, failed) : done(result);
    } catch (error) {
      return failed(error);
    }
  }

  connect() {
    const { secure, addresses, tls } = this.target;
    // Each client begins with a different coordinator.
    if (this.turn === null) this.turn = exec.vu.idInTest;
    const address = addresses[this.turn % addresses.length];
    const shape = { timeout: this.target.timeout, maxReceiveSize: ANSWER_BYTES_MAX };
    this.client.connect(address, secure ? { ...shape, tls } : { ...shape, plaintext: true });
    this.connected = true;
  }

  // The next attempt goes to the next coordinator.
  leave() {
    this.client.close();
    this.connected = false;
    this.turn += 1;
  }

  attempt(method, request) {
    try {
      if (!this.connected) this.connect();
    } catch (error) {
      // Nothing was sent.
      this.turn += 1;
      return { cause: { reason: 'NOT_CONNECTED', message: String(error), again: true, idle: true } };
    }
    const response = this.client.invoke(`coppice.v1.Ledger/${method}`, request, { timeout: this.target.timeout });
    if (response.status === grpc.StatusOK) return { message: response.message };
    return { cause: causeOf(response.status, response.error) };
  }

  // Calls until there is an answer or a permanent refusal, or patience ends. A call that is not
  // `safe` to repeat is retried only if it had no effect.
  call(method, request, safe = true) {
    const until = Date.now() + this.target.patienceMs;
    let unknown = false;
    for (let pause = PAUSE_MIN_MS; ; pause = Math.min(2 * pause, PAUSE_MAX_MS)) {
      const { message, cause } = this.attempt(method, request);
      if (message !== undefined) return message;
      if (!cause.again) throw new Refused(cause.reason, cause.message, unknown && cause.reason !== 'ROLLED_BACK' && cause.reason !== 'SESSION_MISMATCH');
      unknown = unknown || !cause.idle;
      // A coordinator at its limits is there, but busy.
      if (cause.reason !== EXHAUSTED && this.connected) this.leave();
      if (Date.now() + pause >= until || (!safe && !cause.idle)) throw new Refused(cause.reason, cause.message, unknown);
      metrics.retries.add(1, { reason: cause.reason, method });
      sleep(pause / 1000);
    }
  }

  head() {
    return this.call('Head', {});
  }

  // Reads keys, all at one version: `at`, or else the head. Returns { records, readAt }.
  read(keys, { at, prove } = {}) {
    const sampled = Math.random() < this.target.proofShare;
    const read = { ...(at ? { at, anyEpoch: true } : {}), wantProof: prove || sampled };
    const answer = this.readAsked(keys, read);
    if (sampled) this.judge('keys', { keys, read: { ...read, wantProof: undefined }, ...answer });
    return answer;
  }

  // One key is read by Get, several by BatchGet.
  readAsked(keys, read) {
    if (keys.length > 1) return this.call('BatchGet', { keys, read });
    const { record, readAt, proof } = this.call('Get', { key: keys[0], read });
    return { records: [record], readAt, proof };
  }

  // Reads a number of records from a key on. Returns a promise of the records.
  async scan(low, limit) {
    const sampled = Math.random() < this.target.proofShare;
    const answer = await this.streamed('Range', { low, limit, read: { wantProof: sampled } });
    const records = answer.flatMap((message) => message.records);
    const end = answer.length ? answer[answer.length - 1].end : null;
    if (!end) throw new Refused('BROKEN_OFF', 'the range has no end', false);
    if (sampled) this.judge('range', { low, limit, records, more: end.more, readAt: end.readAt, proof: end.proof });
    return records;
  }

  // The messages of a stream of answers. The stream is retried as a call is.
  async streamed(method, request) {
    const until = Date.now() + this.target.patienceMs;
    for (let pause = PAUSE_MIN_MS; ; pause = Math.min(2 * pause, PAUSE_MAX_MS)) {
      const { messages, cause } = await this.stream(method, request);
      if (messages) return messages;
      if (cause.reason !== EXHAUSTED && cause.again && this.connected) this.leave();
      if (!cause.again || Date.now() + pause >= until) throw new Refused(cause.reason, cause.message, false);
      metrics.retries.add(1, { reason: cause.reason, method });
      sleep(pause / 1000);
    }
  }

  stream(method, request) {
    try {
      if (!this.connected) this.connect();
    } catch (error) {
      this.turn += 1;
      return Promise.resolve({ cause: { reason: 'NOT_CONNECTED', message: String(error), again: true, idle: true } });
    }
    return new Promise((resolve) => {
      const messages = [];
      const stream = new grpc.Stream(this.client, `coppice.v1.Ledger/${method}`, { timeout: this.target.timeout });
      stream.on('data', (message) => messages.push(message));
      stream.on('error', (error) => resolve({ cause: causeOf(error.code, error) }));
      stream.on('end', () => resolve({ messages }));
      stream.write(request);
      stream.end();
    });
  }

  // Commits a batch in this client's session. `operations`: { key, put } or { key, delete: true };
  // `more`: preconditions and other fields.
  commit(operations, more = {}) {
    const batch = { operations, ...more };
    const wantReceipt = Math.random() < this.target.proofShare;
    for (let opened = 0; ; opened++) {
      if (!this.session) this.openSession();
      const request = { batch, sessionId: this.session.id, number: String(this.session.highest + 1), wantReceipt };
      try {
        const answer = this.call('Commit', request);
        this.session.highest += 1;
        if (wantReceipt) this.judgeCommit(request, answer);
        return answer;
      } catch (error) {
        if (this.refused(error) && opened === 0) continue;
        throw error;
      }
    }
  }

  // The consequence of a refusal for the session; true if the batch is to be sent in another one.
  refused(error) {
    if (!(error instanceof Refused)) return false;
    // The batch was committed, and then rolled back: its number is used up.
    if (error.reason === 'ROLLED_BACK') this.session.highest += 1;
    // The batch's outcome can't be learned any more. Later batches must not be refused because of
    // it.
    if (error.unknown || error.reason === 'UNKNOWN_SESSION') this.session = null;
    return error.reason === 'UNKNOWN_SESSION' && !error.unknown;
  }

  conflict() {
    metrics.conflicts.add(1, this.tags());
  }

  openSession() {
    const id = randomId();
    this.call('OpenSession', { sessionId: id });
    this.session = { id, highest: 0 };
  }

  judgeCommit(request, answer) {
    const { sessionId, number } = request;
    const { operations, metadata } = request.batch;
    const { stamp, header, receipt } = answer;
    this.judge('commit', { sessionId, number, operations, metadata, stamp, header, receipt });
  }

  // Has a share of the answers judged, or all of them.
  judgeSampled(kind, post, always = false) {
    if (this.target.proofShare > 0 && (always || Math.random() < this.target.proofShare)) this.judge(kind, post);
  }

  // Has an answer judged, outside of the measured time.
  judge(kind, post) {
    this.unjudged.push([kind, post]);
    if (!this.measuring) this.flush();
  }

  flush() {
    for (const [kind, post] of this.unjudged.splice(0)) {
      // Receipts name shards, which the judge knows from genesis.
      if (kind === 'commit') this.genesis = this.genesis || this.call('GetHeader', { sequence: '0' }).header;
      this.post(kind, kind === 'commit' ? { genesis: this.genesis, ...post } : post);
    }
  }

  post(kind, post) {
    const response = http.post(`${this.target.judge}/${kind}`, JSON.stringify(post), {
      responseCallback: http.expectedStatuses(204, 422, 424), tags: { name: 'judge' }, timeout: '60s',
    });
    if (response.status === 204) {
      metrics.checked.add(1);
    } else if (response.status === 424) {
      // The batch was committed, and its coordinator could not prove it at that moment: nothing is
      // wrong, and nothing is proven.
      metrics.unknown.add(1, this.tags());
      console.warn(`not proven: ${response.body}`);
    } else if (response.status === 422) {
      metrics.bad.add(1);
      console.error(`an answer is not to be believed: ${response.body}`);
    } else {
      metrics.unjudged.add(1);
      console.error(`the judge does not answer: ${response.status} ${response.error}`);
    }
  }
}

// A number from [0, 1) that chooses the kind of an operation. It follows from the number of the
// iteration, so that even a short run has every kind in its proportion.
export function draw() {
  return (exec.scenario.iterationInTest * 0.6180339887498949) % 1;
}

// A fact that must be true of the ledger.
export function invariant(holds, what) {
  metrics.broken.add(holds ? 0 : 1);
  if (!holds) console.error(`broken: ${what}`);
}
