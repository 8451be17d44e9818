// The package: options, expectations, sizes, types, and the words of `coppice verify --json`.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";

import { load, parse, visible } from "../index.js";
import { cases } from "./vectors.js";

const GZIPPED_BYTES_MAX = 100_000;
const folder = fileURLToPath(new URL("..", import.meta.url));
const wasm = readFileSync(join(folder, "verify.wasm"));
const verifier = await load();
const named = (name) => cases().find((it) => it.name === name);
const tree = named("cases: a tree of two leaves");
const range = named("cases: a range below the first record there is");
const receipt = named("cases: a batch that wrote `z`, as its receipt says: see also the next");

test("the module is small, imports nothing, and bounds its memory", () => {
  const gzipped = gzipSync(wasm, { level: 9 }).length;
  console.log(`${wasm.length} bytes, ${gzipped} gzipped`);
  assert.ok(gzipped <= GZIPPED_BYTES_MAX);
  const module = new WebAssembly.Module(wasm);
  assert.deepEqual(WebAssembly.Module.imports(module), []);
  const exported = WebAssembly.Module.exports(module).flatMap(({ name, kind }) => (kind === "global" ? [] : [name]));
  assert.deepEqual(exported.sort(), ["abi", "alloc", "evidence", "free", "memory", "verify"]);
});

test("what is expected must be what is proven", () => {
  const shown = verifier.verify(range.file, range.options);
  const { entry_hash } = verifier.verify(receipt.file, receipt.options);
  const expected = [
    [tree, { keys: "k" }, true],
    [tree, { keys: ["k"], version: 1 }, true],
    [tree, { keys: new TextEncoder().encode("k"), version: 1n }, true],
    [tree, { keys: ["l"] }, false],
    [tree, { keys: ["k", "l"] }, false],
    [tree, { version: 2 }, false],
    [tree, { version: "18446744073709551615" }, false],
    [tree, { range: ["", "l"] }, false],
    [tree, { batch: entry_hash }, false],
    [range, { range: ["", shown.high] }, true],
    [range, { range: ["", ""] }, false],
    [range, { range: [""] }, false],
    [range, { range: [] }, false],
    [range, { range: [null, shown.high] }, true],
    [range, { range: null }, true],
    [range, { range: ["", null] }, false],
    [range, { range: ["a", shown.high] }, false],
    [range, { keys: ["a"] }, false],
    [receipt, { batch: entry_hash, version: 1 }, true],
    [receipt, { batch: `0x${entry_hash}` }, true],
    [receipt, { batch: "00".repeat(32) }, false],
  ];
  for (const [{ file, options }, expect, answered] of expected) {
    const { valid, failed_step } = verifier.verify(file, { ...options, expect });
    assert.deepEqual(
      [valid, failed_step],
      [answered, answered ? null : "question"],
      JSON.stringify(expect, (_, v) => String(v)),
    );
  }
});

test("a call that makes no sense is an error, and no verdict", () => {
  const { file, options } = tree;
  const { keys } = options;
  const wrong = [
    [undefined, /no key to trust/],
    [{}, /no key to trust/],
    [{ keys: [] }, /no key to trust/],
    [{ keys: "" }, /not a public key/],
    [{ keys: ["PRIVATE+KEY+x"] }, /not a public key/],
    [{ keys: Array(17).fill(keys) }, /16 trusted keys/],
    [{ policy: "quorum none\n" }, /names no log/],
    [{ policy: "nonsense" }, /the policy: line 1/],
    [{ key: keys }, /key is not an option/],
    [{ keys, expect: { key: "k" } }, /key is not an option/],
    [{ keys, expect: { keys: [""] } }, /at least one byte/],
    [{ keys, expect: { keys: ["k"], range: ["a", "b"] } }, /exclude each other/],
    [{ keys, expect: { range: ["a"], batch: "00".repeat(32) } }, /exclude each other/],
    [{ keys, expect: { range: ["a", "b", "c"] } }, /two bounds/],
    [{ keys, expect: { batch: "abc" } }, /64 hex digits/],
    [{ keys, expect: { batch: "g".repeat(64) } }, /64 hex digits/],
    [{ keys, expect: { version: -1 } }, /a number/],
    [{ keys, expect: { version: 1.5 } }, /a number/],
    [{ keys, expect: { version: "18446744073709551616" } }, /a number/],
    [{ keys, encoding: "base64" }, /encoding/],
  ];
  for (const [options, message] of wrong) {
    assert.throws(() => verifier.verify(file, options), { name: "TypeError", message }, JSON.stringify(options));
  }
  assert.throws(() => verifier.verify("alice.proof", { keys }), TypeError);
  assert.throws(() => verifier.verify(undefined, { keys }), TypeError);
});

