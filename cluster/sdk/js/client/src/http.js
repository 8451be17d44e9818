// Requests with limits: for each attempt a time, for each answer a size, for all a patience.

import { parse } from "@coppice/verify";

import { Malformed, Refused } from "./errors.js";

export const PROOF = "application/vnd.coppice.proof";
const ENDPOINTS_MAX = 16;
const EVENT_BYTES_MAX = 4 << 20;
const [PAUSE_MS, PAUSE_MAX_MS] = [20, 500];
// A watch without a word for so long is broken: a coordinator says every 15 s that it is there.
const SILENCE_MS = 45_000;
// Reasons after which the same request may succeed later. The first ones had no effect.
const EXHAUSTED = ["RESOURCE_EXHAUSTED", "DISK_FULL"];
const UNAVAILABLE = [
  "NOT_LEADER",
  "UNAVAILABLE",
  "STATE_MISSING",
  "FENCED_FOR_ROLLBACK",
  "MISSED_ADMIN",
  "STALE_TERM",
  "BASE_MISMATCH",
];
// These two concern the number of a batch, so they hold for all attempts.
const OF_NUMBER = ["ROLLED_BACK", "SESSION_MISMATCH"];
// Codes of Node for a connection that was never made.
const UNSENT = ["ECONNREFUSED", "ENOTFOUND", "EAI_AGAIN", "EHOSTUNREACH", "ENETUNREACH", "UND_ERR_CONNECT_TIMEOUT"];

/** One attempt that failed. */
export class Failed extends Error {
  constructor(refused, { sent, final = false, retryAfterMs = 0 }) {
    super(refused.message);
    Object.assign(this, { refused, sent, final, retryAfterMs });
  }
}

/** Sends requests to the coordinators of one ledger, to the one that answered last until it fails. */
export class Transport {
  #origins;
  #at = 0;
  #fetch;
  #timeoutMs;
  #bytesMax;

