// One record: its value, its last change, and all of its changes.
import { useState } from "preact/hooks";
import * as api from "../api.js";
import { Broken, prove } from "../ledger.js";
import { Ask, Badge, Command, Fact, Facts, Field, Found, Hash, Key, Loading, Problem, Save, Time, Value, useAction, useTask } from "../parts.jsx";
import { go, to } from "../route.js";
import { isNoPart, provenAlone } from "./range.jsx";
import { argument, count, encoded, shown, stamp, typable, typed } from "../text.js";

/** Changes that a history shows before it asks whether to go on. */
const CHANGES = 50;

/** The verified record of a key at a version: the proof's version, value and last change. */
export async function provenRecord(key, version) {
  if (isNoPart(key)) return alone(key, version);
  const at = version ? `?version=${encodeURIComponent(version)}` : "";
  const proven = await prove(`v1/records/${encoded(key)}${at}`, { expect: { keys: key }, version });
  const { result } = proven;
  if (!["membership", "absence"].includes(result.kind)) throw new Broken("question", "the answer is not of one key");
  return {
    ...proven,
    found: result.found,
    at: { epoch: result.epoch, version: result.version },
    changed: result.found ? result.last_changed : null,
    value: result.found && result.value !== undefined ? shown(result.value, result.encoding) : null,
  };
}

async function alone(key, version) {
  const { record, ...proven } = await provenAlone(key, version);
  return {
    ...proven,
    result: { ...proven.result, ...record },
    found: record !== undefined,
    at: { epoch: proven.result.epoch, version: proven.result.version },
    changed: record?.last_changed ?? null,
    value: record?.told ?? null,
  };
}

/** What the server says of the changes of a key; nothing for keys that no address can name. */
async function claimed(key, version) {
  if (isNoPart(key)) return [];
  const { objects } = await api.lines(`v1/records/${encoded(key)}/history${version ? `?version=${encodeURIComponent(version)}` : ""}`);
  return objects;
}

function Shown({ of, keyBytes }) {
  const { result, file, badge, found, at, changed, value } = of;
  const key = typable(keyBytes);
  const older = changed && Number(changed.version) > 0 && `${Number(changed.version) - 1}`;
  return (
    <>
      <Facts label="The record">
        <Fact name="Key" badge={badge}><Key bytes={keyBytes} max={512} /></Fact>
        <Fact name="Read at" badge={badge}>{stamp(at)}, <Time ms={result.timestamp_ms} /></Fact>
        {found ? (
          <>
            <Fact name="Last change" badge={badge}><a href={to("record", { key, version: stamp(changed) })}>{stamp(changed)}</a></Fact>
            <Fact name="Length" badge={badge}>{count(result.value_bytes)} bytes</Fact>
            <Fact name="SHA-256" badge={badge}><Hash of={result.value_sha256} what="Hash of the value" /></Fact>
          </>
        ) : (
          <Fact name="Value" badge={badge}>none: the key has no record in this version</Fact>
        )}
      </Facts>
      {value && <Value bytes={value} name="value" />}
      <p class="actions">
        <a href={to("history", { key })}>History</a>
        {older && <a href={to("record", { key, version: older })}>Before this change</a>}
        <Save name="record.proof" bytes={file}>Save the proof</Save>
      </p>
      <details>
        <summary>Do it in a terminal</summary>
        <p>The console changes nothing. To put back what is shown here, if nobody was faster:</p>
        <Command>{`coppice get ${argument(keyBytes)} --version ${stamp(at)}\ncoppice commit --put ${argument(keyBytes)}=VALUE --expect-version ${stamp(result.newest)}`}</Command>
        <p>To check the proof without this page:</p>
        <Command>{`coppice verify record.proof --key @ledger.vkey --expect-key ${argument(keyBytes)}`}</Command>
      </details>
    </>
  );
}

export function Record({ query }) {
  const { key = "", version = "" } = query;
  const bytes = typed(key);
  const task = useTask(() => (key ? provenRecord(bytes, version) : Promise.resolve(null)), [key, version]);
  return (
    <>
      <h1>Record</h1>
      <Ask label="Record" onAsk={(form) => go("record", form)} key={`${key} ${version}`}>
        <Field label="Key" name="key" value={key} required hint="text, or hex with 0x in front" wide />
        <Field label="Version" name="version" value={version} placeholder="newest" hint="VERSION or EPOCH.VERSION" pattern="\d+(\.\d+)?" />
      </Ask>
      {!key && <p class="empty">Name a key, or find one in a <a href={to("range")}>range</a>.</p>}
      {key && <Found of={task} what="Asking for the record, and verifying it">{(value) => value && <Shown of={value} keyBytes={bytes} />}</Found>}
    </>
  );
}

