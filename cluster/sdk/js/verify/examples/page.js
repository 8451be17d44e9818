// A page that checks proof files. Its server should send this Content-Security-Policy:
// default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; connect-src 'self'
import { load, visible } from "../index.js";

const part = (id) => document.getElementById(id);
const verifier = load();

/** Keys and values come from strangers, so they are shown as text without hidden characters. */
function show(verdict, result) {
  part("verdict").textContent = visible(verdict);
  const line = (name, value) => (name === "" || typeof value !== "string" ? value : visible(value));
  part("shown").textContent = result ? JSON.stringify(result, line, 2) : "";
}

async function check() {
  const expected = part("expected").value;
  const options = { keys: part("key").value, expect: expected === "" ? {} : { keys: expected } };
  const result = (await verifier).verify(await part("file").files[0].arrayBuffer(), options);
  if (result.valid) show(`Valid: ${result.kind} at version ${result.epoch}.${result.version}`, result);
  else show(`Does not hold, at step ${result.error}`);
}

document.querySelector("form").addEventListener("submit", (event) => {
  event.preventDefault();
  check().catch((error) => show(`Not checked: ${error.message}`));
});
