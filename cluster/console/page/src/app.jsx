// The frame of all pages.
import { Component, render } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { prepare } from "./judge.js";
import { begin } from "./ledger.js";
import { Loading, Problem } from "./parts.jsx";
import { to, useRoute } from "./route.js";
import { About } from "./pages/about.jsx";
import { Cluster, Members } from "./pages/cluster.jsx";
import { Difference } from "./pages/diff.jsx";
import { PublicLog } from "./pages/public.jsx";
import { Head } from "./pages/head.jsx";
import { Ledgers } from "./pages/ledgers.jsx";
import { RootLog, Timeline } from "./pages/log.jsx";
import { Range } from "./pages/range.jsx";
import { History, Record } from "./pages/record.jsx";
import { Verify } from "./pages/verify.jsx";

const KIND = document.documentElement.dataset.kind;

/** The pages, by their names in addresses. */
const CONSOLE = [
  ["head", "Head", Head],
  ["timeline", "Timeline", Timeline],
  ["record", "Record", Record],
  ["history", "History", History],
  ["range", "Range", Range],
  ["diff", "Difference", Difference],
  ["log", "Root log", RootLog],
  ["ledgers", "Ledgers", Ledgers],
  ["members", "Members", Members],
  ["cluster", "Cluster", Cluster],
  ["verify", "Verify a file", Verify],
  ["about", "About", About],
];
const OFFLINE = CONSOLE.filter(([name]) => ["verify", "about"].includes(name));
const PAGES = { console: CONSOLE, log: [["log", "Root log", PublicLog], ...OFFLINE], offline: OFFLINE }[KIND];

/** A fault of the page shows as one, and never as an empty page. */
class Fence extends Component {
  state = { error: null };

  static getDerivedStateFromError(error) {
    return { error };
  }

  componentDidUpdate(before) {
    if (before.at !== this.props.at && this.state.error) this.setState({ error: null });
  }

  render() {
    if (!this.state.error) return this.props.children;
    return (
      <>
        <h1>{this.props.label}</h1>
        <Problem error={new Error(`The answer of the server makes no sense: ${this.state.error.message}`)} />
      </>
    );
  }
}

function Scheme() {
  const [scheme, set] = useState("auto");
  useEffect(() => {
    if (scheme === "auto") delete document.documentElement.dataset.scheme;
    else document.documentElement.dataset.scheme = scheme;
  }, [scheme]);
  return (
    <label class="scheme">
      <span>Colours</span>
      <select value={scheme} onChange={(event) => set(event.currentTarget.value)}>
        <option value="auto">as the system</option>
        <option value="light">light</option>
        <option value="dark">dark</option>
      </select>
    </label>
  );
}

function Menu({ at }) {
  return (
    <header>
      <a class="skip" href="#main" onClick={skip}>Skip to the content</a>
      <p class="brand">Coppice</p>
      <nav aria-label="Pages of the console">
        <ul>
          {PAGES.map(([name, label]) => <li key={name}><a href={to(name)} aria-current={name === at ? "page" : undefined}>{label}</a></li>)}
        </ul>
      </nav>
      <Scheme />
    </header>
  );
}

function skip(event) {
  event.preventDefault();
  document.getElementById("main").focus();
}

/** Pages of a ledger need to know whom to trust. */
function useBeginning() {
  const [begun, set] = useState(KIND === "console" ? { state: "loading" } : { state: "done" });
  useEffect(() => {
    if (KIND !== "console") return;
    begin().then(
      () => set({ state: "done" }),
      (error) => set({ state: "failed", error }),
    );
  }, []);
  return begun;
}

function App() {
  const { page, query } = useRoute();
  const [name, label, Page] = PAGES.find(([name]) => name === page) ?? PAGES[0];
  const begun = useBeginning();
  const main = useRef(null);
  const first = useRef(true);
  useEffect(() => {
    document.title = `${label} – Coppice`;
    // A new page is read from its beginning, also by a screen reader.
    if (!first.current) main.current.focus();
    first.current = false;
  }, [name]);
  const waits = begun.state !== "done" && !["verify", "about"].includes(name);
  return (
    <>
      <Menu at={name} />
      <main id="main" tabIndex="-1" ref={main}>
        <Fence at={location.hash} label={label}>
          {waits ? (begun.state === "failed" ? <Problem error={begun.error} /> : <Loading what="Connecting" />) : <Page query={query} kind={KIND} />}
        </Fence>
      </main>
    </>
  );
}

/** Starts the page. */
export function start(makeWorker, loadBytes) {
  prepare(makeWorker, loadBytes);
  render(<App />, document.getElementById("app"));
}