  constructor(endpoints, { fetch, timeoutMs = 30_000, patienceMs = 5_000, answerBytesMax = 64 << 20 }) {
    const all = Array.isArray(endpoints) ? endpoints : [endpoints];
    if (all.length < 1 || all.length > ENDPOINTS_MAX) {
      throw new RangeError(`from 1 to ${ENDPOINTS_MAX} endpoints are needed`);
    }
    // A longer timer would end at once.
    const endless = !(timeoutMs < 2 ** 31) || !(patienceMs < 2 ** 31);
    const wrong = endless || !(timeoutMs > 0) || !(patienceMs >= 0) || !(answerBytesMax > 0);
    if (wrong) throw new RangeError("limits are above 0");
    this.#origins = all.map(origin);
    // A page's own `fetch` must be called on the window.
    this.#fetch = fetch ?? ((url, options) => globalThis.fetch(url, options));
    [this.#timeoutMs, this.patienceMs, this.#bytesMax] = [timeoutMs, patienceMs, answerBytesMax];
  }

  /**
   * Sends a request until it succeeds, is refused for good, or the patience ends. With `once`, it is
   * sent again only if it certainly had no effect.
   */
  async call(method, path, { headers = {}, body, once = false, signal } = {}) {
    const until = performance.now() + this.patienceMs;
    let [pause, unknown] = [PAUSE_MS, false];
    for (;;) {
      const at = this.#at;
      try {
        return await this.#attempt(this.#origins[at], method, path, headers, body, signal);
      } catch (failed) {
        if (!(failed instanceof Failed)) throw failed;
        const { refused } = failed;
        const wait = Math.max(pause * (0.5 + Math.random() / 2), failed.retryAfterMs);
        const nothingDone = EXHAUSTED.includes(refused.reason) || refused.reason === "NOT_LEADER" || !failed.sent;
        unknown ||= !(nothingDone || failed.final);
        refused.outcomeUnknown = unknown && !OF_NUMBER.includes(refused.reason);
        if (failed.final || performance.now() + wait > until || (once && !nothingDone)) throw refused;
        this.#leave(at);
        await paused(wait, signal);
        pause = Math.min(2 * pause, PAUSE_MAX_MS);
      }
    }
  }

  /** Goes on to the next coordinator, unless another call did so. */
  #leave(at) {
    if (this.#at === at) this.#at = (at + 1) % this.#origins.length;
  }

  async #attempt(origin, method, path, headers, body, signal) {
    const limit = new Limit(signal, this.#timeoutMs);
    try {
      const response = await this.#ask(origin, path, { method, headers, body }, limit);
      const content = await whole(response, this.#bytesMax);
      if (!response.ok) throw refusal(response, content);
      return { headers: response.headers, body: content };
    } catch (error) {
      throw limit.judged(error, origin);
    } finally {
      limit.end();
    }
  }

  #ask(origin, path, options, limit) {
    const fixed = { redirect: "error", cache: "no-store", signal: limit.signal };
    return this.#fetch(origin + path, { ...options, ...fixed });
  }

  /**
   * The events of a stream as fields. It ends when the stream breaks off, or after `quietMs` without
   * an event. Throws Failed if it does not begin.
   */
  async *events(path, { quietMs = Infinity, signal } = {}) {
    const at = this.#at;
    const limit = new Limit(signal, this.#timeoutMs);
    try {
      let response;
      try {
        response = await this.#ask(this.#origins[at], path, { method: "GET", headers: {} }, limit);
        if (response.status !== 200) throw refusal(response, await whole(response, this.#bytesMax));
      } catch (error) {
        this.#leave(at);
        throw limit.judged(error, this.#origins[at]);
      }
      yield* eventsOf(response, limit, quietMs);
    } finally {
      limit.end();
    }
  }
}

/** A signal that ends a request after a time, or when the caller's signal does. */
class Limit {
  #controller = new AbortController();
  #outer;
  #timer;
  #forward = () => this.#controller.abort(this.#outer.reason);

  constructor(outer, ms) {
    outer?.throwIfAborted();
    this.#outer = outer;
    outer?.addEventListener("abort", this.#forward, { once: true });
    this.again(ms);
  }

  get signal() {
    return this.#controller.signal;
  }

  /** Begins the time again. */
  again(ms) {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#controller.abort(new Malformed("the time for an answer is over")), ms);
  }

  /** What a failure means: the caller's own reason, a refusal, or no answer. */
  judged(error, origin) {
    if (this.#outer?.aborted) return this.#outer.reason;
    if (error instanceof Failed) return error;
    const cause = this.signal.aborted ? this.signal.reason : error;
    const code = cause?.cause?.code ?? cause?.code ?? "";
    const why = [cause?.message ?? cause, cause?.cause?.message, code].filter(Boolean).join(": ");
    return new Failed(new Refused(`no answer from ${origin}: ${why}`, { cause }), { sent: !UNSENT.includes(code) });
  }

  /** Frees all that the request still holds. */
  end() {
    clearTimeout(this.#timer);
    this.#outer?.removeEventListener("abort", this.#forward);
    this.#controller.abort();
  }
}

/** The body, up to a size. */
async function whole(response, bytesMax) {
  if (Number(response.headers.get("Content-Length") ?? 0) > bytesMax) throw tooLong(bytesMax);
  if (response.headers.get("Content-Encoding")) throw new Malformed("an answer with an encoding");
  const parts = [];
  let size = 0;
  for await (const part of parted(response)) {
    size += part.length;
    if (size > bytesMax) throw tooLong(bytesMax);
    parts.push(part);
  }
  const body = new Uint8Array(size);
  let at = 0;
  for (const part of parts) {
    body.set(part, at);
    at += part.length;
  }
  return body;
}

const tooLong = (bytesMax) => new Malformed(`an answer of more than ${bytesMax} bytes`);

/** Not every browser can iterate over a stream. */
async function* parted(response) {
  if (!response.body) return;
  const reader = response.body.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } finally {
    // The stream may be broken already.
    reader.cancel().catch(() => {});
  }
}

async function* eventsOf(response, limit, quietMs) {
  const decoder = new TextDecoder("utf-8", { fatal: true });
  let [text, event, last] = ["", {}, performance.now()];
  const wait = () => limit.again(Math.max(0, Math.min(SILENCE_MS, last + quietMs - performance.now())));
  wait();
  const parts = parted(response);
  try {
    for (;;) {
      let part;
      try {
        part = await parts.next();
        if (part.done) return;
        text += decoder.decode(part.value, { stream: true });
      } catch {
        // It broke off, was silent, or is no text. The caller's own reason comes first.
        if (limit.judged(undefined, "") instanceof Failed) return;
        throw limit.judged(undefined, "");
      }
      const lines = text.split("\n");
      text = lines.pop();
      for (const line of lines) {
        const [, name, value] = /^(id|event|data): ?(.*?)\r?$/.exec(line) ?? [];
        if (name) event[name] = value;
        else if (/^\r?$/.test(line) && Object.keys(event).length > 0) {
          yield event;
          [event, last] = [{}, performance.now()];
        }
      }
      if (text.length > EVENT_BYTES_MAX) return;
      wait();
    }
  } finally {
    await parts.return();
  }
}

function refusal(response, content) {
  let [reason, detail] = ["", `the answer is ${response.status}`];
  try {
    const problem = json(content);
    if (typeof problem.reason === "string" && typeof problem.detail === "string") ({ reason, detail } = problem);
  } catch (error) {
    if (!(error instanceof Malformed || error instanceof TypeError)) throw error;
  }
  const again = EXHAUSTED.includes(reason) || UNAVAILABLE.includes(reason) || (!reason && response.status >= 500);
  const after = response.headers.get("Retry-After") ?? "";
  const retryAfterMs = again && /^[0-9]{1,4}$/.test(after) ? 1000 * Number(after) : 0;
  const refused = new Refused(detail, { reason, status: response.status });
  return new Failed(refused, { sent: true, final: !again, retryAfterMs });
}

/** Parses an answer. Integers that a number can't hold become strings of digits. */
export function json(body) {
  const text = typeof body === "string" ? body : new TextDecoder("utf-8", { fatal: true }).decode(body);
  try {
    return parse(text);
  } catch (error) {
    throw new Malformed("an answer that is no JSON", { cause: error });
  }
}

/** Waits, at most until the caller's signal says that it is enough. */
export function paused(ms, signal) {
  return new Promise((resolve, reject) => {
    signal?.throwIfAborted();
    const ended = () => {
      clearTimeout(timer);
      reject(signal.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", ended);
      resolve();
    }, ms);
    signal?.addEventListener("abort", ended, { once: true });
  });
}

function origin(endpoint) {
  const url = URL.canParse?.(endpoint) === false ? null : new URL(endpoint);
  const plain = url && ["http:", "https:"].includes(url.protocol) && !url.username && !url.password;
  if (!plain || url.pathname !== "/" || url.search || url.hash) {
    throw new TypeError("an endpoint is http(s)://HOST:PORT");
  }
  return url.origin;
}

