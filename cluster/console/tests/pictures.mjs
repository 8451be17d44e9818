// Takes the pictures of docs/console.md, from a ledger that it makes: `make console-pictures`.
// Names of pictures as arguments take only these.
import { spawnSync } from "node:child_process";
import { mkdir, writeFile } from "node:fs/promises";
import { join } from "node:path";

import { bin, console_, end, ledger, open, root, visit } from "./bed.js";

const out = join(root, "docs/console");

/** Route, and whether the picture is dark or narrow. */
const PICTURES = {
  head: ["head"], "head-dark-narrow": ["head", "dark", 390], timeline: ["timeline"], record: ["record?key=account%2F0007"],
  "record-dark": ["record?key=account%2F0007", "dark"], history: ["history?key=greeting"], range: ["range?prefix=account"],
  "range-narrow": ["range?prefix=account", "light", 390], difference: ["diff?from=10&to=20"], "root-log": ["log"], ledgers: ["ledgers?id=ID"],
  members: ["members"], cluster: ["cluster", "dark"], verify: ["verify"], about: ["about", "dark"],
};

/** A ledger of members with three journals. Returns its id. */
function grain(book) {
  const run = (...args) => spawnSync(bin, args, { cwd: book.dir, env: { ...process.env, COPPICE_ENDPOINT: book.endpoint }, encoding: "utf8" });
  for (const name of ["bank", "court", "mill"]) run("keygen", "--name", name, "--out", `${name}.key`);
  run("ledger", "create", "grain", "--owner", "bank.key", "--member", "mill.vkey", "--regulator", "court.vkey", "--notice", "5s");
  run("ledger", "append", "grain", "--key", "mill.key", "--clue", "lot-7", "--data", "invoice 17");
  run("ledger", "append", "grain", "--key", "bank.key", "--clue", "lot-7", "--data", "paid");
  const shown = run("ledger", "show", "grain", "--json");
  return shown.status === 0 ? JSON.parse(shown.stdout).id : "";
}

async function take(con, name, [route, colorScheme = "light", width = 1200], id) {
  const { page, close } = await open({ colorScheme, viewport: { width, height: width > 500 ? 760 : 900 } });
  await visit(page, con.to(route.replace("ID", id)));
  if (name === "timeline" || name === "difference") {
    await page.click("main button.main:has-text('Prove')");
    await page.waitForSelector("[role=status]:not(.loading)");
  }
  const session = await page.context().newCDPSession(page);
  const { data } = await session.send("Page.captureScreenshot", { format: "webp", quality: 70 });
  await writeFile(join(out, `${name}.webp`), Buffer.from(data, "base64"));
  await close();
}

const book = await ledger("book", ["--journals", "--ledgers"]);
await book.commit(...Array.from({ length: 40 }, (_, i) => ({ put: [[`account/${String(i).padStart(4, "0")}`, JSON.stringify({ owner: `person ${i}`, balance: i * 17 })], ["counter", String(i)]] })));
await book.commit({ put: [["greeting", "hello"]] }, { put: [["greeting", "hello, world"]] }, { delete: ["greeting"] }, { put: [["greeting", "hi again"]] });
const id = grain(book);
const con = await console_(book.endpoint, ["--trust", `@${book.keyFile}`]);
await mkdir(out, { recursive: true });
const wanted = process.argv.slice(2);
try {
  for (const [name, picture] of Object.entries(PICTURES)) {
    if (wanted.length === 0 || wanted.includes(name)) await take(con, name, picture, id);
  }
} finally {
  await end();
}
