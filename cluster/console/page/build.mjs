// Builds the pages of the console into `dist/`, or into the folder that is named: `make console`.
//
// WEB_TOOLS is the folder of the pinned tools. The same sources give the same bytes.
import { createHash } from "node:crypto";
import { copyFile, mkdir, readFile, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { join } from "node:path";
import { gzipSync } from "node:zlib";

const tools = process.env.WEB_TOOLS;
const { build } = createRequire(join(tools, "package.json"))("esbuild");
const here = new URL(".", import.meta.url).pathname;
const out = process.argv[2] ?? join(here, "../dist");
const verifier = join(here, "../../sdk/js/verify/verify.wasm");

/** One file of a bundle, as text. */
async function bundled(entry) {
  const result = await build({
    entryPoints: [join(here, "src", entry)],
    bundle: true,
    minify: true,
    format: "iife",
    target: "chrome120",
    charset: "utf8",
    jsx: "automatic",
    jsxImportSource: "preact",
    nodePaths: [join(tools, "node_modules")],
    legalComments: "none",
    write: false,
    logLevel: "warning",
    // The package for JavaScript reads files where it runs in Node.
    external: ["node:fs/promises"],
    supported: { "import-meta": true },
    define: { "import.meta.url": '"https://invalid/"' },
  });
  return result.outputFiles[0].text.trim();
}

const style = (await build({ entryPoints: [join(here, "src/style.css")], minify: true, write: false, logLevel: "warning" })).outputFiles[0].text.trim();
const hash = (text) => `'sha256-${createHash("sha256").update(text).digest("base64")}'`;
const template = await readFile(join(here, "page.html"), "utf8");
// A function as replacement: the texts have dollar signs.
const page = (kind, head, body) => template.replace("KIND", kind).replace("HEAD", () => head).replace("BODY", () => body);

const served = '<link rel="stylesheet" href="app.css">\n<script src="app.js" defer></script>';
const [app, saved, worker] = await Promise.all([bundled("served.js"), bundled("saved.js"), bundled("worker.js")]);

/** The page as one file. Its policy knows its scripts by their hashes, and lets nothing out. */
async function offline() {
  const packed = gzipSync(await readFile(verifier), { level: 9 });
  const parts = JSON.stringify({ worker, verifier: packed.toString("base64") }).replaceAll("<", "\\u003c");
  const script = saved.replaceAll("</script", "<\\/script");
  const policy =
    `default-src 'none'; script-src ${hash(script)} 'wasm-unsafe-eval'; style-src ${hash(style)}; worker-src blob:; img-src data:; ` +
    "connect-src 'none'; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types coppice";
  const head = `<meta http-equiv="Content-Security-Policy" content="${policy}">\n<style>${style}</style>`;
  const body = `<script type="application/json" id="parts">${parts}</script>\n<script>${script}</script>`;
  return page("offline", head, body);
}

await mkdir(out, { recursive: true });
const files = {
  "app.js": app,
  "app.css": style,
  "worker.js": worker,
  "index.html": page("console", served, ""),
  "log.html": page("log", served, ""),
  "offline.html": await offline(),
};
for (const [name, text] of Object.entries(files)) await writeFile(join(out, name), text.endsWith("\n") ? text : `${text}\n`);
await copyFile(verifier, join(out, "verify.wasm"));
const packed = (text) => gzipSync(text, { level: 9 }).length;
console.log(`JS and CSS: ${packed(app) + packed(worker) + packed(style)} bytes gzipped; offline page: ${files["offline.html"].length} bytes`);
