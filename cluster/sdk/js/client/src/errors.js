// How calls fail. An aborted call throws the reason of its signal, as `fetch` does.

import { visible } from "@coppice/verify";

const MESSAGE_CHARACTERS_MAX = 2048;

export class CoppiceError extends Error {
  /** `outcomeUnknown`: a write may have been written all the same, or may still be. */
  constructor(message, { cause, outcomeUnknown = false } = {}) {
    // Servers write a part of it: no terminal obeys it.
    super(visible(String(message).slice(0, MESSAGE_CHARACTERS_MAX)), cause === undefined ? undefined : { cause });
    this.name = new.target.name;
    this.outcomeUnknown = outcomeUnknown;
  }
}

/** The ledger refused, or nobody answered in time. */
export class Refused extends CoppiceError {
  constructor(message, { reason = "", status = 0, ...options } = {}) {
    super(reason ? `${message} (${reason})` : message, options);
    this.reason = visible(reason);
    this.status = status;
  }
}

/** An answer that is not proven, or whose proof is of something else. */
export class Untrusted extends CoppiceError {
  constructor(message, { step = "", reason = "", proof = new Uint8Array(), ...options } = {}) {
    super(message, options);
    this.step = step;
    this.reason = reason;
    this.proof = proof;
  }
}

/** The ledger has shown two logs. `known` and `proof` are both signed evidence. */
export class Forked extends Untrusted {
  constructor(message, { known = new Uint8Array(), ...options } = {}) {
    super(`the log was forked, keep both proofs: ${message}`, options);
    this.known = known;
  }
}

/** An answer that no coordinator sends. */
export class Malformed extends Error {}

/** What `read` makes of an answer, whose form nobody has checked. */
export function readAs(read, options = {}) {
  try {
    return read();
  } catch (error) {
    if (error instanceof CoppiceError) throw error;
    throw new Untrusted(`the answer is malformed: ${error.message}`, { ...options, cause: error });
  }
}
