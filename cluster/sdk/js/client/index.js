// A client of a ledger over HTTP: one that verifies, and one that believes.

export { Batch } from "./src/batch.js";
export { Client, UnverifiedClient } from "./src/client.js";
export { CoppiceError, Forked, Refused, Untrusted } from "./src/errors.js";
