// Checks a proof file: node check.js FILE VKEY [KEY]. With KEY, the proof must answer for it.
import { readFile } from "node:fs/promises";

import { load, visible } from "../index.js";

const [file, vkey, key] = process.argv.slice(2);
const verifier = await load();
const result = verifier.verify(await readFile(file), {
  keys: await readFile(vkey, "utf8"),
  expect: key === undefined ? {} : { keys: key },
});

if (!result.valid) {
  console.error(`does not hold, at step ${result.error}`);
  process.exitCode = 1;
} else if (result.kind === "membership" || result.kind === "absence") {
  const value = result.found ? `has the value ${visible(result.value ?? result.value_sha256)}` : "is not there";
  console.log(`${visible(result.key)} ${value} at version ${result.epoch}.${result.version}`);
} else {
  console.log(verifier.verifyText(await readFile(file), { keys: await readFile(vkey, "utf8") }));
}
