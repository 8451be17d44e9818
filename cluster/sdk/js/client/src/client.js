// Clients of a ledger: one that verifies, and one that believes.

import { load, loadRules } from "@coppice/verify";

import { Batch } from "./batch.js";
import { afterPrefix, asBytes, asKey, compare, equal, hex, inUrl, isStep, sha256, successor, unhex } from "./bytes.js";
import { CoppiceError, Malformed, Refused, Untrusted, readAs } from "./errors.js";
import { Failed, PROOF, Transport, json, paused } from "./http.js";
import { Shards } from "./shards.js";
import { Trust } from "./trust.js";

const PAGE_MAX = 1000;
const READS_AT_ONCE = 8;
const [PAUSE_MS, PAUSE_MAX_MS] = [20, 500];

/** What both clients do. */
class Base {
  constructor(endpoints, options) {
    this.transport = new Transport(endpoints, options);
  }

  put(key, value, { ifAbsent, ifChanged, signal } = {}) {
    return this.send(new Batch().put(key, value), { ifAbsent, ifChanged, signal });
  }

  delete(key, { ifChanged, signal } = {}) {
    return this.send(new Batch().delete(key), { ifChanged, signal });
  }

  commit(batch, { signal } = {}) {
    return this.send(batch, { signal });
  }

  /** Opens a session, or finds it again by its 16 bytes. Its writes take place once each. */
  async session(id = crypto.getRandomValues(new Uint8Array(16)), { signal } = {}) {
    const bytes = asBytes(id);
    if (bytes.length !== 16) throw new RangeError("the id of a session has 16 bytes");
    const headers = { "Coppice-Write": "any" };
    const answer = await this.transport.call("PUT", `/v1/sessions/${hex(bytes)}`, { headers, signal });
    return new Session(this, bytes, readAs(() => BigInt(json(answer.body).highest_number)));
  }

  async write(batch, { ifAbsent, ifChanged, session, signal }, accept) {
    if (ifAbsent && ifChanged) throw new TypeError("ifAbsent and ifChanged exclude each other");
    const headers = { Accept: accept, "Coppice-Write": "any" };
    if (ifAbsent) headers["If-None-Match"] = "*";
    if (ifChanged) headers["If-Match"] = `"${ifChanged.epoch}.${ifChanged.version}"`;
    if (session) Object.assign(headers, { "Coppice-Session": hex(session.id), "Coppice-Number": `${session.number}` });
    const { puts, deletes } = batch;
    const keys = [...puts.map(([key]) => key), ...deletes];
    const options = { headers, once: !session, signal };
    if (keys.length === 1 && !isStep(keys[0])) {
      const path = `/v1/records/${inUrl(keys[0])}`;
      if (puts.length === 0) return this.transport.call("DELETE", path, options);
      return this.transport.call("PUT", path, { ...options, body: puts[0][1] });
    }
    if (ifAbsent || ifChanged) throw new TypeError("a URL can't name this key, so its write has no condition");
    headers["Content-Type"] = "application/json";
    const put = puts.map(([key, value]) => [hex(key), hex(value)]);
    const body = JSON.stringify({ encoding: "hex", put, delete: deletes.map(hex) });
    return this.transport.call("POST", "/v1/batches", { ...options, body });
  }

  /** The changes of a key, newest first: all, or `limit` of them. */
  async history(key, { limit = 0, version, signal } = {}) {
    const bytes = asKey(key);
    if (isStep(bytes)) throw new TypeError("a URL can't name this key");
    const path = `/v1/records/${inUrl(bytes)}/history?limit=${limit}${at(version)}`;
    const { body } = await this.transport.call("GET", path, { signal });
    return readAs(() => {
      const all = lines(body);
      const end = all.pop();
      if (end.changes !== all.length) throw new Malformed("a history without its end");
      const changes = all.map((line) => ({ version: stamp(line), value: line.found ? shown(line.value) : null }));
      return unverified({ changes, truncated: Boolean(end.truncated) });
    });
  }

  /** The keys whose records differ between two versions, in order. */
  async diff(from, to, { signal, ...range } = {}) {
    const { low, high } = bounds(range);
    const path = `/v1/diff?from=${number(from)}&to=${number(to)}&${between(low, high)}`;
    const { body } = await this.transport.call("GET", path, { signal });
    return readAs(() => {
      const all = lines(body);
      if (all.pop().keys !== all.length) throw new Malformed("a difference without its end");
      return unverified(all.map(difference));
    });
  }

  /** The entries of the root log from a number on, up to its end or before `to`. */
  async *log(from = 0, { to = Infinity, signal } = {}) {
    while (from < to) {
      const limit = Math.min(PAGE_MAX, to - from);
      const path = `/v1/log?from=${number(from)}&limit=${limit}`;
      const { headers, body } = await this.transport.call("GET", path, { signal });
      const entries = readAs(() => lines(body).map(entry));
      for (const one of entries) yield unverified(inOrder(one, from++));
      if (entries.length === 0 || !headers.get("Link")) return;
    }
  }

