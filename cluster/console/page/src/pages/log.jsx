// The root log: what happened to the ledger, who did it, and why.
import * as api from "../api.js";
import { Broken, prove, proveHead } from "../ledger.js";
import { Ask, Badge, Found, Hash, Loading, Pages, Problem, Strange, Time, useAction, useTask } from "../parts.jsx";
import { go, to } from "../route.js";
import { count, stamp, time } from "../text.js";

const PAGE = 64;
/** Proofs that are asked for at once. */
const AT_ONCE = 6;
const KINDS = ["commit", "rollback", "prune", "key", "anchor", "genesis"];

/** What an entry did, in words. Names and reasons are of those who did it. */
export function what(entry) {
  const by = (body) => `by ${body.principal}: ${body.reason}`;
  if (entry.rollback) return `back to ${stamp(entry.rollback.target)} from ${stamp(entry.rollback.head_before)}, ${by(entry.rollback)}`;
  if (entry.prune) return `dropped the versions before ${entry.prune.boundary}, ${by(entry.prune)}`;
  if (entry.key) return `key change ${entry.key.number}, ${by(entry.key)}`;
  if (entry.anchor?.tokens?.length === 0) return `the log of ${entry.anchor.stamped_size} entries was stamped`;
  if (entry.anchor?.tokens) {
    const names = entry.anchor.tokens.map((it) => `${it.authority ?? it.type}${it.time ? ` at ${it.time}` : ""}`);
    return `the log of ${entry.anchor.stamped_size} entries was stamped: ${names.join("; ")}`;
  }
  if (entry.anchor) return "certificates of a time-stamping authority";
  if (entry.kind === "genesis") return `the ledger was founded, with ${entry.state_leaves} shards`;
  return "";
}

/** A page of entries as the server says them, newest first, and the verified size of the log. */
async function page(end) {
  const head = await proveHead();
  const logSize = Number(head.result.checkpoint.size);
  const upTo = Math.min(end ?? logSize, logSize);
  const from = Math.max(0, upTo - PAGE);
  const { objects } = upTo > from ? await api.lines(`v1/log?from=${from}&limit=${upTo - from}`) : { objects: [] };
  const misplaced = objects.some((entry, at) => Number(entry.sequence) !== from + at);
  if (misplaced || objects.length > upTo - from) throw new Broken("question", "the entries are not those that were asked for");
  return { entries: objects.reverse(), from, upTo: from + objects.length, logSize, head };
}

/** Whether the proof of a version shows time and state root of its entry. */
async function provenEntry(entry) {
  const version = stamp(entry);
  let proven;
  try {
    proven = await prove(`v1/records/%01?version=${version}`, { expect: { keys: "\u0001" }, version });
  } catch (error) {
    // What was pruned or rolled back has no proof any more: it stays the server's word.
    if (["PRUNED", "ROLLED_BACK"].includes(error.reason)) return "said";
    throw error;
  }
  const { result, badge } = proven;
  if (String(result.timestamp_ms) !== String(entry.timestamp_ms) || result.state_root !== entry.state_root) {
    throw new Broken("question", `the entry of version ${version} is not what its proof shows`);
  }
  return badge;
}

async function proveAll(entries, onStep) {
  const badges = {};
  const commits = entries.filter((entry) => entry.kind === "commit");
  for (let at = 0; at < commits.length; at += AT_ONCE) {
    const part = commits.slice(at, at + AT_ONCE);
    const found = await Promise.all(part.map(provenEntry));
    part.forEach((entry, i) => (badges[entry.sequence] = found[i]));
    onStep({ ...badges });
  }
  return badges;
}

function Row({ entry, badge, details, isPublic }) {
  const words = what(entry);
  return (
    <tr class={entry.kind === "commit" ? "" : "event"}>
      <td class="right">{count(entry.sequence)}</td>
      <td>{entry.kind}</td>
      <td>{isPublic ? stamp(entry) : <a href={to("range", { version: stamp(entry) })}>{stamp(entry)}</a>}</td>
      <td class="nowrap">{time(entry.timestamp_ms)}</td>
      <td class="words">
        {words ? <Strange text={words} /> : <span class="dim">state <Hash of={entry.state_root} what="State root" /></span>}
        {details && (
          <details>
            <summary>All fields</summary>
            <pre tabIndex="0" aria-label={`Entry ${entry.sequence}`}><Strange text={JSON.stringify(entry, null, 2)} lines /></pre>
          </details>
        )}
      </td>
      <td><Badge is={badge} /></td>
    </tr>
  );
}

