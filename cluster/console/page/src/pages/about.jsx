// What the badges mean, who made this page, and who could lie.
import { choose } from "../ledger.js";
import { Badge, Fact, Facts, Found, Hash, useTask, useTrust } from "../parts.jsx";
import { sha256 } from "../sha256.js";
import { hexOf } from "../text.js";

const MEANINGS = [
  ["proven", "This page has verified it, under the key or policy that you gave. The server can't have made it up."],
  ["signed", "The ledger or a witness has signed it, and nothing joins it yet to the log that this page has seen."],
  ["said", "The server says so. It may be wrong, or a lie."],
  ["broken", "The server's answer does not hold. The page names the step, and shows nothing else of it."],
];

const FROM = {
  program: "from the command line of your own program",
  browser: "pasted into this browser",
  server: "from the server itself: give it by --trust, or paste it on the page Head",
  nobody: "no key is needed before you verify a file",
};

/** Hashes of the files that this page runs, to be compared with those of a release. */
async function hashes() {
  const names = ["app.js", "worker.js", "app.css", "verify.wasm"];
  return Promise.all(
    names.map(async (name) => {
      const response = await fetch(name, { cache: "no-store", credentials: "omit" });
      return [name, hexOf(sha256(new Uint8Array(await response.arrayBuffer())))];
    }),
  );
}

function Files() {
  const task = useTask(hashes, []);
  return (
    <Found of={task} what="Hashing the page">
      {(files) => (
        <Facts label="Files of this page">
          {files.map(([name, hash]) => <Fact key={name} name={name}><Hash of={hash} what={name} /></Fact>)}
        </Facts>
      )}
    </Found>
  );
}

export function About({ kind }) {
  const { key, from, policy, settings } = useTrust();
  return (
    <>
      <h1>About this page</h1>
      <h2>Badges</h2>
      <dl class="meanings">
        {MEANINGS.map(([is, words]) => (
          <div key={is}><dt><Badge is={is} /></dt><dd>{words}</dd></div>
        ))}
      </dl>
      <h2>Whom this page believes</h2>
      <Facts label="Trust">
        <Fact name="Key">{key ? <Hash of={key} what="Key" /> : "none"}</Fact>
        <Fact name="It came">{FROM[from]} {from === "browser" && <button type="button" onClick={() => choose(null)}>Forget it</button>}</Fact>
        <Fact name="Policy">{policy ? <details><summary>shown</summary><pre tabIndex="0" aria-label="Policy">{policy}</pre></details> : "none"}</Fact>
        {settings?.program && <Fact name="Program">coppice {settings.program}</Fact>}
      </Facts>
      <h2>Who could lie</h2>
      {kind === "console" && <p>This page came from the program <code>coppice console</code> on your own machine. The ledger's servers have no part in it: they can be silent, and be old, but what they make up shows as <Badge is="broken" />.</p>}
      {kind === "log" && <p><b>This page came from a server of the ledger itself, which could show anything.</b> It convinces nobody who does not trust that server. Use <code>coppice console</code>, or the page for offline use of a release.</p>}
      {kind === "offline" && <p>This page is one file, and asks nobody. Compare its SHA-256 with that of a release before you believe it: <code>sha256sum coppice-offline.html</code>.</p>}
      {kind !== "offline" && (
        <>
          <h2>Files</h2>
          <p>The source of a release gives the same bytes. <a href="offline.html" download="coppice-offline.html">Save the page that verifies files offline</a>.</p>
          <Files />
        </>
      )}
    </>
  );
}