  /**
   * The entries of the root log as they come, from a number on or from now on. It goes on where a
   * broken connection ended, without a gap. Ends after `quietMs` without an entry.
   */
  async *watch(from, { quietMs = Infinity, signal } = {}) {
    if (from === undefined) {
      const { body } = await this.transport.call("GET", "/v1/head", { signal });
      from = readAs(() => Number(number(json(body).log_size)));
    }
    let [last, alive, pause] = [performance.now(), performance.now(), PAUSE_MS];
    while (performance.now() < last + quietMs) {
      const began = performance.now();
      let broken = new Refused("the watch breaks off again and again");
      try {
        const limits = { quietMs: last + quietMs - began, signal };
        for await (const { data } of this.transport.events(`/v1/watch?from=${number(from)}`, limits)) {
          yield unverified(inOrder(readAs(() => entry(json(data))), from++));
          [alive, pause] = [(last = performance.now()), PAUSE_MS];
        }
        // It was silent for long, and broke off.
        if (performance.now() - began > Math.max(this.transport.patienceMs, 1000)) alive = performance.now();
      } catch (failed) {
        if (!(failed instanceof Failed)) throw failed;
        if (failed.final) throw failed.refused;
        [broken, pause] = [failed.refused, Math.max(pause, failed.retryAfterMs)];
      }
      const now = performance.now();
      if (now - alive > this.transport.patienceMs && now < last + quietMs) throw broken;
      await paused(pause, signal);
      pause = Math.min(2 * pause, PAUSE_MAX_MS);
    }
  }
}

/** Numbers its writes, so that each takes place at most once. One write at a time has its turn. */
export class Session {
  #client;
  #turn = Promise.resolve();

  constructor(client, id, highest) {
    [this.#client, this.id, this.highest] = [client, id, highest];
  }

  put(key, value, { ifAbsent, ifChanged, signal } = {}) {
    return this.#next(new Batch().put(key, value), { ifAbsent, ifChanged, signal });
  }

  delete(key, { ifChanged, signal } = {}) {
    return this.#next(new Batch().delete(key), { ifChanged, signal });
  }

  commit(batch, { signal } = {}) {
    return this.#next(batch, { signal });
  }

  #next(batch, options) {
    const done = this.#turn.then(async () => {
      const session = { id: this.id, number: this.highest + 1n };
      try {
        const done = await this.#client.send(batch, { ...options, session });
        this.highest = session.number;
        return done;
      } catch (error) {
        // A batch that was committed and rolled back has used up its number as well.
        if (error instanceof Refused && error.reason === "ROLLED_BACK") this.highest = session.number;
        throw error;
      }
    });
    this.#turn = done.catch(() => {});
    return done;
  }
}

/** A client that believes only what is proven. See the README for what proves each answer. */
export class Client extends Base {
  #trust;
  #store;
  #saved = null;
  #saving = null;
  #shards = null;

