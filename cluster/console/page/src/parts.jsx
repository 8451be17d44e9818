// The parts of which pages are made.
import { useEffect, useRef, useState } from "preact/hooks";
import { Broken, onTrust, trust } from "./ledger.js";
import { to } from "./route.js";
import { CONTROL, advice, ago, hexOf, textOfBytes, time, visible } from "./text.js";

const SHAPES = {
  proven: "M8 1 14 3.5V8c0 3.5-2.5 5.8-6 7-3.500-1.200-6-3.500-6-7V3.500zM5 8l2.200 2.200L11.200 6",
  signed: "M2 14h12M3.500 11 11 3.500l1.800 1.800L5.300 12.800l-2.300.5z",
  said: "M2 3h12v8H8l-3.500 3v-3H2z",
  broken: "M5 1.500h6L14.500 5v6L11 14.500H5L1.500 11V5zM5.500 5.500l5 5M10.500 5.500l-5 5",
};

/** What was really verified, as a word and a shape. */
export function Badge({ is, title }) {
  return (
    <span class={`badge ${is}`} title={title}>
      <svg viewBox="0 0 16 16" width="14" height="14" aria-hidden="true"><path d={SHAPES[is]} /></svg>
      {is}
    </span>
  );
}

/** A table of facts with their badges. */
export function Facts({ children, label }) {
  return <dl class="facts" aria-label={label}>{children}</dl>;
}

export function Fact({ name, badge, children, why }) {
  return (
    <div class="fact">
      <dt>{name}</dt>
      <dd class="value">{children}</dd>
      {badge && <dd class="by"><Badge is={badge} title={why} /></dd>}
    </div>
  );
}

export function Copy({ text, what }) {
  const [done, set] = useState(false);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      set(true);
      setTimeout(() => set(false), 1500);
    } catch {
      // Without a secure origin, there is no clipboard: the text can be selected.
    }
  };
  if (!navigator.clipboard) return null;
  return <button type="button" class="quiet" onClick={copy} aria-label={`Copy ${what}`}>{done ? "copied" : "copy"}</button>;
}

/** A hash, of which a person compares the ends. The whole is one click away. */
export function Hash({ of, what = "hash" }) {
  const [open, set] = useState(false);
  const text = visible(of);
  if (text.length <= 20) return <code>{text}</code>;
  return (
    <span class="hash">
      <button type="button" class="code" aria-expanded={open} title={text} onClick={() => set(!open)}>
        <span class="hidden">{what} </span>
        {open ? text : `${text.slice(0, 10)}…${text.slice(-8)}`}
      </button>
      <Copy text={String(of)} what={what} />
    </span>
  );
}

export function Time({ ms }) {
  return <time title={`${ms} ms since 1970`}>{time(ms)} <span class="dim">({ago(ms)})</span></time>;
}

/** Text of strangers: characters that nobody would see stand there by number, marked as such. */
export function Strange({ text, lines }) {
  const parts = text.split(CONTROL);
  return parts.map((part, at) => (at % 2 === 0 || (lines && part === "\n") ? part : <span class="control" key={at}>{visible(part)}</span>));
}

/** A key of a stranger: text whose control characters are shown, or hex. */
export function Key({ bytes, max = 120 }) {
  const text = textOfBytes(bytes);
  const whole = text ?? `0x${hexOf(bytes)}`;
  const cut = whole.length > max ? `${whole.slice(0, max)}…` : whole;
  return <bdi class={text === null ? "key hex" : "key"} dir="ltr"><Strange text={cut} /></bdi>;
}

/** Most characters of a value that a page shows. */
const VALUE_MAX = 100_000;

function formatted(bytes, form) {
  const text = textOfBytes(bytes);
  if (form === "hex" || text === null) {
    return (hexOf(bytes).match(/.{1,64}/g) ?? []).map((line) => line.replace(/(.{4})/g, "$1 ").trim()).join("\n");
  }
  if (form === "json") {
    try {
      return JSON.stringify(JSON.parse(text), null, 2);
    } catch {
      return "This value is not JSON.";
    }
  }
  return text;
}

