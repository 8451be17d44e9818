// A ledger that members share. They append signed journals with clues, and read journals and
// lineages, all with proofs. In the end the ledger must have each acknowledged request once.
//
// `coppice` is the module `k6/x/coppice` of scripts/k6. Its functions take and give JSON.
import exec from 'k6/execution';
import { Counter } from 'k6/metrics';
import { Values, Zipfian, below, textValue } from '../lib/keys.js';
import { Refused, draw, invariant } from '../lib/ledger.js';
import { paced } from '../lib/plan.js';
import { LANES } from '../lib/settings.js';

// The owner, which founds the ledger and appends nothing else. A certificate names this member.
const OWNER = 'k6';
// Journals of a read, if their payloads are not large.
const READ_JOURNALS = 10;
const READ_BYTES = 2 << 20;
const PAGE_JOURNALS = 512;
// Most requests that are signed for one operation, after refusals.
const SIGNED_MAX = 50;
// Another author has used the number in the lane, or a rollback has begun another epoch.
const OVERTAKEN = ['LANE', 'STALE_VIEW'];

const appended = new Counter('journals_appended');

// One lane of a member, used by one client. An Author of the SDKs does the same. `place` has the
// names of ledger and member, the ledger's id and the number of the lane.
export class Lane {
  constructor(ledger, coppice, place) {
    this.ledger = ledger;
    this.coppice = coppice;
    this.place = place;
    // The number of the newest request of the lane, and the root log as requests name it. Both are
    // null until they are asked for.
    this.newest = null;
    this.seen = null;
    // The request whose outcome is unknown. It is sent again before any other one.
    this.pending = null;
  }

  // Appends journals in one request, and returns the number of the first one.
  append(journals) {
    if (this.pending) this.settle();
    for (let signed = 1; ; signed++) {
      const request = this.sign(journals);
      try {
        return this.send(request);
      } catch (error) {
        if (error.unknown || !OVERTAKEN.includes(error.reason) || signed === SIGNED_MAX) throw error;
        this.ledger.conflict();
      }
    }
  }

  sign(journals) {
    this.seen = this.seen || seenBy(this.ledger);
    const newest = this.newest === null ? Number(this.asked().number) : this.newest;
    this.newest = newest;
    return { ...told(this.coppice.request, { ...this.place, ...this.seen, number: `${newest + 1}`, journals }), number: newest + 1 };
  }

  // Sends a request. If the outcome stays unknown, it is pending.
  send(request) {
    const { signed, signature, items, hash, number } = request;
    this.pending = request;
    let first;
    try {
      const answer = this.ledger.call('Append', { signed, signature, items, wantReceipt: true });
      this.seen = { ...this.seen, checkpoint: answer.checkpoint };
      first = answer.firstJsn;
      this.ledger.judgeSampled('append', { signed, signature, items, ...answer });
    } catch (error) {
      first = this.refused(request, error);
    }
    this.pending = null;
    this.newest = number;
    this.coppice.acknowledge(JSON.stringify({ request: hash, firstJsn: first, count: items.length }));
    appended.add(items.length);
    return Number(first);
  }

  // The consequence of a refusal. Returns the number of the first journal if the ledger has the
  // request all the same, and throws if not.
  refused(request, error) {
    if (!(error instanceof Refused)) throw error;
    if (OVERTAKEN.includes(error.reason)) {
      this.seen = null;
      const newest = this.asked();
      this.newest = Number(newest.number);
      if (this.newest === request.number && this.authorOf(newest.firstJsn) === request.hash) return newest.firstJsn;
      // A later number says nothing about this one. Without it, the request was not applied.
      error.unknown = error.unknown && this.newest > request.number;
      // Sending it again would say no more.
      this.pending = null;
    }
    if (!error.unknown) this.pending = null;
    throw error;
  }

  settle() {
    try {
      this.send(this.pending);
    } catch (error) {
      if (this.pending) throw error;
    }
  }

  // The newest request of the lane, as the record of the member has it.
  asked() {
    const { ledger, member, lane } = this.place;
    const { record } = this.ledger.call('GetMember', { ledger: { id: ledger }, member });
    return told(this.coppice.newest, { record, lane });
  }

  // The hash of the request that has made a journal.
  authorOf(jsn) {
    const { journals } = this.ledger.call('GetJournals', { ledger: { id: this.place.ledger }, fromJsn: jsn, limit: 1 });
    return told(this.coppice.author, journals[0]);
  }
}

// The answer of a function of the module.
function told(work, given) {
  return JSON.parse(work(JSON.stringify(given)));
}

function seenBy(ledger) {
  const { clusterId, stamp, checkpoint } = ledger.head();
  return { cluster: clusterId, epoch: stamp.epoch, checkpoint };
}