test("with several keys, one must do", () => {
  const { file, options } = tree;
  const other = cases().find((it) => it.options.keys !== options.keys && it.options.keys).options.keys;
  const judge = (keys) => verifier.verify(file, { keys });
  assert.equal(judge([other, options.keys]).valid, true);
  assert.equal(judge([options.keys, other]).signed_by, options.keys);
  assert.equal(judge([other, other]).failed_step, judge(other).failed_step);
  const policy = `log ${options.keys}\nquorum none\n`;
  assert.equal(verifier.verify(file, { policy, keys: options.keys }).valid, true);
  assert.throws(() => verifier.verify(file, { policy, keys: other }), /logs other than the key's/);
});

test("bytes are text, hex, or as asked", () => {
  const { file, options } = tree;
  const as = (encoding) => verifier.verify(file, { ...options, encoding });
  assert.deepEqual([as(undefined).key, as("hex").key, as("hex").encoding], ["k", "0x6b", "hex"]);
  assert.deepEqual(as("utf8"), as(undefined));
});

test("integers stay exact, and text stays as it is", () => {
  const numbers = '"small":9007199254740991,"large":9007199254740993,"most":18446744073709551615';
  const text = `{${numbers},"text":"a:9007199254740993\\"","slash":"\\\\"}`;
  const { small, large, most, text: inner, slash } = parse(text);
  assert.deepEqual([small, large, most], [9007199254740991, "9007199254740993", "18446744073709551615"]);
  assert.deepEqual([inner, slash], ['a:9007199254740993"', "\\"]);
});

test("text of strangers is shown by number where it controls anything", () => {
  assert.equal(visible("grüße 你好 🦀"), "grüße 你好 🦀");
  assert.equal(visible("\x1b[2J\n\\"), "\\x1b[2J\\x0a\\\\");
  assert.equal(visible("\u202etxt\u{e0041}\x85"), "\\u{202e}txt\\u{e0041}\\u{85}");
});

test("the package works from its tarball, and its types say so", () => {
  const work = mkdtempSync(join(tmpdir(), "coppice-verify-"));
  try {
    const npm = (...args) => execFileSync("npm", [...args, "--silent"], { cwd: work, encoding: "utf8" });
    const tarball = npm("pack", folder).trim();
    writeFileSync(join(work, "package.json"), '{ "type": "module" }\n');
    npm("install", "--offline", "--no-audit", "--no-fund", `./${tarball}`);
    writeFileSync(join(work, "use.ts"), readFileSync(join(folder, "test/types.ts")));
    const settings = [
      "--strict",
      "--noEmit",
      "--skipLibCheck",
      "false",
      "--target",
      "es2022",
      "--module",
      "nodenext",
      "--lib",
      "es2022,dom",
    ];
    const tsc = join(process.env.WEB_TOOLS, "node_modules/typescript/bin/tsc");
    execFileSync(process.execPath, [tsc, ...settings, "use.ts"], {
      cwd: work,
      stdio: ["ignore", "inherit", "inherit"],
    });
    const use = "(await load()).verify(new Uint8Array(8), { keys: process.argv[1] }).failed_step";
    const script = `import { load } from "@coppice/verify"; console.log(${use})`;
    const said = execFileSync(process.execPath, ["--input-type=module", "-e", script, tree.options.keys], {
      cwd: work,
      encoding: "utf8",
    });
    assert.equal(said, "format\n");
  } finally {
    rmSync(work, { recursive: true });
  }
});
