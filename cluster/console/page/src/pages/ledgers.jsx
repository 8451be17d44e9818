// Ledgers of members: journals, the lineage of a clue, members, and orders with their signatures.
import * as api from "../api.js";
import { Broken, prove } from "../ledger.js";
import { Ask, Badge, Fact, Facts, Field, Found, Hash, Key, Pages, Save, Strange, useTask } from "../parts.jsx";
import { go, to } from "../route.js";
import { sha256 } from "../sha256.js";
import { bytesOfHex, count, hexOf, shown, size as sizeOf, stamp, typed } from "../text.js";

const PAGE = 100;
/** What is in a payload that is not the application's. The page shows it, and does not judge it. */
const WORDS = { 1: "rules", 2: "changes", 3: "order and signatures" };
const KINDS = ["data", "founding", "members", "order"];

async function list() {
  const { ledgers, is_cut } = await api.json("ledgers");
  return { ledgers: ledgers.map(({ name, id }) => ({ name: String(name), id: String(id) })), is_cut };
}

export function Ledgers({ query }) {
  return query.id ? <Ledger query={query} /> : <List />;
}

function List() {
  const task = useTask(list, []);
  return (
    <>
      <h1>Ledgers</h1>
      <p>Ledgers of members: each journal is signed by the member that appended it.</p>
      <Found of={task} what="Asking for the ledgers">
        {({ ledgers, is_cut }) =>
          ledgers.length === 0 ? (
            <p class="empty">There is no ledger of members.</p>
          ) : (
            <div class="scroll" tabIndex="0" role="region" aria-label="Ledgers">
              <table>
                <thead><tr><th scope="col">Name</th><th scope="col">Id</th><th scope="col">Shown by</th></tr></thead>
                <tbody>
                  {ledgers.map(({ name, id }) => (
                    <tr key={id}>
                      <th scope="row"><a href={to("ledgers", { id })}><Strange text={name} /></a></th>
                      <td><Hash of={id} what="Id" /></td>
                      <td><Badge is="said" /></td>
                    </tr>
                  ))}
                </tbody>
              </table>
              {is_cut && <p class="dim">There are more.</p>}
            </div>
          )
        }
      </Found>
    </>
  );
}

/** The verified journals of a ledger from a number on. */
async function journals(id, from) {
  const { result, file, badge } = await prove(`ledgers/${id}/journals?from=${from}`, { expect: {} });
  if (result.kind !== "journals" || result.ledger !== id) throw new Broken("question", "the answer is of another ledger");
  result.journals.forEach((journal, at) => {
    if (Number(journal.jsn) !== from + at) throw new Broken("question", "the answer leaves a journal out");
  });
  const all = Math.min(Number(result.ledger_size) - from, PAGE);
  if (result.journals.length < all) throw new Broken("question", "the answer leaves journals out");
  return { rows: result.journals, size: Number(result.ledger_size), root: result.ledger_root, complete: true, result, file, badge };
}

/** The hash of a clue in a ledger (docs/verification.md, section 18). */
function hashOfClue(id, clue) {
  const length = Uint8Array.of(clue.length & 255, clue.length >> 8);
  return hexOf(sha256(Uint8Array.of(8, ...bytesOfHex(id), ...length, ...clue)));
}

/** The verified journals with a clue, newest first. */
async function lineage(id, clue) {
  const { result, file, badge } = await prove(`ledgers/${id}/lineage?clue=${hexOf(typed(clue))}`, { expect: {} });
  if (result.kind !== "lineage" || result.ledger !== id) throw new Broken("question", "the answer is of another ledger");
  if (result.clue_hash !== hashOfClue(id, typed(clue))) throw new Broken("question", "the answer is of another clue");
  return { rows: result.journals, size: Number(result.count), complete: result.complete, clueHash: result.clue_hash, result, file, badge };
}

async function page({ id, clue, from }) {
  const [ledger, { members }] = await Promise.all([api.json(`ledgers/${id}`), api.json(`ledgers/${id}/members`)]);
  const size = Number(ledger.size);
  const first = Math.min(Number(from || Math.max(0, size - PAGE)), Math.max(0, size - 1));
  const proven = clue ? await lineage(id, clue) : await journals(id, first);
  return { ledger, members, first, proven };
}

function Payload({ journal }) {
  if (journal.payload === undefined) return <span class="dim">not shown: hidden, purged, or not for you</span>;
  const payload = shown(journal.payload, journal.encoding);
  if (Number(journal.kind) === 0) return <Key bytes={payload} max={80} />;
  return (
    <details>
      <summary>{WORDS[journal.kind] ?? "unknown"}, {sizeOf(payload.length)}</summary>
      <code>{hexOf(payload)}</code>
    </details>
  );
}

