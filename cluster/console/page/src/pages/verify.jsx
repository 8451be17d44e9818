// A file that somebody has sent: judged here, and sent nowhere.
import { useRef, useState } from "preact/hooks";
import { judge, trust } from "../ledger.js";
import { Badge, Fact, Facts, Hash, Key, Loading, Strange, Time, Value, useAction } from "../parts.jsx";
import { count, shown, stamp, typed, visible } from "../text.js";

const BYTES_MAX = 64 << 20;

async function bytesOf(file) {
  if (file.size > BYTES_MAX) throw new Error("A proof file has at most 64 MiB.");
  return new Uint8Array(await file.arrayBuffer());
}

async function check({ file, newer, policy, key, expected }) {
  if (!file) throw new Error("Choose a file.");
  const verdict = await judge(await bytesOf(file), {
    key: key.trim(),
    policy: policy.trim(),
    newer: newer ? await bytesOf(newer) : null,
    expect: expected ? { keys: typed(expected) } : undefined,
  });
  return { verdict, name: file.name, expected };
}

function FileField({ label, name, hint, onFile, file }) {
  const input = useRef(null);
  const drop = (event) => {
    event.preventDefault();
    onFile(event.dataTransfer.files[0] ?? null);
  };
  return (
    <div class="field full drop" onDragOver={(event) => event.preventDefault()} onDrop={drop}>
      <label>
        <span>{label}</span>
        <input ref={input} type="file" name={name} onChange={(event) => onFile(event.currentTarget.files[0] ?? null)} />
      </label>
      <small>{file ? <>Chosen: <Strange text={file.name} />, {count(file.size)} bytes</> : hint}</small>
    </div>
  );
}

/** What a file says of one key. */
function Entry({ of, name }) {
  const value = of.found && of.value !== undefined ? shown(of.value, of.encoding) : null;
  return (
    <>
      <Fact name="Key" badge="proven"><Key bytes={shown(of.key, of.key_encoding)} max={512} /></Fact>
      {!of.found && <Fact name="Value" badge="proven">none: the key has no record</Fact>}
      {of.found && <Fact name="Last change" badge="proven">{stamp(of.last_changed)}</Fact>}
      {of.found && <Fact name="SHA-256" badge="proven"><Hash of={of.value_sha256} what="Hash of the value" /></Fact>}
      {value && <div class="fact"><dt>Value</dt><dd class="block"><Value bytes={value} name={name} /></dd></div>}
    </>
  );
}

const SAYS = {
  membership: "a key had this value",
  absence: "a key had no value",
  keys: "these keys had these values",
  range: "these records were in the range, and no others",
  receipt: "a batch was committed",
  standing: "the log only grew since an older checkpoint",
  journals: "a ledger of members held these journals",
  lineage: "these are the journals with a clue",
  time: "this version was the newest one at a time",
  interval: "time stamps lie around an entry",
  contradiction: "a key of the ledger has signed two logs that contradict each other",
  late: "a replaced key of the ledger has signed",
};

function Claim({ verdict }) {
  if (verdict.is_evidence) {
    return (
      <>
        <Fact name="Convicted" badge="proven">{verdict.one_key ? <Hash of={verdict.a.signed_by} what="Key" /> : "at least one of the two signers"}</Fact>
        {[["A", verdict.a], ["B", verdict.b]].map(([name, side]) => (
          <Fact key={name} name={`Checkpoint ${name}`} badge="proven">{count(side.size)} entries, root <Hash of={side.root} what="Root" /></Fact>
        ))}
        {verdict.cosigners.map((it) => <Fact key={it.key_name} name="Convicted, too" badge="proven"><Strange text={it.witness} /></Fact>)}
      </>
    );
  }
  const entries = verdict.records ?? (Array.isArray(verdict.keys) ? verdict.keys : verdict.key === undefined ? [] : [verdict]);
  return (
    <>
      <Fact name="Version" badge="proven">{stamp(verdict)}, <Time ms={verdict.timestamp_ms} /></Fact>
      {verdict.kind === "standing" && <Fact name="Grew from" badge="proven">{count(verdict.old_size)} entries, root <Hash of={verdict.old_root} what="Root" /></Fact>}
      {verdict.kind === "receipt" && <Fact name="Batch" badge="proven"><Hash of={verdict.entry_hash} what="Hash of the batch" /></Fact>}
      {verdict.kind === "range" && (
        <Fact name="Range" badge="proven">
          {count(entries.length)} records from <Key bytes={shown(verdict.low, verdict.low_encoding)} /> to{" "}
          {verdict.high === null ? "the end" : <Key bytes={shown(verdict.high, verdict.high_encoding)} />}
        </Fact>
      )}
      {entries.slice(0, 50).map((entry, at) => <Entry key={at} of={entry} name={`entry-${at}`} />)}
      {entries.length > 50 && <Fact name="More">{count(entries.length - 50)} more records: use <code>coppice verify</code>.</Fact>}
      {verdict.journals?.slice(0, 50).map((it) => (
        <Fact key={it.jsn} name={`Journal ${it.jsn}`} badge="proven">
          by member <Hash of={it.member_id} what="Member" />{it.payload !== undefined && <>: <Key bytes={shown(it.payload, it.encoding)} /></>}
        </Fact>
      ))}
      <Fact name="Ledger" badge="proven"><code class="long">{verdict.checkpoint.origin}</code></Fact>
      <Fact name="Checkpoint" badge="proven">{count(verdict.checkpoint.size)} entries, root <Hash of={verdict.checkpoint.root} what="Root" /></Fact>
      <Fact name="Signed by" badge="proven"><Hash of={verdict.signed_by} what="Key" /></Fact>
      {verdict.cosignatures && <Fact name="Witnesses" badge="proven">{verdict.cosignatures.map((it) => visible(it.witness)).join(", ") || "none"}</Fact>}
      <Fact name="Stands" badge={verdict.newer_checkpoint ? "proven" : "said"}>
        {verdict.newer_checkpoint ? `at the newer checkpoint of ${count(verdict.newer_checkpoint.size)} entries, too` : "as far as its own checkpoint: a newer one would show a rollback since"}
      </Fact>
    </>
  );
}

