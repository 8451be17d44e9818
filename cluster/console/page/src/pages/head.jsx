// The newest state, and whether it goes on from what this browser has seen.
import * as api from "../api.js";
import { choose, proveHead } from "../ledger.js";
import { Badge, Command, Fact, Facts, Field, Found, Hash, Save, Time, useTask, useTrust } from "../parts.jsx";
import { to } from "../route.js";
import { ago, count, stamp, time } from "../text.js";

function Continuity({ kept, result }) {
  if (!kept) {
    return (
      <Fact name="Goes on">
        This browser sees this ledger for the first time. From now on it compares.
      </Fact>
    );
  }
  const same = kept.size === Number(result.checkpoint.size);
  return (
    <Fact name="Goes on" badge="proven">
      {same ? "Unchanged since" : "Goes on from"} what you saw on {time(kept.at)}: {count(kept.size)} entries, version {stamp(kept.version)}
    </Fact>
  );
}

/** Asks for the ledger's key where the user's side named none. */
export function KeyForm({ from }) {
  const paste = (event) => {
    event.preventDefault();
    const key = new FormData(event.currentTarget).get("key").trim();
    if (key) choose(key);
  };
  return (
    <section class="notice">
      <h2>Whom do you trust?</h2>
      {from === "server" ? (
        <p>
          No key was given, so this page takes the one that the server itself names. Everything below is only <b>said</b> until
          you give the key that you have from elsewhere: a line of the file <code>ledger.vkey</code>.
        </p>
      ) : (
        <p>The key was pasted into this browser.</p>
      )}
      <form class="ask" aria-label="The ledger's key" onSubmit={paste}>
        <Field label="Public key of the ledger" name="key" wide required />
        <button type="submit" class="main">Trust this key</button>
        {from === "browser" && <button type="button" onClick={() => choose(null)}>Forget it</button>}
      </form>
      <p>Or start the console with it:</p>
      <Command>{"coppice console --trust @ledger.vkey"}</Command>
    </section>
  );
}

function Cosignatures({ result }) {
  if (result.cosignatures === null) {
    return <Fact name="Witnesses">No policy was given, so no witness is asked for. <code>--policy FILE</code> names one.</Fact>;
  }
  return (
    <Fact name="Witnesses" badge="proven">
      Policy met: {result.cosignatures.map((it) => it.witness || it.key_name).join(", ") || "its quorum is empty"}
    </Fact>
  );
}

export function Head() {
  const { from, key } = useTrust();
  const task = useTask(async () => {
    const proven = await proveHead();
    // What nobody signs is the coordinator's word.
    const said = await api.json("v1/head").catch(() => null);
    return { ...proven, said };
  }, []);
  return (
    <>
      <h1>Head</h1>
      {from !== "program" && <KeyForm from={from} />}
      <Found of={task} what="Asking for the newest checkpoint, and verifying it">
        {({ result, badge, file, kept, said }) => (
          <>
            <Facts label="The newest state">
              <Fact name="Version" badge={badge}>
                <a class="big" href={to("range", { version: stamp(result.newest) })}>{stamp(result.newest)}</a>
              </Fact>
              <Fact name="Time" badge={badge}><Time ms={result.timestamp_ms} /></Fact>
              <Fact name="State root" badge={badge}><Hash of={result.state_root} what="State root" /></Fact>
              <Fact name="Root log" badge={badge}>
                {count(result.checkpoint.size)} entries, root <Hash of={result.checkpoint.root} what="Root of the log" />
              </Fact>
              <Fact name="Signed by" badge={badge}><Hash of={result.signed_by ?? key ?? ""} what="Key" /></Fact>
              {result.key_changes?.length > 0 && <Fact name="Key changes" badge={badge}>{result.key_changes.length}</Fact>}
              <Cosignatures result={result} />
              <Continuity kept={kept} result={result} />
              <Fact name="Newest?" badge="said">
                The server says so. It could hide what came after {ago(result.timestamp_ms)}, and could make nothing up.
                {said && stamp(said) !== stamp(result.newest) && ` It also speaks of version ${stamp(said)}.`}
              </Fact>
              <Fact name="Rollbacks" badge={badge}>
                {result.epochs.length === 1 ? "none" : `${result.epochs.length - 1}: now in epoch ${result.newest.epoch}`}
              </Fact>
              {said && (
                <Fact name="Oldest version" badge="said">
                  {Number(said.pruned_boundary) === 0 ? "0: nothing was pruned" : `${count(said.pruned_boundary)}: older ones were pruned`}
                </Fact>
              )}
              <Fact name="Ledger" badge={badge}><code class="long">{result.checkpoint.origin}</code></Fact>
            </Facts>
            <p class="actions">
              <button type="button" class="main" onClick={task.again}>Ask again</button>
              <Save name="checkpoint.proof" bytes={file}>Save the proof</Save>
              <a href={to("timeline")}>Timeline</a>
            </p>
            {badge === "said" && <p class="dim"><Badge is="said" /> Every check held, under a key that only the server has named.</p>}
          </>
        )}
      </Found>
    </>
  );
}
