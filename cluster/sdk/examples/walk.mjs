// walk.mjs ENDPOINT LEDGER.VKEY
import { readFile } from "node:fs/promises";
import { Client } from "@coppice/client";

const [endpoint, vkey] = process.argv.slice(2);
const ledger = await Client.open(endpoint, { trust: await readFile(vkey, "utf8") });

// A commit. The client has checked the receipt: it is of exactly this batch.
const done = await ledger.put("js/alice", "100");
console.log(`committed in version ${done.version.version}`);

// A read of the newest version. The client has checked the proof, which is `got.proof`.
const got = await ledger.get("js/alice");
console.log(`js/alice is ${new TextDecoder().decode(got.value.value)} in version ${got.version.version}`);

// What the ledger does, as it comes: the word of a coordinator.
for await (const entry of ledger.watch(1)) {
  console.log(`an entry is a ${entry.value.kind}`);
  break;
}