function Verdict({ of: { verdict, name, expected } }) {
  if (!verdict.valid) {
    return (
      <section class="problem broken-box">
        <h2><Badge is="broken" /> <Strange text={name} /> does not hold</h2>
        <p>Nothing in it can be believed. It failed at the step <code>{visible(verdict.failed_step)}</code>:</p>
        <p class="why">{visible(verdict.error)}</p>
      </section>
    );
  }
  return (
    <section class="verdict">
      <h2><Badge is="proven" /> <Strange text={name} />: {SAYS[verdict.kind] ?? visible(verdict.kind)}</h2>
      {!verdict.is_evidence && !expected && <p>Compare the key and the version with your question: a valid proof may be of another one.</p>}
      <Facts label="What the file proves"><Claim verdict={verdict} /></Facts>
    </section>
  );
}

/** The key and policy that this page knows already. */
function known() {
  const { key, policy, from } = trust();
  return { key: from === "server" ? "" : (key ?? ""), policy: policy ?? "" };
}

export function Verify() {
  const [files, set] = useState({ file: null, newer: null });
  const action = useAction([files.file, files.newer]);
  const { key, policy } = known();
  const submit = (event) => {
    event.preventDefault();
    const form = Object.fromEntries(new FormData(event.currentTarget));
    action.run(() => check({ ...form, ...files }));
  };
  return (
    <>
      <h1>Verify a file</h1>
      <p>A <code>.proof</code>, <code>.receipt</code> or <code>.evidence</code> file is judged in this page. It is sent nowhere.</p>
      <form class="ask" aria-label="The file and whom to trust" onSubmit={submit}>
        <FileField label="File" name="file" file={files.file} hint="Drop it here, or choose it." onFile={(file) => set({ ...files, file })} />
        <label class="field full">
          <span>Public key of the ledger</span>
          <input name="key" defaultValue={key} autocomplete="off" spellcheck={false} />
          <small>The line of <code>ledger.vkey</code>, from anybody but the sender of the file.</small>
        </label>
        <label class="field full">
          <span>Key that the file should be about</span>
          <input name="expected" autocomplete="off" spellcheck={false} />
          <small>Left empty, compare it yourself. Text, or hex with 0x in front.</small>
        </label>
        <details class="full" open={policy !== ""}>
          <summary>Policy, and a newer checkpoint</summary>
          <label class="field full">
            <span>Policy</span>
            <textarea name="policy" rows="4" spellcheck={false} defaultValue={policy} />
            <small>In place of the key, or beside it: the witnesses that must have signed.</small>
          </label>
          <FileField label="Newer checkpoint" name="newer" file={files.newer} hint="Shows whether the version still stands." onFile={(newer) => set({ ...files, newer })} />
        </details>
        <button type="submit" class="main">Verify</button>
      </form>
      <div aria-live="polite" class="live">
        {action.state === "loading" && <Loading what="Verifying" />}
        {action.state === "failed" && (
          <section class="problem"><h2>Not checked</h2><p class="why">{visible(action.error.message)}</p></section>
        )}
        {action.state === "done" && <Verdict of={action.value} />}
      </div>
    </>
  );
}