function Journals({ rows, badge, names }) {
  return (
    <div class="scroll" tabIndex="0" role="region" aria-label="Journals">
      <table>
        <thead>
          <tr>
            <th scope="col" class="right">Journal</th><th scope="col">Kind</th><th scope="col">Version</th><th scope="col">By</th>
            <th scope="col">Payload</th><th scope="col">Signature</th><th scope="col">Shown by</th>
          </tr>
        </thead>
        <tbody>
          {rows.map((journal) => (
            <tr key={journal.jsn} class={Number(journal.kind) === 0 ? "" : "event"}>
              <td class="right">{count(journal.jsn)}</td>
              <td>{KINDS[journal.kind] ?? String(journal.kind)}</td>
              <td>{stamp(journal)}</td>
              <td>{names.get(journal.member_id) ? <Strange text={names.get(journal.member_id)} /> : <Hash of={journal.member_id} what="Member" />}</td>
              <td><Payload journal={journal} /></td>
              <td class="nowrap"><Hash of={journal.public_key} what="Key" /> <Badge is={journal.signature_verified ? badge : "said"} /></td>
              <td><Badge is={badge} /></td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Members({ members }) {
  return (
    <div class="scroll" tabIndex="0" role="region" aria-label="Members of the ledger">
      <table>
        <thead><tr><th scope="col">Member</th><th scope="col">Roles</th><th scope="col" class="right">Journals</th><th scope="col">Key in force</th><th scope="col">Shown by</th></tr></thead>
        <tbody>
          {members.map((member) => (
            <tr key={member.id}>
              <th scope="row"><Strange text={String(member.name)} />{member.disputed_from !== null && <span class="dim"> disputed from {member.disputed_from}</span>}</th>
              <td>{member.is_agent ? "agent" : member.roles.join(", ")}</td>
              <td class="right">{count(member.journals)}</td>
              <td>{member.public_key ? <Hash of={member.public_key} what="Key" /> : <span class="dim">none</span>}</td>
              <td><Badge is="said" /></td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Ledger({ query }) {
  const { id, clue = "" } = query;
  const task = useTask(() => page(query), [JSON.stringify(query)]);
  return (
    <>
      <h1>Ledger</h1>
      <p><a href={to("ledgers")}>All ledgers</a></p>
      <Ask label="Journals" onAsk={(form) => go("ledgers", { id, ...form })} key={JSON.stringify(query)}>
        <Field label="Clue" name="clue" value={clue} hint="only the journals with this clue; text, or hex with 0x in front" wide />
        <Field label="From journal" name="from" value={query.from} placeholder="the newest" pattern="\d+" />
      </Ask>
      <Found of={task} what="Asking for journals, and verifying them">
        {({ ledger, members, first, proven: { rows, size, root, complete, clueHash, file, badge, result } }) => (
          <>
            <Facts label="The ledger">
              <Fact name="Name" badge="said"><Strange text={String(ledger.name)} />{ledger.is_closed && ", closed"}</Fact>
              <Fact name="Id" badge={badge}><Hash of={id} what="Id" /></Fact>
              {clue ? (
                <>
                  <Fact name="Clue" badge={badge}><Key bytes={typed(clue)} />, hash <Hash of={clueHash} what="Hash of the clue" /></Fact>
                  <Fact name="Lineage" badge={badge}>{count(size)} journals; {complete ? "these are all of them" : `the newest ${rows.length} are shown`}</Fact>
                </>
              ) : (
                <Fact name="Journals" badge={badge}>{count(size)}, root <Hash of={root} what="Root of the ledger" /></Fact>
              )}
              <Fact name="As of" badge={badge}>{stamp(result)}</Fact>
              {Number(ledger.purged) > 0 && <Fact name="Purged" badge="said">journals below {count(ledger.purged)}</Fact>}
              <Fact name="Time stamps" badge="said">
                {Number(ledger.anchor_every_s) === 0 ? "none are promised" : `at least every ${ledger.anchor_every_s} s`}; <a href={to("log", { kind: "anchor" })}>anchors in the root log</a>
              </Fact>
            </Facts>
            <h2>Journals</h2>
            <Journals rows={rows} badge={badge} names={new Map(members.map((it) => [it.id, String(it.name)]))} />
            {!clue && <Pages newer={first + PAGE < size && to("ledgers", { id, from: first + PAGE })} older={first > 0 && to("ledgers", { id, from: Math.max(0, first - PAGE) })} />}
            <p class="actions"><Save name={clue ? "lineage.proof" : "journals.proof"} bytes={file}>Save the proof</Save></p>
            {rows.some((it) => Number(it.kind) === 3) && <p>Orders take effect only if those sign who must: <code>coppice ledger audit</code> judges that.</p>}
            <h2>Members</h2>
            <Members members={members} />
          </>
        )}
      </Found>
    </>
  );
}