/** A value of a stranger, as text, JSON or hex. It is never more than text of the page. */
export function Value({ bytes, name }) {
  const isText = textOfBytes(bytes) !== null;
  const isJson = isText && /^\s*[[{]/.test(textOfBytes(bytes));
  const [form, set] = useState(isJson ? "json" : isText ? "text" : "hex");
  if (bytes.length === 0) return <p class="dim">The value is empty: it has no bytes.</p>;
  const whole = formatted(bytes, form);
  return (
    <div class="value-box">
      <fieldset class="forms">
        <legend class="hidden">Form of the value</legend>
        {["text", "json", "hex"].map((it) => (
          <label key={it}>
            <input type="radio" name={`form-${name}`} checked={form === it} disabled={!isText && it !== "hex"} onChange={() => set(it)} />
            {it === "json" ? "JSON" : it}
          </label>
        ))}
        <Copy text={formatted(bytes, form)} what="the value" />
      </fieldset>
      <pre tabIndex="0" aria-label="Value"><bdi dir="ltr"><Strange text={whole.slice(0, VALUE_MAX)} lines /></bdi></pre>
      {whole.length > VALUE_MAX && <p class="dim">Only the first {VALUE_MAX} characters are shown. Save the proof for all of it.</p>}
    </div>
  );
}

/** Gives bytes to the user as a file. */
export function save(name, bytes, kind = "application/octet-stream") {
  const url = URL.createObjectURL(new Blob([bytes], { type: kind }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

export function Save({ name, bytes, children }) {
  return <button type="button" onClick={() => save(name, bytes)}>{children}</button>;
}

/** A command for the terminal, since a console never writes. */
export function Command({ children }) {
  return (
    <div class="command">
      <pre tabIndex="0" aria-label="Command"><code>{children}</code></pre>
      <Copy text={children} what="the command" />
    </div>
  );
}

/** Why there is nothing to show. What is broken is shown with its step, and with nothing else. */
export function Problem({ error }) {
  if (error instanceof Broken) {
    return (
      <section class="problem broken-box" role="alert">
        <h2><Badge is="broken" /> This answer does not hold</h2>
        <p>Nothing of it is shown. It failed at the step <code>{visible(error.step)}</code>:</p>
        <p class="why">{visible(error.message)}</p>
        {error.files?.map(([name, bytes]) => <Save key={name} name={name} bytes={bytes}>Save {name}</Save>)}
        {error.step === "fork" && (
          <>
            <p>Make a file that convicts the signer, and give it to somebody else:</p>
            <Command>{"coppice evidence make one.proof other.proof --from URL --out fork.evidence"}</Command>
          </>
        )}
      </section>
    );
  }
  const hint = advice(error);
  return (
    <section class="problem" role="alert">
      <h2>{error.reason ? visible(error.reason).replaceAll("_", " ").toLowerCase() : "This did not work"}</h2>
      <p class="why">{visible(error.message)}</p>
      {hint && <p>{hint}</p>}
    </section>
  );
}

export function Loading({ what }) {
  return <p class="loading" role="status"><span class="spinner" aria-hidden="true" /> {what}…</p>;
}

/** Runs a task whenever its inputs change. Only the newest task is shown. */
export function useTask(task, inputs) {
  const [shown, set] = useState({ state: "loading" });
  const current = useRef(0);
  const run = () => {
    const number = (current.current += 1);
    set({ state: "loading" });
    task().then(
      (value) => number === current.current && set({ state: "done", value }),
      (error) => number === current.current && set({ state: "failed", error }),
    );
  };
  useEffect(() => {
    run();
    return () => (current.current += 1);
  }, inputs);
  return { ...shown, again: run };
}

/** A task that the user starts. */
export function useAction(inputs) {
  const [shown, set] = useState({ state: "idle" });
  useEffect(() => set({ state: "idle" }), inputs);
  const run = async (task) => {
    set({ state: "loading" });
    try {
      set({ state: "done", value: await task((value) => set({ state: "loading", value })) });
    } catch (error) {
      set({ state: "failed", error });
    }
  };
  return { ...shown, run };
}

/** What a task has found. */
export function Found({ of, what, children }) {
  if (of.state === "loading") return <Loading what={what} />;
  if (of.state === "failed") return <Problem error={of.error} />;
  return children(of.value);
}

export function useTrust() {
  const [, set] = useState(0);
  useEffect(() => onTrust(() => set((n) => n + 1)), []);
  return trust();
}

/** A form whose answer is a page of its own. */
export function Ask({ label, children, onAsk, button = "Show" }) {
  const ask = (event) => {
    event.preventDefault();
    onAsk(Object.fromEntries(new FormData(event.currentTarget)));
  };
  return (
    <form class="ask" aria-label={label} onSubmit={ask}>
      {children}
      <button type="submit" class="main">{button}</button>
    </form>
  );
}

export function Field({ label, name, value, hint, wide, ...rest }) {
  return (
    <label class={wide ? "field wide" : "field"}>
      <span>{label}</span>
      <input name={name} defaultValue={value} autocomplete="off" spellcheck={false} {...rest} />
      {hint && <small>{hint}</small>}
    </label>
  );
}

export function Pages({ newer, older, labels = ["Newer", "Older"] }) {
  if (!newer && !older) return null;
  return (
    <nav class="pages" aria-label="Pages">
      {newer ? <a href={newer}>← {labels[0]}</a> : <span />}
      {older ? <a href={older}>{labels[1]} →</a> : <span />}
    </nav>
  );
}

/** A link to a record in a version. */
export function RecordLink({ bytes, typable, version }) {
  return <a href={to("record", { key: typable, version })}><Key bytes={bytes} max={48} /></a>;
}
