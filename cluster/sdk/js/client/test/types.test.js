// The types as a stranger's compiler sees them, and the README's program as a stranger runs it.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { fileURLToPath } from "node:url";

import { end, ledger } from "./bed.js";

const folder = fileURLToPath(new URL("..", import.meta.url));
const work = mkdtempSync(join(tmpdir(), "coppice-types-"));
after(async () => {
  await end();
  rmSync(work, { recursive: true });
});

mkdirSync(join(work, "node_modules/@coppice/client"), { recursive: true });
for (const file of JSON.parse(readFileSync(join(folder, "package.json"), "utf8")).files.concat("package.json")) {
  cpSync(join(folder, file), join(work, "node_modules/@coppice/client", file), { recursive: true });
}
symlinkSync(join(folder, "../verify"), join(work, "node_modules/@coppice/verify"));

test("a strict compiler tells proven answers from others", () => {
  cpSync(join(folder, "test/types.ts"), join(work, "use.ts"));
  const settings = ["--strict", "--noEmit", "--target", "es2022", "--module", "nodenext", "--lib", "es2022,dom", "--skipLibCheck", "false"];
  const tsc = join(process.env.WEB_TOOLS, "node_modules/typescript/bin/tsc");
  execFileSync(process.execPath, [tsc, ...settings, "use.ts"], { cwd: work, stdio: ["ignore", "inherit", "inherit"] });
});

test("the program of the README prints what it says", async () => {
  const { endpoint, dir } = await ledger("ledger");
  const [, program] = /```js\n([^]*?)```/.exec(readFileSync(join(folder, "README.md"), "utf8"));
  const text = program.replace("http://127.0.0.1:7401", endpoint).replace("my-ledger/ledger.vkey", join(dir, "ledger.vkey"));
  writeFileSync(join(work, "a.mjs"), text);
  const said = execFileSync(process.execPath, ["a.mjs"], { cwd: work, encoding: "utf8" });
  assert.equal(said, /^\/\/ (.*)$/m.exec(program)[1] + "\n");
});
