// gRPC-web by connect-web, in Node and in a real Chromium, before a real ledger.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtemp, readFile, readdir, rm, stat } from "node:fs/promises";
import { createServer, request as ask } from "node:http";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { after, before, test } from "node:test";

const modules = join(process.env.WEB_TOOLS, "node_modules");
const from = createRequire(join(process.env.WEB_TOOLS, "package.json"));
const { chromium } = from("playwright-core");
const { createClient, Code, ConnectError } = from("@connectrpc/connect");
const { createGrpcWebTransport } = from("@connectrpc/connect-web");
const { createFileRegistry, fromBinary } = from("@bufbuild/protobuf");
const { FileDescriptorSetSchema } = from("@bufbuild/protobuf/wkt");

const root = new URL("../../..", import.meta.url).pathname;
const bin = process.env.COPPICE_BIN ?? join(root, "target/debug/coppice");
const LIMIT_MS = 60_000;
const bytes = (text) => new TextEncoder().encode(text);
const text = (data) => new TextDecoder().decode(data);

let [folder, dev, ledger, registry, descriptors, page, pages, browser] = [];

/** What the build of the command made of the .proto files. */
async function newestDescriptors() {
  const builds = join(root, "target/debug/build");
  const found = [];
  for (const name of await readdir(builds)) {
    const path = join(builds, name, "out/descriptor.bin");
    const made = name.startsWith("coppice-proto-") && (await stat(path).catch(() => null));
    if (made) found.push([made.mtimeMs, path]);
  }
  assert.ok(found.length > 0, "the messages of the API are missing: make build");
  return readFile(found.sort((a, b) => b[0] - a[0])[0][1]);
}

async function start() {
  folder = await mkdtemp(join(tmpdir(), "coppice-grpc-web-"));
  const options = ["--replicas", "1", "--shards", "2", "--listen", "127.0.0.1:0", "--data-dir", join(folder, "ledger")];
  dev = spawn(bin, ["dev", ...options], { stdio: ["ignore", "pipe", "inherit"] });
  for await (const line of createInterface({ input: dev.stdout })) {
    if (line.startsWith("ready ")) return line.slice("ready ".length);
  }
  throw new Error("the ledger did not start");
}

/** The modules of connect-web for a page, by the names under which they import each other. */
function imports() {
  const esm = (name) => [name, `/m/${name}/dist/esm/index.js`];
  const part = (name, inner) => [`${name}/${inner}`, `/m/${name}/dist/esm/${inner}/index.js`];
  const [connect, protobuf] = ["@connectrpc/connect", "@bufbuild/protobuf"];
  return Object.fromEntries([
    esm(connect), esm("@connectrpc/connect-web"), esm(protobuf),
    ...["protocol", "protocol-connect", "protocol-grpc", "protocol-grpc-web"].map((inner) => part(connect, inner)),
    ...["codegenv1", "codegenv2", "reflect", "wire", "wkt"].map((inner) => part(protobuf, inner)),
  ]);
}

/** Serves pages, and passes calls of gRPC-web on to the ledger: so both have one origin. */
function servePages() {
  return createServer(async (request, response) => {
    if (request.url.startsWith("/coppice.v1.")) {
      const passed = ask(ledger + request.url, { method: request.method, headers: request.headers }, (answer) => {
        response.writeHead(answer.statusCode, answer.headers);
        answer.pipe(response);
      });
      response.on("close", () => passed.destroy());
      passed.on("error", () => response.destroy());
      request.pipe(passed);
      return;
    }
    const path = /^\/m\/([\w@./-]+\.js)$/.exec(request.url)?.[1];
    if (request.url === "/descriptors") response.end(descriptors);
    else if (path && !path.includes("..")) {
      response.setHeader("Content-Type", "text/javascript");
      response.end(await readFile(join(modules, path)));
    } else {
      response.setHeader("Content-Type", "text/html; charset=utf-8");
      response.end(`<!doctype html><script type="importmap">${JSON.stringify({ imports: imports() })}</script>`);
    }
  });
}

before(async () => {
  descriptors = await newestDescriptors();
  registry = createFileRegistry(fromBinary(FileDescriptorSetSchema, descriptors));
  ledger = await start();
  pages = servePages();
  await new Promise((resolve) => pages.listen(0, "127.0.0.1", resolve));
  browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", timeout: LIMIT_MS });
  page = await browser.newPage();
  await page.goto(`http://127.0.0.1:${pages.address().port}/`);
});

after(async () => {
  await browser?.close();
  pages?.closeAllConnections();
  pages?.close();
  dev?.kill();
  await rm(folder, { recursive: true, force: true });
});

function client(options = {}) {
  const transport = createGrpcWebTransport({ baseUrl: ledger, useBinaryFormat: true, ...options });
  return createClient(registry.getService("coppice.v1.Ledger"), transport);
}

