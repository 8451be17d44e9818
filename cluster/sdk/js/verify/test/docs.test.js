// The examples of docs/proof-files.md run, and print what the page says.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

import { cases } from "./vectors.js";

const root = fileURLToPath(new URL("../../../../../", import.meta.url));
const vectors = join(root, "cluster/verify/vectors");
const page = readFileSync(join(root, "docs/proof-files.md"), "utf8");
const blocks = (language) =>
  [...page.matchAll(new RegExp(`^\`\`\`${language}\n([^]*?)^\`\`\``, "gm"))].map(([, text]) => text);

function run(program, args) {
  const python = [join(process.env.WEB_TOOLS, "python"), join(root, "cluster/sdk/python")].join(":");
  const done = spawnSync(program, args, {
    cwd: vectors,
    encoding: "utf8",
    env: { ...process.env, PYTHONPATH: python },
  });
  if (done.error) throw done.error;
  return done.stdout + done.stderr;
}

/** The lines that a program prints, as its comments at the end announce them. */
const announced = (text, comment) =>
  text
    .split("\n")
    .filter((line) => line.startsWith(comment))
    .map((line) => line.slice(comment.length));

test("the sample is a stored proof file", () => {
  const [first] = cases();
  const sample = readFileSync(join(vectors, "sample.proof"));
  assert.deepEqual(new Uint8Array(sample), first.file, `sample.proof is not the file of "${first.name}"`);
  assert.equal(readFileSync(join(vectors, "ledger.vkey"), "utf8").trim(), first.options.keys);
});

test("programs print what the page says", () => {
  const work = mkdtempSync(join(tmpdir(), "coppice-docs-"));
  try {
    mkdirSync(join(work, "node_modules/@coppice"), { recursive: true });
    symlinkSync(join(root, "cluster/sdk/js/verify"), join(work, "node_modules/@coppice/verify"));
    for (const [language, program, file, comment] of [
      ["js", process.execPath, "a.mjs", "// "],
      ["python", "python3", "a.py", "# "],
    ]) {
      const found = blocks(language);
      assert.equal(found.length, 1, language);
      for (const text of found) {
        writeFileSync(join(work, file), text);
        assert.equal(run(program, [join(work, file)]), `${announced(text, comment).join("\n")}\n`, language);
      }
    }
  } finally {
    rmSync(work, { recursive: true });
  }
});

// cluster/cli/tests/verify.rs runs the lines with `coppice`.
test("commands print what the page says", () => {
  let commands = 0;
  for (const block of blocks("console")) {
    for (const [, line, said] of block.matchAll(/^\$ (.*)\n((?:(?!\$ ).*\n)*)/gm)) {
      const [program, ...args] = line.split(" ");
      if (program === "coppice") continue;
      assert.equal(run(program, args), said, line);
      commands += 1;
    }
  }
  assert.equal(commands, 4);
});