export class Members {
  constructor(ledger, values, coppice) {
    this.ledger = ledger;
    this.coppice = coppice;
    this.members = values.MEMBERS;
    this.journals = values.JOURNALS;
    this.values = new Values(values.VALUE_BYTES);
    this.clues = values.CLUES;
    this.cluesEach = values.JOURNAL_CLUES;
    this.spread = values.SPREAD;
    this.readJournals = Math.max(1, Math.min(READ_JOURNALS, Math.floor(READ_BYTES / values.VALUE_BYTES)));
    this.name = `k6-${this.members}${this.spread ? '-spread' : ''}`;
    this.zipfian = null;
    this.lane = null;
    // The largest size of the ledger that this client has seen, and the state of an earlier read.
    this.size = 1;
    this.known = { knownSize: '0' };
  }

  // Finds the ledger by its name, or founds it.
  found() {
    const known = this.described();
    if (known) return known;
    const names = [OWNER, ...Array.from({ length: this.members }, (_, at) => this.memberName(at))];
    const { signed, signature, items } = told(this.coppice.founding, { ...seenBy(this.ledger), name: this.name, spread: this.spread, members: names });
    try {
      this.ledger.call('Append', { signed, signature, items });
    } catch (error) {
      // Another run may have founded it meanwhile.
      if (error.reason !== 'NOT_POSSIBLE') throw error;
    }
    return this.described();
  }

  described() {
    try {
      const { id, size } = this.ledger.call('DescribeLedger', { ledger: { name: this.name } });
      return { id, size };
    } catch (error) {
      if (error.reason !== 'NOT_FOUND') throw error;
      return null;
    }
  }

  memberName(at) {
    return `k6-${at + 1}`;
  }

  // The lane of this client: clients are dealt to the members in turn.
  ownLane(id) {
    const client = exec.vu.idInTest - 1;
    const place = { name: this.name, ledger: id, member: this.memberName(client % this.members), lane: Math.floor(client / this.members) % LANES };
    this.lane = this.lane || new Lane(this.ledger, this.coppice, place);
    return this.lane;
  }

  clue() {
    this.zipfian = this.zipfian || new Zipfian(this.clues);
    return textValue(`k6/${this.zipfian.next()}`);
  }

  draft() {
    const clues = new Set();
    while (clues.size < this.cluesEach) clues.add(this.clue());
    return { payload: this.values.next(), clues: [...clues] };
  }

  append({ id }) {
    const journals = Array.from({ length: this.journals }, () => this.draft());
    const first = this.ledger.measured('append', () => this.ownLane(id).append(journals));
    if (first !== null) this.size = Math.max(this.size, first + journals.length);
  }

  // Reads neighbouring journals. The proof also shows that the ledger has only grown since the read
  // before.
  readSome({ id, size }) {
    this.size = Math.max(this.size, Number(size));
    this.ledger.measured('read_journals', () => this.page(id, below(this.size), this.readJournals, { wantPayload: true, wantRequest: true }));
  }

  page(id, from, limit, wanted, always = false) {
    const { knownSize, knownRoot } = this.known;
    const asked = { fromJsn: `${from}`, limit, ...wanted, knownSize };
    const answer = this.ledger.call('GetJournals', { ledger: { id }, ...asked, read: { wantProof: true } });
    this.ledger.judgeSampled('journals', { ledger: id, ...asked, knownRoot, ...answer }, always);
    if (Number(answer.size) > Number(knownSize)) this.known = { knownSize: answer.size, knownRoot: answer.root };
    this.size = Math.max(this.size, Number(answer.size));
    return answer;
  }

  readLineage({ id }) {
    const asked = { clue: this.clue(), newest: this.readJournals, wantPayload: true, wantRequest: true };
    this.ledger.measured('read_lineage', () => {
      const answer = this.ledger.call('GetLineage', { ledger: { id }, ...asked, read: { wantProof: true } });
      this.ledger.judgeSampled('lineage', { ledger: id, ...asked, ...answer });
    });
  }

  // Reads all journals of the run, with proofs, and compares them with what clients were told.
  check({ id, size: from }) {
    const { size } = this.described();
    let wrong = null;
    for (let next = Number(from); next < Number(size) && !wrong;) {
      const { journals } = this.page(id, next, Math.min(PAGE_JOURNALS, Number(size) - next), {}, true);
      wrong = complaint(() => this.coppice.walk(JSON.stringify({ ledger: id, fromJsn: `${next}`, journals })));
      next += journals.length;
    }
    wrong = wrong || complaint(() => this.coppice.finish());
    invariant(wrong === null, wrong);
  }
}

// The error of a function of the module; null if there is none.
function complaint(work) {
  try {
    work();
    return null;
  } catch (error) {
    return String(error.message || error);
  }
}

export function members(ledger, values, coppice) {
  const shared = new Members(ledger, values, coppice);
  return {
    ops: { append: 'write', read_journals: 'read', read_lineage: 'read' },
    scenarios: { main: paced(values) },
    setup: () => shared.found(),
    main: (found) => {
      const drawn = draw();
      if (drawn < 0.5) return shared.append(found);
      return drawn < 0.75 ? shared.readSome(found) : shared.readLineage(found);
    },
    teardown: (found) => shared.check(found),
  };
}
