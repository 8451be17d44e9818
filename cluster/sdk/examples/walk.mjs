// walk.mjs ENDPOINT LEDGER.VKEY
import { readFile } from "node:fs/promises";
import { load } from "@coppice/verify";

const [endpoint, vkey] = process.argv.slice(2);
const verifier = await load();
const keys = await readFile(vkey, "utf8");

/** Asks for a proof, and checks it. */
async function proven(path, expect, options = {}) {
  const headers = { Accept: "application/vnd.coppice.proof", ...options.headers };
  const answer = await fetch(`${endpoint}/v1/${path}`, { ...options, headers, signal: AbortSignal.timeout(30_000) });
  if (!answer.ok) throw new Error((await answer.json()).reason);
  const result = verifier.verify(await answer.arrayBuffer(), { keys, expect });
  if (!result.valid) throw new Error(result.error);
  return result;
}

// A commit, with the receipt that the ledger has signed it.
const path = `records/${encodeURIComponent("js/alice")}`;
const write = { method: "PUT", body: "100", headers: { "Coppice-Write": "any" } };
const receipt = await proven(path, {}, write);
console.log(`committed in version ${receipt.version}`);

// A read at that version. The proof must be of this key and this version.
const got = await proven(`${path}?version=${receipt.version}`, { keys: "js/alice", version: receipt.version });
if (got.value !== "100" || got.last_changed.version !== receipt.version) throw new Error("another write");
console.log(`js/alice is ${got.value} in version ${got.version}`);

// What the ledger does, as it comes: the word of a coordinator.
const watch = await fetch(`${endpoint}/v1/watch?from=1`, { signal: AbortSignal.timeout(30_000) });
let text = "";
for await (const part of watch.body.pipeThrough(new TextDecoderStream())) {
  text += part;
  const [, kind] = /^event: (.*)$/m.exec(text) ?? [];
  if (kind && text.includes("\n\n")) {
    console.log(`an entry is a ${kind}`);
    break;
  }
}
