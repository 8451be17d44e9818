// A ledger of `coppice dev`, and coordinators before it that lie.
import { execFileSync, spawn } from "node:child_process";
import { cp, mkdtemp, readFile, rm } from "node:fs/promises";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("../../../../../", import.meta.url));
const bin = process.env.COPPICE_BIN ?? join(root, "target/debug/coppice");
export const PROOF = { Accept: "application/vnd.coppice.proof" };
const ended = [];
let folder = null;

/** A ledger in a folder of this name. */
export async function ledger(name) {
  folder ??= await mkdtemp(join(tmpdir(), "coppice-client-"));
  const dir = join(folder, name);
  const options = ["--replicas", "1", "--shards", "2", "--listen", "127.0.0.1:0", "--data-dir", dir];
  const child = spawn(bin, ["dev", ...options], { stdio: ["ignore", "pipe", "ignore"] });
  const exited = new Promise((resolve) => child.once("exit", resolve));
  const stop = async () => {
    child.kill("SIGTERM");
    const limit = setTimeout(() => child.kill("SIGKILL"), 10_000);
    await exited;
    clearTimeout(limit);
  };
  ended.push(stop);
  for await (const line of createInterface({ input: child.stdout })) {
    if (!line.startsWith("ready ")) continue;
    child.stdout.resume();
    return { endpoint: line.slice(6).trim(), dir, stop, vkey: await readFile(join(dir, "ledger.vkey"), "utf8") };
  }
  throw new Error("the ledger did not start");
}

/** Runs a command of `coppice` on a ledger. */
export function command(of, ...words) {
  const env = { ...process.env, COPPICE_ENDPOINT: of.endpoint };
  execFileSync(bin, words, { env, stdio: ["ignore", "ignore", "inherit"], timeout: 60_000 });
}

/** Two ledgers that go on from this one under one key: a fork. */
export async function twins(of, name) {
  await of.stop();
  await cp(of.dir, join(folder, name), { recursive: true });
  return [await ledger(of.dir.slice(folder.length + 1)), await ledger(name)];
}

/**
 * A coordinator that passes requests on to a ledger. `lie` gets method, path and a function that
 * asks the ledger; it may answer itself with `{ status, headers, body }`, or take the response over.
 */
export async function relay(of) {
  const state = { of, lie: null, calls: [] };
  const server = createServer(async (request, response) => {
    const parts = [];
    for await (const part of request) parts.push(part);
    state.calls.push(`${request.method} ${request.url}`);
    const { host, connection, "content-length": _, ...headers } = request.headers;
    const body = parts.length > 0 ? Buffer.concat(parts) : undefined;
    const pass = async () => {
      const answer = await fetch(state.of.endpoint + request.url, { method: request.method, headers, body });
      return { status: answer.status, headers: Object.fromEntries(answer.headers), body: Buffer.from(await answer.arrayBuffer()) };
    };
    const answer = (await state.lie?.(request.method, request.url, pass, response)) ?? (response.headersSent ? null : await pass());
    if (!answer || response.destroyed) return;
    const { "transfer-encoding": chunked, connection: kept, ...shown } = answer.headers ?? {};
    response.writeHead(answer.status ?? 200, { ...shown, "content-length": answer.body.length });
    response.end(answer.body);
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const close = () => new Promise((resolve) => (server.closeAllConnections(), server.close(resolve)));
  ended.push(close);
  return Object.assign(state, { close, endpoint: `http://127.0.0.1:${server.address().port}` });
}

export function refusal(status, reason, headers = {}) {
  const body = Buffer.from(JSON.stringify({ reason, detail: "it is said", status }));
  return { status, headers: { "content-type": "application/problem+json", ...headers }, body };
}

/** Ends all that was started. */
export async function end() {
  await Promise.all(ended.map((stop) => stop()));
  if (folder) await rm(folder, { recursive: true, force: true });
}
