// The page as a server gives it: worker and verifier are files beside it.
import { start } from "./app.jsx";

// Under the page's policy, this is the one text that becomes a script.
const policy = window.trustedTypes?.createPolicy("coppice", { createScriptURL: () => "worker.js" });

start(
  () => new Worker(policy ? policy.createScriptURL("") : "worker.js"),
  async () => {
    const response = await fetch("verify.wasm", { credentials: "omit" });
    if (!response.ok) throw new Error("the verifier can't be loaded");
    return response.arrayBuffer();
  },
);