  /** Opens a client. Nothing is asked of the ledger yet. */
  static async open(endpoints, { trust, store, verifier, rules, growth, ...options } = {}) {
    if (typeof trust !== "string") throw new TypeError("trust is the text of ledger.vkey");
    const client = new Client(endpoints, options);
    const stored = (await store?.load()) ?? null;
    client.#trust = new Trust(verifier ?? (await load()), rules ?? (await loadRules()), trust, { stored, growth });
    [client.#store, client.#saved] = [store, stored];
    return client;
  }

  /** What a later client should know, as text for a store. */
  memory() {
    return this.#trust.stored();
  }

  /** The newest version. */
  async head({ signal } = {}) {
    const asking = this.#trust.asking();
    // The growth from genesis on names all key changes.
    const proof = await this.#growth(1, signal);
    const report = this.#trust.judge(proof, asking);
    if (report.kind !== "standing") throw new Untrusted("the proof answers another question", { proof });
    return this.#believe(stamp(report.newest), { ...report, ...report.newest }, proof, signal);
  }

  /** The record of a key, or null if it is proven to have none. */
  async get(key, { version, stale = false, signal } = {}) {
    const bytes = asKey(key);
    const asking = this.#trust.asking({ stale });
    const where = isStep(bytes) ? `?${between(bytes, successor(bytes))}&limit=2` : `/${inUrl(bytes)}?`;
    const proof = await this.#proof(`/v1/records${where}${at(version)}${stale ? "&stale=true" : ""}`, signal);
    const subject = isStep(bytes) ? { range: [bytes, successor(bytes)] } : { keys: [bytes] };
    const report = this.#trust.judge(proof, asking, { ofHead: version === undefined, expect: { ...subject, version } });
    const [record] = report.kind === "range" ? report.records : report.found ? [report] : [];
    const value = record ? await this.#record(record, report.version, signal) : null;
    return this.#believe(value, report, proof, signal);
  }

  /** The records of several keys in one version, in their order. Each has its own proof. */
  async getMany(keys, { version, signal } = {}) {
    const all = keys.map(asKey);
    if (all.length === 0) return [];
    const first = await this.get(all[0], { version, signal });
    const answers = [first];
    for (let from = 1; from < all.length; from += READS_AT_ONCE) {
      const some = all.slice(from, from + READS_AT_ONCE);
      const read = (key) => this.get(key, { version: first.version.version, signal });
      answers.push(...(await Promise.all(some.map(read))));
    }
    return answers;
  }

  /**
   * All records from `low` on and below `high`, or those whose keys begin with `prefix`, in pages of
   * one version. Each page is proven to be complete before it is given.
   */
  async *range({ version, page = 100, signal, ...range } = {}) {
    if (!Number.isInteger(page) || page < 1 || page > PAGE_MAX) {
      throw new RangeError(`a page has from 1 to ${PAGE_MAX} records`);
    }
    let { low, high } = bounds(range);
    while (low && (high === null || compare(low, high) < 0)) {
      const asking = this.#trust.asking();
      const proof = await this.#proof(`/v1/records?${between(low, high)}&limit=${page}${at(version)}`, signal);
      const report = this.#trust.judge(proof, asking, { ofHead: version === undefined, expect: { version } });
      low = cut(report, proof, low, high, page);
      version = report.version;
      const records = [];
      for (const record of report.records) records.push(await this.#record(record, version, signal));
      yield await this.#believe(records, report, proof, signal);
    }
  }

  /** A record that was proven. A proof without its value has the value's hash. */
  async #record(proven, version, signal) {
    const key = unhex(proven.key);
    const record = (value) => ({ key, value, lastChanged: stamp(proven.last_changed) });
    if (proven.value !== undefined) return record(unhex(proven.value));
    if (isStep(key)) throw new Refused("the value is too long for a proof, and a URL can't name this key");
    const { body } = await this.transport.call("GET", `/v1/records/${inUrl(key)}?${at(version)}`, { signal });
    if (hex(await sha256(body)) !== proven.value_sha256) throw new Untrusted("the value is not the one that is proven");
    return record(body);
  }

  async send(batch, { ifAbsent, ifChanged, session, signal }) {
    const shards = this.#shards ?? (await this.#genesis(signal));
    const entryHash = await shards.entryHash(batch, session);
    const asking = this.#trust.asking({ stale: true });
    const { body: proof } = await this.write(batch, { ifAbsent, ifChanged, session, signal }, PROOF);
    try {
      const report = this.#trust.judge(proof, asking, { expect: { batch: entryHash } });
      if (report.shard_map_hash !== shards.mapHash) {
        throw new Untrusted("the genesis entry that was shown has other shards", { proof });
      }
      this.#shards = shards;
      return await this.#believe({ version: stamp(report), replayed: null }, report, proof, signal);
    } catch (error) {
      if (error instanceof CoppiceError) error.outcomeUnknown = true;
      throw error;
    }
  }

  /** The shards may come from anywhere, since each receipt has the hash of their map. */
  async #genesis(signal) {
    const { body } = await this.transport.call("GET", "/v1/log?from=0&limit=1", { signal });
    const shards = readAs(() => lines(body)[0].genesis.shards);
    try {
      return await Shards.of(shards);
    } catch (error) {
      throw new Untrusted(`the genesis entry is malformed: ${error.message}`, { cause: error });
    }
  }

  async #proof(path, signal) {
    return (await this.transport.call("GET", path, { headers: { Accept: PROOF }, signal })).body;
  }

  #growth(since, signal) {
    return this.#proof(`/v1/checkpoint?since=${since}`, signal);
  }

  async #believe(value, report, proof, signal) {
    await this.#trust.follow((since) => this.#growth(since, signal));
    await this.#save();
    const { size, root } = report.checkpoint;
    return { verified: true, value, version: stamp(report), checkpoint: { size, root }, proof };
  }

  /** Puts what is known into the store, before the answer is given. One save at a time runs. */
  async #save() {
    if (!this.#store) return;
    this.#saving ??= this.#saveAll().finally(() => (this.#saving = null));
    await this.#saving;
  }

  async #saveAll() {
    for (let text = this.memory(); text !== this.#saved; text = this.memory()) {
      try {
        await this.#store.save(text);
      } catch (cause) {
        throw new CoppiceError(`the store has failed: ${cause?.message ?? cause}`, { cause });
      }
      this.#saved = text;
    }
  }
}