export function Entries({ entries, badges, details, isPublic }) {
  return (
    <div class="scroll" tabIndex="0" role="region" aria-label="Entries">
      <table>
        <thead>
          <tr>
            <th scope="col" class="right">Entry</th><th scope="col">Kind</th><th scope="col">Version</th><th scope="col">Time</th>
            <th scope="col">What</th><th scope="col">Shown by</th>
          </tr>
        </thead>
        <tbody>
          {entries.map((entry) => <Row key={entry.sequence} entry={entry} details={details} isPublic={isPublic} badge={badges[entry.sequence] ?? "said"} />)}
        </tbody>
      </table>
    </div>
  );
}

export function Timeline({ query }) {
  const end = query.before ? Number(query.before) : null;
  const task = useTask(() => page(end), [query.before]);
  const action = useAction([query.before]);
  return (
    <>
      <h1>Timeline</h1>
      <Found of={task} what="Asking for the newest entries">
        {({ entries, from, upTo, logSize, head }) => (
          <>
            <p>
              The log has {count(logSize)} entries <Badge is={head.badge} />. This page shows {count(from)} to {count(Math.max(from, upTo - 1))}.
            </p>
            <p class="actions">
              <button type="button" class="main" disabled={action.state === "loading"} onClick={() => action.run((step) => proveAll(entries, step))}>
                Prove these versions
              </button>
              {action.state === "loading" && <Loading what={`Proving, ${Object.keys(action.value ?? {}).length} so far`} />}
              {action.state === "done" && <span role="status">{Object.values(action.value).filter((it) => it === "proven").length} versions are proven, with their times and state roots. The numbers of entries are said.</span>}
            </p>
            {action.state === "failed" ? <Problem error={action.error} /> : <Entries entries={entries} badges={action.value ?? {}} />}
            <Pages
              newer={upTo < logSize && to("timeline", { before: Math.min(logSize, upTo + PAGE) })}
              older={from > 0 && to("timeline", { before: from })}
            />
          </>
        )}
      </Found>
    </>
  );
}

export function RootLog({ query }) {
  const end = query.before ? Number(query.before) : null;
  const kind = KINDS.includes(query.kind) ? query.kind : "";
  const task = useTask(() => page(end), [query.before]);
  return (
    <>
      <h1>Root log</h1>
      <Ask label="Filter" onAsk={(form) => go("log", { ...form, before: query.before })} key={kind} button="Filter">
        <label class="field">
          <span>Kind</span>
          <select name="kind" defaultValue={kind}>
            <option value="">all kinds</option>
            {KINDS.map((it) => <option key={it} value={it} selected={it === kind}>{it}</option>)}
          </select>
        </label>
      </Ask>
      <Found of={task} what="Asking for entries">
        {({ entries, from, upTo, logSize, head }) => {
          const wanted = entries.filter((entry) => !kind || entry.kind === kind);
          return (
            <>
              <p>
                {count(logSize)} entries <Badge is={head.badge} />, the newest of <Time ms={head.result.timestamp_ms} />. The fields
                of entries are <Badge is="said" />; <code>coppice log check</code> proves all of them.
              </p>
              {wanted.length === 0 ? (
                <p class="empty">No entry of this kind among {count(from)} to {count(Math.max(from, upTo - 1))}.</p>
              ) : (
                <Entries entries={wanted} badges={{}} details />
              )}
              <Pages
                newer={upTo < logSize && to("log", { kind, before: Math.min(logSize, upTo + PAGE) })}
                older={from > 0 && to("log", { kind, before: from })}
              />
            </>
          );
        }}
      </Found>
    </>
  );
}