const put = (key, value) => ({ key: bytes(key), change: { case: "put", value: bytes(value) } });
const head = async () => (await (await fetch(`${ledger}/v1/head`)).json()).version;

/** The reason in the details of an error: ErrorInfo has it as its first field. */
function reasonOf(error) {
  const info = error.details.find((detail) => detail.type === "google.rpc.ErrorInfo");
  return text(info.value.slice(2, 2 + info.value[1]));
}

test("Node writes and reads, by unary calls and streams", async () => {
  const api = client();
  const operations = Array.from({ length: 600 }, (_, i) => put(`node/${String(i).padStart(3, "0")}`, `v${i}`));
  const done = await api.commit({ batch: { operations } });
  const got = await api.get({ key: bytes("node/007"), read: { wantProof: true } });
  assert.equal(text(got.record.value), "v7");
  assert.ok(got.proof.length > 500);
  let [records, end] = [0, null];
  for await (const part of api.range({ low: bytes("node/"), high: bytes("node0") })) {
    records += part.records.length;
    end = part.end ?? end;
  }
  assert.equal(records, 600);
  assert.deepEqual(end.readAt.version, done.stamp.version);
  const watched = [];
  const stop = new AbortController();
  try {
    for await (const entry of api.watchHeads({ fromSequence: 0n, follow: true }, { signal: stop.signal })) {
      watched.push(entry);
      if (watched.length === 2) stop.abort();
    }
  } catch (error) {
    assert.equal(ConnectError.from(error).code, Code.Canceled);
  }
  assert.equal(watched.length, 2);
});

test("an error has its code and its reason, at once and within a stream", async () => {
  const api = client();
  const absent = { key: bytes("once"), condition: { case: "absent", value: true } };
  const batch = { operations: [put("once", "1")], preconditions: [absent] };
  await api.commit({ batch });
  await assert.rejects(api.commit({ batch }), (error) => reasonOf(error) === "PRECONDITION_FAILED");
  const late = { read: { at: { epoch: 0n, version: 1n << 40n } } };
  const isLate = (error) => reasonOf(error) === "NOT_YET" && error.code !== Code.Internal;
  await assert.rejects(api.get({ key: bytes("once"), ...late }), isLate);
  await assert.rejects(async () => {
    for await (const _ of api.range(late)) assert.fail("there is no such version");
  }, isLate);
});

test("the text form is answered in the text form", async () => {
  const answer = await fetch(`${ledger}/coppice.v1.Ledger/Head`, {
    method: "POST",
    headers: { "Content-Type": "application/grpc-web-text", Accept: "application/grpc-web-text" },
    body: Buffer.alloc(5).toString("base64"),
  });
  assert.equal(answer.headers.get("content-type"), "application/grpc-web-text+proto");
  const parts = (await answer.text()).match(/[^=]+=*/g).map((part) => Buffer.from(part, "base64"));
  assert.match(Buffer.concat(parts).toString("latin1"), /grpc-status:\s?0/);
});

test("malformed calls are refused, and the connection's limits hold", async () => {
  const send = (body, kind = "application/grpc-web+proto", method = "POST", path = "Get") =>
    fetch(`${ledger}/coppice.v1.Ledger/${path}`, { method, headers: { "Content-Type": kind }, body });
  const before = await head();
  const frame = (length, data) => Buffer.concat([Buffer.from([0, ...new Uint8Array(new Uint32Array([length]).buffer).reverse()]), data]);
  for (const body of [Buffer.alloc(0), Buffer.alloc(3), frame(100, Buffer.alloc(3)), frame(3, Buffer.from([255, 255, 255]))]) {
    for (const path of ["Get", "Commit", "CommitStream", "Nothing"]) {
      // A stream without batches has no fault.
      if (path === "CommitStream" && body.length === 0) continue;
      const answer = await send(body, undefined, undefined, path);
      const said = answer.headers.get("grpc-status") ?? /grpc-status:\s?(\d+)/.exec(await answer.text())?.[1];
      assert.ok(/^[1-9]\d*$/.test(said), `${path} ${body.length}: ${said}`);
    }
  }
  const malformed = await send("!!!!", "application/grpc-web-text");
  assert.ok(Number(malformed.headers.get("grpc-status")) > 0);
  // A message that is larger than any request may be.
  const large = await send(frame(0x7fffffff, Buffer.alloc(1000)));
  assert.ok(Number(large.headers.get("grpc-status")) > 0);
  for (const [kind, method] of [["text/plain", "POST"], ["application/grpc", "POST"], ["application/json", "POST"], ["application/grpc-web", "PUT"]]) {
    const answer = await send(Buffer.alloc(5), kind, method, "Head");
    assert.equal(answer.status, 404, `${kind} ${method}`);
    assert.equal((await answer.json()).reason, "UNIMPLEMENTED");
  }
  assert.equal((await fetch(`${ledger}/coppice.v1.Ledger/Head`, { method: "OPTIONS" })).headers.get("access-control-allow-origin"), null);
  assert.equal(await head(), before);
});

