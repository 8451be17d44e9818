// The files of `dist/` are what the sources give.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { gunzipSync } from "node:zlib";

const root = new URL("..", import.meta.url).pathname;

/** A page in one file, with its verifier unpacked: versions of Node pack the same bytes differently. */
function unpacked(name, bytes) {
  if (name !== "offline.html") return bytes;
  const text = bytes.toString("utf8");
  const [, packed] = /"verifier":"([A-Za-z0-9+/=]+)"/.exec(text);
  return Buffer.concat([Buffer.from(text.replace(packed, "")), gunzipSync(Buffer.from(packed, "base64"))]);
}

test("the committed files are those that `make console` builds", () => {
  const out = mkdtempSync(join(tmpdir(), "coppice-console-"));
  try {
    execFileSync("node", [join(root, "page/build.mjs"), out]);
    const dist = join(root, "dist");
    assert.deepEqual(readdirSync(dist).sort(), readdirSync(out).sort());
    for (const name of readdirSync(out)) {
      const [is, should] = [dist, out].map((folder) => unpacked(name, readFileSync(join(folder, name))));
      assert.ok(is.equals(should), `cluster/console/dist/${name} is not what the sources give: run make console`);
    }
  } finally {
    rmSync(out, { recursive: true });
  }
});
