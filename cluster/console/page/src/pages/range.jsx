// The records of a range, as of any version: these and no others.
import * as api from "../api.js";
import { Broken, prove } from "../ledger.js";
import { Ask, Badge, Fact, Facts, Field, Found, Key, Pages, RecordLink, Save, Time, useTask } from "../parts.jsx";
import { go, to } from "../route.js";
import { sha256 } from "../sha256.js";
import { compareBytes, count, encoded, hexOf, shown, size, stamp, textOfBytes, told, typable, typed } from "../text.js";

const PAGE = 200;
/** The lowest key outside of what ledgers of members use. */
const ABOVE_LEDGERS = Uint8Array.of(1);

/** Where a range begins that names no key. Which it is, the first refusal tells. */
let lowest = new Uint8Array();

/** Asks from the lowest key on that may be read. */
async function fromLowest(task) {
  try {
    return await task();
  } catch (error) {
    if (error.reason !== "RESERVED" || lowest.length > 0) throw error;
    lowest = ABOVE_LEDGERS;
    return task();
  }
}

/** The lowest key above all keys with this prefix; `null` if there is none. */
function afterPrefix(prefix) {
  const end = prefix.findLastIndex((byte) => byte < 255);
  if (end < 0) return null;
  const high = prefix.slice(0, end + 1);
  high[end] += 1;
  return high;
}

/** Learns the lowest key. A stream that is refused breaks off, and a browser may not say why. */
export const learnLowest = () => fromLowest(() => api.get(`v1/records?low=${encoded(lowest)}&limit=1`));

/** The bounds that the user has named. */
export function bounds({ prefix, low, high }) {
  if (prefix) return [typed(prefix), afterPrefix(typed(prefix))];
  return [low ? typed(low) : lowest, high ? typed(high) : null];
}

const queryOf = (low, high, limit, version) =>
  `v1/records?low=${encoded(low)}${high ? `&high=${encoded(high)}` : ""}&limit=${limit}${version ? `&version=${version}` : ""}`;

/**
 * The verified records of a range in a version, of which a page has at most `limit`. `next` is the
 * first key that the proof says nothing about.
 */
export async function provenRange(low, high, version, limit) {
  const path = queryOf(low, high, limit, version);
  const { result, file, badge } = await prove(path, { expect: {}, version });
  if (result.kind !== "range") throw new Broken("question", "the answer is not of a range");
  const from = shown(result.low, result.low_encoding);
  const end = result.high === null ? null : shown(result.high, result.high_encoding);
  const reaches = end === null || (high !== null && compareBytes(end, high) >= 0);
  if (compareBytes(from, low) > 0) throw new Broken("question", "the answer begins above the range");
  if (!reaches && result.records.length < limit) throw new Broken("question", "the answer ends within the range");
  const records = result.records
    .map((it) => ({ ...it, bytes: shown(it.key, it.key_encoding) }))
    .filter(({ bytes }) => compareBytes(bytes, low) >= 0 && (high === null || compareBytes(bytes, high) < 0));
  return { result, file, badge, records, next: reaches ? null : end };
}

/** Values come beside the proof, which has their hashes. */
async function withValues(range, low, high, version, limit) {
  const { objects } = await api.lines(queryOf(low, high, limit, version));
  const values = new Map(objects.map((it) => [hexOf(told(it.key)), told(it.value)]));
  for (const record of range.records) {
    const value = values.get(hexOf(record.bytes));
    if (!value) continue;
    if (hexOf(sha256(value)) !== record.value_sha256) throw new Broken("value", "a value does not have the hash that the proof names");
    record.told = value;
  }
  return range;
}

/** Whether an address can't name a key: browsers take such a part of a path for another folder. */
export const isNoPart = (key) => [".", ".."].includes(textOfBytes(key));

/** The verified record of one key, as the range that has no other. */
export async function provenAlone(key, version) {
  const after = Uint8Array.of(...key, 0);
  const range = await withValues(await provenRange(key, after, version, 1), key, after, version, 1);
  const [record] = range.records;
  return { ...range, record };
}

const newest = async () => stamp(await api.json("v1/head"));

async function page(query) {
  const [low, high] = bounds(query);
  const from = query.from ? typed(query.from) : low;
  const version = query.version || (await newest());
  const range = await provenRange(from, high, version, PAGE);
  return { ...(await withValues(range, from, high, version, PAGE)), version };
}

function Rows({ records, version, badge }) {
  return (
    <div class="scroll" tabIndex="0" role="region" aria-label="Records">
      <table>
        <thead><tr><th scope="col">Key</th><th scope="col">Value</th><th scope="col" class="right">Length</th><th scope="col">Changed</th><th scope="col">Shown by</th></tr></thead>
        <tbody>
          {records.map(({ bytes, told: value, value_bytes, last_changed }) => (
            <tr key={hexOf(bytes)}>
              <th scope="row"><RecordLink bytes={bytes} typable={typable(bytes)} version={version} /></th>
              <td>{value ? <Key bytes={value} max={60} /> : <span class="dim">open the record</span>}</td>
              <td class="right">{size(value_bytes)}</td>
              <td>{stamp(last_changed)}</td>
              <td><Badge is={badge} /></td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

const jsonLine = (record) => JSON.stringify({ encoding: "hex", put: [[hexOf(record.bytes), hexOf(record.told ?? new Uint8Array())]] });

export function Range({ query }) {
  const { prefix = "", version = "", from = "" } = query;
  const task = useTask(() => fromLowest(() => page(query)), [JSON.stringify(query)]);
  const next = (value) => value.next && to("range", { ...query, version: value.version, from: typable(value.next) });
  return (
    <>
      <h1>Range</h1>
      <Ask label="Range" onAsk={(form) => go("range", form)} key={JSON.stringify(query)}>
        <Field label="Prefix" name="prefix" value={prefix} hint="all keys that begin like this" wide />
        <Field label="Version" name="version" value={version} placeholder="newest" hint="VERSION or EPOCH.VERSION" pattern="\d+(\.\d+)?" />
      </Ask>
      <Found of={task} what="Asking for a page of records, and verifying it">
        {(value) => (
          <>
            <Facts label="The page">
              <Fact name="As of" badge={value.badge}>{stamp(value.result)}, <Time ms={value.result.timestamp_ms} /></Fact>
              {!version && stamp(value.result) !== stamp(value.result.newest) && (
                <Fact name="Newest" badge={value.badge}>{stamp(value.result.newest)}: the server named an older version as head</Fact>
              )}
              <Fact name="Records" badge={value.badge}>
                {count(value.records.length)} on this page, and no others {value.next ? <>before <Key bytes={value.next} /></> : "to the end of the range"}
              </Fact>
            </Facts>
            {value.records.length === 0 ? (
              <p class="empty">No key {prefix ? "begins like this" : "is there"} in this version.</p>
            ) : (
              <Rows records={value.records} version={stamp(value.result)} badge={value.badge} />
            )}
            <Pages newer={from && to("range", { ...query, from: "" })} older={next(value)} labels={["First page", "Next page"]} />
            <p class="actions">
              <Save name="range.proof" bytes={value.file}>Save the proof</Save>
              {value.records.length > 0 && value.records.every((it) => it.told) && (
                <Save name="range.jsonl" bytes={new TextEncoder().encode(`${value.records.map(jsonLine).join("\n")}\n`)}>
                  Save for coppice load
                </Save>
              )}
            </p>
          </>
        )}
      </Found>
    </>
  );
}