/**
 * The chain of changes: the proof at a version names the last change, and the next question is at
 * the version before it. So nothing between two changes can be hidden. Over a time without a record
 * the server says where it was deleted; that deletion is proven, and that there was no other is
 * said.
 */
async function chain(key, version, onStep, limit) {
  const objects = await claimed(key, version);
  const end = objects.at(-1);
  const deletions = objects.slice(0, -1).filter((change) => !change.found);
  const rows = [];
  let at = version;
  let complete = true;
  for (;;) {
    const step = await provenRecord(key, at);
    if (step.found) {
      rows.push({ found: true, at: step.changed, value: step.value, time: null, badge: step.badge });
      if (Number(step.changed.version) === 0) return { rows, complete, done: true };
      at = String(Number(step.changed.version) - 1);
    } else {
      const deleted = deletions.find((it) => Number(it.version) <= Number(step.at.version));
      if (!deleted) {
        // Nothing shows that there was no earlier life of the key.
        const last = rows.length > 0 || deletions.length > 0;
        return { rows, complete: complete && Number(step.at.version) === 0, done: true, unsure: last, truncated: end?.truncated };
      }
      const [gone, before] = [await provenRecord(key, String(deleted.version)), await provenRecord(key, String(Number(deleted.version) - 1))];
      if (gone.found || !before.found) throw new Broken("question", `the server says that version ${deleted.version} deleted the key, and it did not`);
      if (Number(deleted.version) !== Number(step.at.version)) complete = false;
      rows.push({ found: false, at: gone.at, value: null, badge: gone.badge });
      at = String(Number(deleted.version) - 1);
    }
    onStep([...rows]);
    if (rows.length >= limit) return { rows, complete, done: false };
  }
}

function Changes({ rows, keyText }) {
  return (
    <div class="scroll" tabIndex="0" role="region" aria-label="Changes">
      <table>
        <thead><tr><th scope="col">Version</th><th scope="col">Change</th><th scope="col">Value</th><th scope="col">Shown by</th></tr></thead>
        <tbody>
          {rows.map((row) => (
            <tr key={stamp(row.at)}>
              <td><a href={to("record", { key: keyText, version: stamp(row.at) })}>{stamp(row.at)}</a></td>
              <td>{row.found ? "put" : "deleted"}</td>
              <td>{row.value ? <Key bytes={row.value} max={80} /> : <span class="dim">none</span>}</td>
              <td><Badge is={row.badge} /></td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

export function History({ query }) {
  const { key = "", version = "" } = query;
  const [limit, setLimit] = useState(CHANGES);
  const action = useAction([key, version]);
  const task = useTask(async () => {
    if (!key) return null;
    await action.run((step) => chain(typed(key), version, (rows) => step({ rows }), limit));
    return true;
  }, [key, version, limit]);
  const rows = action.value?.rows ?? [];
  return (
    <>
      <h1>History</h1>
      <Ask label="History" onAsk={(form) => go("history", form)} key={`${key} ${version}`}>
        <Field label="Key" name="key" value={key} required hint="text, or hex with 0x in front" wide />
        <Field label="Up to version" name="version" value={version} placeholder="newest" pattern="\d+(\.\d+)?" />
      </Ask>
      {!key && <p class="empty">Name a key: all its changes are shown, deletions too.</p>}
      {action.state === "failed" && <Problem error={action.error} />}
      {action.state !== "failed" && rows.length > 0 && <Changes rows={rows} keyText={key} />}
      {key && (task.state === "loading" || action.state === "loading") && <Loading what={`Following the changes, ${rows.length} so far`} />}
      {action.state === "done" && <End of={action.value} onMore={() => setLimit(limit + CHANGES)} />}
    </>
  );
}

function End({ of, onMore }) {
  const { rows, complete, done, truncated } = of;
  if (!done) return <p class="actions"><button type="button" onClick={onMore}>Go on with older changes</button></p>;
  if (rows.length === 0) return <p class="empty">The key has no record in this version. That it never had one is <Badge is="said" />.</p>;
  return (
    <p role="status">
      {rows.length} {rows.length === 1 ? "change" : "changes"}.{" "}
      {complete ? (
        <>No other change lies between them and the newest version: <Badge is="proven" />. That the oldest one created the key is <Badge is="said" />.</>
      ) : (
        <>Each change is proven. That there was none while the key had no record is <Badge is="said" />.</>
      )}
      {truncated && " Older versions were pruned."}
    </p>
  );
}

