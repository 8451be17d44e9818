// The page as one file, which works without any server. The build puts worker and verifier in.
import { start } from "./app.jsx";

const { worker, verifier } = JSON.parse(document.getElementById("parts").textContent);

const source = URL.createObjectURL(new Blob([worker], { type: "text/javascript" }));
const policy = window.trustedTypes?.createPolicy("coppice", { createScriptURL: () => source });

/** The verifier is packed, so that the file stays small. */
async function unpacked() {
  const packed = Uint8Array.from(atob(verifier), (c) => c.charCodeAt(0));
  return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
}

start(() => new Worker(policy ? policy.createScriptURL("") : source), unpacked);
