// The root log as its own server publishes it: every entry is hashed into the signed root.
import { useState } from "preact/hooks";
import * as api from "../api.js";
import { Broken } from "../ledger.js";
import { Ask, Badge, Fact, Facts, Field, Found, Hash, Pages, Time, useTask } from "../parts.jsx";
import { to } from "../route.js";
import { count, hexOf, sameBytes } from "../text.js";
import { bundle, decode, isSigned, parseNote, rootWith } from "../tiles.js";
import { Entries } from "./log.jsx";

const WIDTH = 256;

async function page(number, key) {
  const note = parseNote(await api.text("checkpoint"));
  if (key && !(await isSigned(note, key))) throw new Broken("checkpoint", "the key that you gave has not signed the checkpoint");
  const last = Math.floor((note.size - 1) / WIDTH);
  const at = Math.min(number ?? last, last);
  const entries = await bundle(at, note.size);
  const root = await rootWith(at * WIDTH, entries, note.size);
  if (!sameBytes(root, note.root)) throw new Broken("log", "the entries and hashes do not give the root of the checkpoint");
  const decoded = entries.map(decode);
  if (decoded.some((entry, i) => Number(entry.sequence) !== at * WIDTH + i)) throw new Broken("log", "an entry has the number of another one");
  return { note, at, last, entries: decoded.reverse(), badge: key ? "proven" : "said" };
}

export function PublicLog({ query }) {
  const [key, setKey] = useState("");
  const number = /^\d+$/.test(query.page ?? "") ? Number(query.page) : null;
  const task = useTask(() => page(number, key), [number, key]);
  return (
    <>
      <h1>Root log</h1>
      <p>Every event of this ledger, with who did it and why. Records are not public: the log has only their hashes.</p>
      <Ask label="The ledger's key" onAsk={(form) => setKey(form.key.trim())} button="Verify">
        <Field label="Public key of the ledger" name="key" value={key} wide hint="the line of ledger.vkey, from anybody but this server" />
      </Ask>
      <Found of={task} what="Fetching entries and hashes, and verifying them">
        {({ note, at, last, entries, badge }) => {
          const badges = Object.fromEntries(entries.map((entry) => [entry.sequence, badge]));
          return (
            <>
              <Facts label="The checkpoint">
                <Fact name="Ledger" badge={badge}><code class="long">{note.origin}</code></Fact>
                <Fact name="Entries" badge={badge}>{count(note.size)}</Fact>
                <Fact name="Root" badge={badge}><Hash of={hexOf(note.root)} what="Root of the log" /></Fact>
                {at === last && <Fact name="Newest entry" badge={badge}><Time ms={entries[0].timestamp_ms} /></Fact>}
              </Facts>
              {badge === "said" && <p><Badge is="said" /> All entries give the root that the server shows. Give the key to see whether the ledger has signed it.</p>}
              <Entries entries={entries} badges={badges} details isPublic />
              <Pages newer={at < last && to("log", { page: at + 1 })} older={at > 0 && to("log", { page: at - 1 })} />
            </>
          );
        }}
      </Found>
    </>
  );
}
