// Requests to the server of the page. Every answer is of strangers: it is bounded, and only parsed.
import { secretOf } from "./route.js";

const PROOF = "application/vnd.coppice.proof";
/** Longest wait for an answer, and most bytes of one. */
const LIMIT_MS = 60_000;
const BYTES_MAX = 64 << 20;

/** A refusal, with its reason and its words. */
export class Refused extends Error {
  constructor(status, reason, detail) {
    super(detail || reason || `the server answered ${status}`);
    this.status = status;
    this.reason = reason;
  }
}

/** The bytes of an answer, and whether it broke off. */
async function bytesOf(response) {
  const parts = [];
  let length = 0;
  let isCut = false;
  const reader = response.body.getReader();
  for (;;) {
    const { done, value } = await reader.read().catch(() => ((isCut = true), { done: true }));
    if (done) break;
    length += value.length;
    if (length > BYTES_MAX) {
      await reader.cancel();
      throw new Error("the answer is longer than 64 MiB");
    }
    parts.push(value);
  }
  const bytes = new Uint8Array(length);
  let at = 0;
  for (const part of parts) {
    bytes.set(part, at);
    at += part.length;
  }
  return { bytes, isCut };
}

/** The refusal in a problem document, or in the last line of an answer that broke off. */
function refusal(status, bytes) {
  const text = new TextDecoder().decode(bytes.subarray(-4096)).trim();
  try {
    const problem = JSON.parse(text.slice(text.lastIndexOf("\n") + 1));
    return new Refused(problem.status ?? status, String(problem.reason ?? ""), String(problem.detail ?? ""));
  } catch {
    return new Refused(status, "", status === 200 ? "the answer broke off" : text);
  }
}

/** The bytes of an answer, and its headers. Addresses are relative to the page. */
export async function get(path, accept) {
  const headers = { "Coppice-Console": secretOf(), ...(accept && { Accept: accept }) };
  let response;
  try {
    response = await fetch(path, {
      headers,
      credentials: "omit",
      redirect: "error",
      cache: "no-store",
      signal: AbortSignal.timeout(LIMIT_MS),
    });
  } catch (error) {
    const why = error.name === "TimeoutError" ? "it did not answer in a minute" : "it can't be reached";
    throw new Refused(0, "UNREACHABLE", `The server of this page: ${why}. Is it still running?`);
  }
  const { bytes, isCut } = await bytesOf(response);
  if (isCut || !response.ok) throw refusal(response.status, bytes);
  return { bytes, headers: response.headers };
}

const textOf = (bytes) => new TextDecoder().decode(bytes);

export async function json(path) {
  return JSON.parse(textOf((await get(path, "application/json")).bytes));
}

/** The objects of an answer in lines, and its headers. */
export async function lines(path) {
  const { bytes, headers } = await get(path);
  const objects = textOf(bytes).split("\n").filter((line) => line !== "").map((line) => JSON.parse(line));
  const last = objects.at(-1);
  if (last?.status && last?.reason) throw new Refused(last.status, last.reason, last.detail);
  return { objects, headers };
}

/** A proof file. */
export async function proof(path) {
  return (await get(path, PROOF)).bytes;
}

export async function text(path) {
  return textOf((await get(path)).bytes);
}