test("a page of the same origin reads in Chromium, and writes nothing", async () => {
  await client().commit({ batch: { operations: [put("page/1", "one"), put("page/2", "two")] } });
  const before = await head();
  const shown = await page.evaluate(async () => {
    const { createClient, ConnectError } = await import("@connectrpc/connect");
    const { createGrpcWebTransport } = await import("@connectrpc/connect-web");
    const { createFileRegistry, fromBinary } = await import("@bufbuild/protobuf");
    const { FileDescriptorSetSchema } = await import("@bufbuild/protobuf/wkt");
    const set = new Uint8Array(await (await fetch("/descriptors")).arrayBuffer());
    const registry = createFileRegistry(fromBinary(FileDescriptorSetSchema, set));
    const transport = createGrpcWebTransport({ baseUrl: location.origin });
    const api = createClient(registry.getService("coppice.v1.Ledger"), transport);
    const bytes = (text) => new TextEncoder().encode(text);
    const text = (data) => new TextDecoder().decode(data);
    const failed = async (call) => {
      try {
        await call;
      } catch (error) {
        const { code, rawMessage, details } = ConnectError.from(error);
        return { code, rawMessage, details: details.map(({ value }) => text(value)) };
      }
      throw new Error("it did not fail");
    };
    const got = await api.get({ key: bytes("page/1"), read: {} });
    const keys = [];
    for await (const part of api.range({ low: bytes("page/"), high: bytes("page0") })) {
      keys.push(...part.records.map((record) => text(record.key)));
    }
    let watched = 0;
    for await (const _ of api.watchHeads({ fromSequence: 0n, follow: true })) {
      watched += 1;
      if (watched === 2) break;
    }
    const operations = [{ key: bytes("page/1"), change: { case: "put", value: bytes("changed") } }];
    return {
      value: text(got.record.value), keys, watched,
      late: await failed(api.get({ key: bytes("k"), read: { at: { version: 1n << 40n } } })),
      written: [
        await failed(api.commit({ batch: { operations } })),
        await failed(api.openSession({ sessionId: new Uint8Array(16).fill(7) })),
        await failed(api.prune({ boundary: 1n, reason: "a page" })),
      ],
    };
  });
  assert.deepEqual([shown.value, shown.keys, shown.watched], ["one", ["page/1", "page/2"], 2]);
  assert.match(shown.late.details.join(), /NOT_YET/);
  for (const { code, details } of shown.written) {
    assert.equal(code, Code.PermissionDenied);
    assert.match(details.join(), /DENIED/);
  }
  assert.equal(await head(), before);
});

test("a page of another origin neither reads nor writes", async () => {
  const batch = { operations: [put("foreign", "1")] };
  const { toBinary, create } = from("@bufbuild/protobuf");
  const schema = registry.getMessage("coppice.v1.CommitRequest");
  const message = toBinary(schema, create(schema, { batch }));
  const body = [0, 0, 0, 0, message.length, ...message];
  const before = await head();
  const tried = await page.evaluate(
    async ([ledger, body]) => {
      const outcomes = [];
      const paths = ["/coppice.v1.Ledger/Commit", "/coppice.v1.Ledger/Head"];
      const kinds = ["text/plain", "application/grpc-web+proto", "application/grpc-web-text", "application/grpc"];
      for (const mode of ["cors", "no-cors"]) {
        for (const path of paths) {
          for (const kind of kinds) {
            const headers = { "Content-Type": kind };
            const sent = fetch(ledger + path, { method: "POST", mode, headers, body: new Uint8Array(body) });
            outcomes.push(await sent.then((answer) => answer.type, () => "failed"));
          }
        }
      }
      navigator.sendBeacon(`${ledger}/coppice.v1.Ledger/Commit`, new Blob([new Uint8Array(body)], { type: "application/grpc-web" }));
      navigator.sendBeacon(`${ledger}/coppice.v1.Ledger/Commit`, new Uint8Array(body));
      return outcomes;
    },
    [ledger, body],
  );
  // A page sees nothing: it may send what needs no question, and gets an opaque answer.
  assert.ok(tried.every((outcome) => outcome === "failed" || outcome === "opaque"), tried.join());
  assert.ok(tried.includes("failed") && tried.includes("opaque"), tried.join());
  assert.equal(await head(), before);
  // The same bytes are a commit when they are not sent by a page.
  const headers = { "Content-Type": "application/grpc-web+proto" };
  await fetch(`${ledger}/coppice.v1.Ledger/Commit`, { method: "POST", headers, body: new Uint8Array(body) });
  assert.equal(await head(), before + 1);
});
