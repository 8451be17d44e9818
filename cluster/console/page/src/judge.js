// The verifier behind a worker. A worker that takes too long, or fails, is thrown away.

/** Longest time for one file. */
const LIMIT_MS = 10_000;

let make = null;
let module = null;
let worker = null;
let next = 0;
const waiting = new Map();

/** Says how a worker is made, and where the verifier's bytes come from. */
export function prepare(makeWorker, loadBytes) {
  make = makeWorker;
  module = loadBytes().then((bytes) => WebAssembly.compile(bytes));
  // Whoever asks for a verdict gets the failure, too.
  module.catch(() => {});
}

function start() {
  worker = make();
  worker.onmessage = ({ data: { id, result, misuse, error } }) => {
    const { resolve, reject } = waiting.get(id) ?? {};
    waiting.delete(id);
    if (result) resolve?.(result);
    else reject?.(Object.assign(new Error(error), { misuse }));
  };
  worker.onerror = (event) => {
    event.preventDefault?.();
    end(new Error("the verifier failed: nothing is known about the file"));
  };
}

function end(error) {
  worker?.terminate();
  worker = null;
  for (const { reject } of waiting.values()) reject(error);
  waiting.clear();
}

async function ask(call, file, options) {
  const compiled = await module;
  if (!worker) start();
  const id = (next += 1);
  const limit = setTimeout(() => end(new Error("the verifier took more than 10 seconds: the file is not believed")), LIMIT_MS);
  const answer = new Promise((resolve, reject) => waiting.set(id, { resolve, reject }));
  worker.postMessage({ id, call, file, options, module: compiled });
  return answer.finally(() => clearTimeout(limit));
}

export const verify = (file, options) => ask("verify", file, options);
export const evidence = (file, options) => ask("evidence", file, options);
