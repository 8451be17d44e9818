// The page in one file: from a disk, without any server.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { after, test } from "node:test";

import { badges, end, from, noted, open, root, settled } from "./bed.js";

const vectors = (name) => readFile(new URL(`cluster/verify/vectors/${name}`, `file://${root}`));
const PAGE = `file://${root}cluster/console/dist/offline.html`;

after(end);

test("it judges files from a disk, and lets nothing out", async () => {
  const { page, asked, wrong, close } = await open({ offline: true });
  await page.goto(PAGE);
  await page.waitForSelector("h1");
  const key = await vectors("ledger.vkey");
  const check = async (name, buffer, expected = "") => {
    await page.fill("input[name=key]", String(key).trim());
    await page.fill("input[name=expected]", expected);
    await page.setInputFiles("input[name=file]", { name, mimeType: "application/octet-stream", buffer });
    await page.click("main button[type=submit]");
    await page.waitForSelector(".live section");
    const text = await page.textContent(".live");
    return { text, proven: await badges(page, "proven"), broken: await badges(page, "broken") };
  };
  const proof = await vectors("sample.proof");
  const good = await check("sample.proof", proof, "key-11");
  assert.match(good.text, /a key had this value/);
  assert.match(good.text, /value 543/);
  assert.ok(good.proven > 5 && good.broken === 0);
  const other = await check("sample.proof", proof, "key-12");
  assert.ok(other.broken === 1 && other.proven === 0 && /question/.test(other.text), other.text);
  const flipped = Buffer.from(proof);
  flipped[flipped.length >> 1] ^= 1;
  const bad = await check("flipped.proof", flipped);
  assert.ok(bad.broken === 1 && bad.proven === 0, bad.text);
  const evidence = await check("sample.evidence", await vectors("sample.evidence"));
  assert.match(evidence.text, /two logs that contradict each other/);
  assert.match(evidence.text, /Convicted/);
  const named = await check("<img src=x onerror=told(1)>\u202e.proof", Buffer.from("nonsense"));
  assert.ok(named.broken === 1 && !named.text.includes("\u202e"), named.text);
  assert.deepEqual(wrong, []);
  // A file that was dropped can't leave the page.
  const left = await page.evaluate(() => fetch("http://127.0.0.1:9/").then(() => true, () => false));
  assert.equal(left, false);
  assert.ok(await noted(wrong, "connect-src"), "the policy is in force");
  assert.deepEqual(asked.filter((url) => !url.startsWith("file://") && !url.startsWith("blob:") && url !== "data:,"), []);
  await close();
});

test("it breaks no rule for access in either scheme", async () => {
  for (const colorScheme of ["light", "dark"]) {
    const { page, close } = await open({ colorScheme, bypassCSP: true });
    for (const route of ["#/verify", "#/about"]) {
      await page.goto(`${PAGE}${route}`);
      await settled(page);
      await page.addScriptTag({ path: from.resolve("axe-core/axe.min.js") });
      const found = await page.evaluate(() => window.axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"] }));
      assert.deepEqual(found.violations.map((it) => it.id), []);
    }
    await close();
  }
});
