// What a client believes: the rules of the client for Rust, which `trust.wasm` runs.
//
// A proof alone shows that something was so. Here it must answer the question that was asked, and
// be no older than what was seen before; and all that is seen must be beginnings of one log.

import { Forked, Refused, Untrusted } from "./errors.js";
import { hex, unhex } from "./bytes.js";

const GROWTH_TRIES = 5;
const FORMAT = 1;
// A longer proof is not kept as evidence: the next one is shorter.
const KEPT_BYTES_MAX = 256 << 10;
const FORKS = ["forked", "changed", "late"];

export class Trust {
  #verifier;
  #rules;
  #memory = { marks: null, changes: [] };
  #proof = new Uint8Array();
  #growth;
  #askedAt = -Infinity;
  #missingSince = null;

  constructor(verifier, rules, vkey, { stored, growth = {} } = {}) {
    [this.#verifier, this.#rules] = [verifier, rules];
    this.vkey = vkey.trim();
    // Time between proofs that the log only grew, and the longest time without one.
    this.#growth = { intervalMs: 10_000, patienceMs: 60_000, ...growth };
    if (stored) this.#remember(JSON.parse(stored));
  }

  /** Takes what a client knew. It is believed as it is. */
  #remember({ format, trusted, changes, marks, proof }) {
    if (format !== FORMAT) throw new TypeError("the stored memory has another format");
    if (![trusted, ...changes.map(({ vkey }) => vkey)].includes(this.vkey)) {
      throw new TypeError("the stored memory is of a ledger with other keys");
    }
    [this.#memory, this.#proof] = [{ marks, changes }, unhex(proof)];
  }

  /** What a later client of the same ledger should know, as text. */
  stored() {
    const proof = this.#proof.length <= KEPT_BYTES_MAX ? hex(this.#proof) : "";
    return JSON.stringify({ format: FORMAT, trusted: this.vkey, ...this.#memory, proof });
  }

  /** What is known before a question: an answer is judged by it. */
  asking({ stale = false } = {}) {
    const { marks, changes } = this.#memory;
    return { keys: changes.at(-1)?.vkey ?? this.vkey, seen: stale ? 0 : (marks?.newest.size ?? 0) };
  }

  /** Judges a proof file, which must answer what is expected, and learns from it. */
  judge(proof, asking, { ofHead = false, expect = {} } = {}) {
    const report = this.#verified(proof, asking, expect);
    const before = this.#memory.marks;
    this.#take(this.#rules.trust(this.#memory, { seen: asking.seen, ofHead }, report), proof);
    if (this.#memory.marks.newest !== before?.newest) this.#proof = proof;
    return report;
  }

  #verified(proof, { keys }, expect) {
    const report = this.#verifier.verify(proof, { keys, encoding: "hex", expect });
    if (!report.valid) throw new Untrusted(report.error, { step: report.failed_step, proof });
    return report;
  }

  #take({ distrust, error, memory }, proof) {
    if (FORKS.includes(distrust)) throw new Forked(error, { reason: distrust, known: this.#proof, proof });
    if (distrust) throw new Untrusted(error, { reason: distrust, proof });
    this.#memory = memory;
  }

  /**
   * From time to time, demands that one log extends the checkpoint that was proven last and the
   * newest one that was seen. `ask` gets the proof of growth since a size.
   */
  async follow(ask) {
    const { newest, proven } = this.#memory.marks;
    const now = performance.now();
    const waited = now - this.#askedAt >= this.#growth.intervalMs || this.#isOverdue();
    if (BigInt(newest.size) <= BigInt(proven.size) || !waited) return;
    [this.#askedAt, this.#missingSince] = [now, this.#missingSince ?? now];
    try {
      for (let tried = 0; tried < GROWTH_TRIES; tried += 1) if (await this.#tie({ newest, proven }, ask)) return;
    } catch (error) {
      // Nobody answered. The answer at hand is proven all the same.
      if (!(error instanceof Refused)) throw error;
    }
    if (this.#isOverdue()) {
      const why = "the ledger does not prove that its log extends the one that was proven last";
      throw new Untrusted(why, { reason: "unproven" });
    }
  }

  #isOverdue() {
    return this.#missingSince !== null && performance.now() - this.#missingSince >= this.#growth.patienceMs;
  }

  async #tie(growth, ask) {
    const asking = this.asking();
    const files = await Promise.all([ask(growth.proven.size), ask(growth.newest.size)]);
    const reports = files.map((file, at) => {
      const report = this.#verified(file, asking, {});
      const { size } = at === 0 ? growth.proven : growth.newest;
      if (report.kind !== "standing" || `${report.old_size}` !== `${size}`) {
        throw new Untrusted("the proof answers another question", { proof: file });
      }
      // Only the keys: the ends are remembered if they show one log.
      const learned = this.#rules.trust({ ...this.#memory, marks: null }, {}, report);
      this.#take({ ...learned, memory: { ...learned.memory, marks: this.#memory.marks } }, file);
      return report;
    });
    const judged = this.#rules.grown(this.#memory, growth, ...reports);
    this.#take(judged, files[0]);
    if (!judged.isOneLog) return false;
    [this.#missingSince, this.#proof] = [null, files[0]];
    return true;
  }
}
