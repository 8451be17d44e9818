// What differs between two versions: counts first, then keys.
import * as api from "../api.js";
import { Broken } from "../ledger.js";
import { Ask, Badge, Fact, Facts, Field, Found, Key, Loading, Problem, RecordLink, useAction, useTask } from "../parts.jsx";
import { go } from "../route.js";
import { count, encoded, hexOf, told, typable } from "../text.js";
import { bounds, learnLowest, provenRange } from "./range.jsx";

/** Keys that are shown, and records of a range that a proof of the difference may have. */
const SHOWN = 200;
const PROVEN = 512;
const SIGNS = { added: "+", changed: "±", deleted: "−" };

async function said({ from, to, prefix }) {
  const version = (text) => (/^\d+(\.\d+)?$/.test(text) ? text : "");
  await learnLowest();
  const [low, high] = bounds({ prefix });
  const range = `&low=${encoded(low)}${high ? `&high=${encoded(high)}` : ""}`;
  const { objects } = await api.lines(`v1/diff?from=${version(from)}&to=${version(to)}${range}`);
  return objects.slice(0, -1);
}

const kindOf = (before, after) => (!before ? "added" : !after ? "deleted" : "changed");

/** The difference of two ranges that were read in full, so that nothing of it is hidden. */
async function proven(query, claimed) {
  const [low, high] = bounds(query);
  const sides = [];
  for (const version of [query.from, query.to]) {
    const side = await provenRange(low, high, version, PROVEN);
    if (side.next) throw new Error(`Version ${version} has more than ${PROVEN} records here. Choose a longer prefix.`);
    sides.push(side);
  }
  const [before, after] = sides.map(({ records }) => new Map(records.map((it) => [hexOf(it.bytes), it])));
  const found = new Map();
  for (const key of new Set([...before.keys(), ...after.keys()])) {
    const [old, now] = [before.get(key), after.get(key)];
    if (old?.value_sha256 !== now?.value_sha256) found.set(key, kindOf(old, now));
  }
  for (const { key, change } of claimed) {
    const hex = hexOf(told(key));
    // A record that was put again with the same value counts as changed for the server.
    if (change !== "changed" && found.get(hex) !== change) throw new Broken("question", "the server names a difference that the proofs do not show");
  }
  for (const hex of found.keys()) {
    if (!claimed.some(({ key }) => hexOf(told(key)) === hex)) throw new Broken("question", "the server has left a difference out");
  }
  return { found, badge: sides[0].badge };
}

function Counts({ of, badge }) {
  const by = (kind) => of.filter(({ change }) => change === kind).length;
  return (
    <Facts label="Counts">
      {Object.keys(SIGNS).map((kind) => <Fact key={kind} name={kind} badge={badge}>{count(by(kind))}</Fact>)}
    </Facts>
  );
}

function Side({ side }) {
  return side ? <Key bytes={told(side.value)} max={60} /> : <span class="dim">none</span>;
}

function Rows({ rows, badge, to }) {
  return (
    <div class="scroll" tabIndex="0" role="region" aria-label="Differences">
      <table>
        <thead><tr><th scope="col">Change</th><th scope="col">Key</th><th scope="col">Before</th><th scope="col">After</th><th scope="col">Shown by</th></tr></thead>
        <tbody>
          {rows.slice(0, SHOWN).map(({ change, key, before, after }) => (
            <tr key={hexOf(told(key))}>
              <td class="nowrap"><span aria-hidden="true">{SIGNS[change] ?? "?"}</span> {change}</td>
              <th scope="row"><RecordLink bytes={told(key)} typable={typable(told(key))} version={to} /></th>
              <td><Side side={before} /></td>
              <td><Side side={after} /></td>
              <td><Badge is={badge} /></td>
            </tr>
          ))}
        </tbody>
      </table>
      {rows.length > SHOWN && <p class="dim">{count(rows.length - SHOWN)} more keys are not shown: choose a longer prefix.</p>}
    </div>
  );
}

function Shown({ rows, query }) {
  const action = useAction([JSON.stringify(query)]);
  const badge = action.state === "done" ? action.value.badge : "said";
  if (action.state === "failed" && action.error instanceof Broken) return <Problem error={action.error} />;
  return (
    <>
      <Counts of={rows} badge={badge} />
      {rows.length === 0 ? <p class="empty">Nothing differs here.</p> : <Rows rows={rows} badge={badge} to={query.to} />}
      <p class="actions">
        <button type="button" class="main" disabled={action.state === "loading"} onClick={() => action.run(() => proven(query, rows))}>
          Prove this difference
        </button>
        {action.state === "loading" && <Loading what="Reading both versions in full, and verifying them" />}
        {action.state === "done" && <span role="status">These keys differ and no others: <Badge is={badge} /></span>}
      </p>
      {action.state === "failed" && <Problem error={action.error} />}
    </>
  );
}

export function Difference({ query }) {
  const { from = "", to = "", prefix = "" } = query;
  const ready = from && to;
  const task = useTask(() => (ready ? said(query) : Promise.resolve(null)), [JSON.stringify(query)]);
  return (
    <>
      <h1>Difference</h1>
      <Ask label="Difference" onAsk={(form) => go("diff", form)} key={JSON.stringify(query)}>
        <Field label="From version" name="from" value={from} required hint="VERSION or EPOCH.VERSION" pattern="\d+(\.\d+)?" />
        <Field label="To version" name="to" value={to} required pattern="\d+(\.\d+)?" />
        <Field label="Prefix" name="prefix" value={prefix} hint="all keys, if it is empty" wide />
      </Ask>
      {!ready && <p class="empty">Name two versions, of any epoch. Either may be the older one.</p>}
      {ready && <Found of={task} what="Comparing">{(rows) => rows && <Shown rows={rows} query={query} />}</Found>}
    </>
  );
}