/** A client that believes what a coordinator says, and says so in each answer. */
export class UnverifiedClient extends Base {
  static async open(endpoints, options = {}) {
    return new UnverifiedClient(endpoints, options);
  }

  async head({ signal } = {}) {
    const { body } = await this.transport.call("GET", "/v1/head", { signal });
    return readAs(() => unverified(stamp(json(body))));
  }

  async get(key, { version, stale = false, signal } = {}) {
    const bytes = asKey(key);
    if (isStep(bytes)) throw new TypeError("a URL can't name this key");
    try {
      const path = `/v1/records/${inUrl(bytes)}?${at(version)}${stale ? "&stale=true" : ""}`;
      const { headers, body } = await this.transport.call("GET", path, { signal });
      return readAs(() => unverified({ key: bytes, value: body, lastChanged: parseTag(headers.get("ETag")) }));
    } catch (error) {
      if (error instanceof Refused && error.reason === "NOT_FOUND") return unverified(null);
      throw error;
    }
  }

  async *range({ version, page = 100, signal, ...range } = {}) {
    let { low, high } = bounds(range);
    while (low && (high === null || compare(low, high) < 0)) {
      const path = `/v1/records?${between(low, high)}&limit=${page}${at(version)}`;
      const { headers, body } = await this.transport.call("GET", path, { signal });
      const records = readAs(() => lines(body).map((line) => record(shown(line.key), line)));
      version = readAs(() => parseTag(headers.get("Coppice-Version")).version);
      yield unverified(records);
      const last = records.at(-1)?.key;
      low = headers.get("Link") && last && compare(last, low) >= 0 ? successor(last) : null;
    }
  }

  async send(batch, options) {
    const { body } = await this.write(batch, options, "application/json");
    return readAs(() => {
      const answer = json(body);
      return unverified({ version: stamp(answer), replayed: Boolean(answer.replayed) });
    }, { outcomeUnknown: true });
  }
}

/**
 * Where the next page begins; null if the proof covers all. A page that ends early has as many
 * records as were asked for, and ends at its last one.
 */
function cut(report, proof, low, high, page) {
  if (report.kind !== "range" || !equal(unhex(report.low), low)) {
    throw new Untrusted("the proof answers another question", { proof });
  }
  const end = report.high === null ? null : unhex(report.high);
  if (equal(end, high)) return null;
  const next = report.records.length === page ? successor(unhex(report.records.at(-1).key)) : null;
  if (next === null || !equal(end, next) || (high !== null && compare(next, high) > 0)) {
    throw new Untrusted("the range ends below its limit", { proof });
  }
  return next;
}

const unverified = (value) => ({ verified: false, value });

function lines(body) {
  const text = new TextDecoder("utf-8", { fatal: true }).decode(body);
  return text.split("\n").filter(Boolean).map(json);
}

/** A whole number from 0 on, as digits. */
function number(value) {
  if (!/^\d{1,20}$/.test(`${value}`)) throw new RangeError("a version is a number from 0 on");
  return `${value}`;
}

const at = (version) => (version === undefined ? "" : `&version=${number(version)}`);

const between = (low, high) => `low=${inUrl(low)}${high === null ? "" : `&high=${inUrl(high)}`}`;

function bounds({ low, high, prefix, ...others }) {
  const [unknown] = Object.keys(others);
  if (unknown) throw new TypeError(`${unknown} is not an option`);
  if (prefix === undefined) {
    return { low: asBytes(low ?? ""), high: high === undefined || high === null ? null : asBytes(high) };
  }
  if (low !== undefined || high !== undefined) throw new TypeError("prefix stands in place of low and high");
  return { low: asBytes(prefix), high: afterPrefix(asBytes(prefix)) };
}

function stamp({ epoch, version }) {
  number(epoch);
  number(version);
  return { epoch, version };
}

function parseTag(tag) {
  const [, epoch, version] = /^"?(\d{1,15})\.(\d{1,15})"?$/.exec(tag ?? "") ?? [];
  if (version === undefined) throw new Malformed("an answer without its version");
  return { epoch: Number(epoch), version: Number(version) };
}

const shown = (value) => (typeof value === "string" ? asBytes(value) : unhex(value.hex));

const record = (key, line) => ({ key, value: shown(line.value), lastChanged: stamp(line.last_changed) });

function difference(line) {
  const key = shown(line.key);
  const side = (one) => (one === null ? null : record(key, one));
  return { key, before: side(line.before), after: side(line.after) };
}

const entry = (line) => ({
  sequence: Number(line.sequence),
  kind: String(line.kind),
  version: stamp(line),
  timestampMs: line.timestamp_ms,
  fields: line,
});

function inOrder(one, expected) {
  if (one.sequence !== expected) {
    throw new Untrusted(`the log goes on with entry ${one.sequence}, and not with ${expected}`);
  }
  return one;
}
