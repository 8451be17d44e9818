"""Each artefact of a release, tried from a clean folder: `make test-dist`.

DIST names the folder. Parts that are not in it are named and left out; all others must pass.
"""

import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
import unittest.mock

sys.dont_write_bytecode = True
import dist
import licences
import packages
import programs
from common import ROOT, output, python_tools, run, version
from test_docs import Docs  # noqa: F401  One of the classes that dist.PARTS names.

DIST = pathlib.Path(os.environ.get("DIST", ROOT / "target/dist")).absolute()
VECTORS = ROOT / "cluster/verify/vectors"
LIMIT_S = 120


def told(*words, fails=False, **options):
    """What a command prints, on both channels. It must succeed, or else must fail."""
    done = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=LIMIT_S, check=False, **options)
    assert (done.returncode != 0) == fails, f"{words} ended with {done.returncode}: {done.stdout}"
    return done.stdout


class Clean(unittest.TestCase):
    """A test in a clean folder, which has the sample of a proof."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="coppice-dist-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        for file in ("sample.proof", "ledger.vkey"):
            shutil.copy(VECTORS / file, self.folder / file)

    def only(self, part, pattern):
        (found,) = (DIST / part).glob(pattern)
        return found

    def unpacked(self, part, pattern):
        with tarfile.open(self.only(part, pattern)) as tar:
            tar.extractall(self.folder, filter="data")

    def venv(self, *requirements):
        """A Python with nothing but pinned packages."""
        folder = self.folder / f"venv{len(list(self.folder.glob('venv*')))}"
        run(sys.executable, "-m", "venv", "--without-pip", folder)
        python = folder / "bin" / "python"
        for file in requirements:
            self.pip(python, "--require-hashes", "--no-deps", "-r", file)
        return python

    def pip(self, python, *words):
        told(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--disable-pip-version-check",
             "--root-user-action=ignore", *words)


class Release(Clean):
    def test_checksums_hold_and_name_every_file(self):
        told("sha256sum", "--check", "--strict", "SHA256SUMS", cwd=DIST)
        sums = (DIST / "SHA256SUMS").read_text()
        manifest = (DIST / "MANIFEST.md").read_text()
        files = [path for path in DIST.rglob("*") if path.is_file() and path.parent != DIST]
        self.assertEqual(len(files), len(sums.splitlines()))
        for file in files:
            self.assertIn(f"  {file.relative_to(DIST)}\n", sums)
            self.assertIn(f"| `{file.relative_to(DIST)}` |", manifest)

    def test_cheap_parts_made_again_have_the_same_bytes(self):
        parts = [part for part in ("second", "npm", "python", "charts", "docs", "sbom") if (DIST / part).exists()]
        again = self.folder / "again"
        # `make test-wasm` builds the module itself twice.
        with unittest.mock.patch.object(packages, "wasm", lambda: self.only("wasm", "*.wasm")):
            dist.make(parts, again)
        for part, path in dist.files(again):
            digests = [hashlib.sha256(file.read_bytes()).hexdigest() for file in (path, DIST / part / path.name)]
            self.assertEqual(*digests, f"{path.name} has other bytes: is {DIST} of another state of the sources?")


class Second(Clean):
    def test_the_file_alone_tells_a_proof_from_a_forgery(self):
        shutil.copy(self.only("second", "second.py"), self.folder)
        call = (sys.executable, "-I", "second.py", "sample.proof", "--key", "@ledger.vkey")
        self.assertIn("'key-11' has a value", told(*call, cwd=self.folder))
        forge(self.folder / "sample.proof")
        told(*call, cwd=self.folder, fails=True)


def forge(file):
    """Changes the value that a proof shows."""
    before = file.read_bytes()
    assert b"value 543" in before
    file.write_bytes(before.replace(b"value 543", b"value 544"))


class Wasm(Clean):
    CHECK = """
import { readFile } from "node:fs/promises";
const module = new WebAssembly.Module(await readFile(process.argv[2]));
const exported = WebAssembly.Module.exports(module).map((one) => one.name);
console.log(JSON.stringify(WebAssembly.Module.imports(module)), exported.join(" "));
"""

    def test_the_module_has_no_imports_and_is_that_of_the_packages(self):
        (self.folder / "check.mjs").write_text(self.CHECK)
        module = self.only("wasm", "*.wasm")
        answer = told("node", "check.mjs", module, cwd=self.folder)
        self.assertTrue(answer.startswith("[] "), answer)
        self.assertEqual({"memory", "alloc", "free", "verify"} - set(answer.split()), set())
        self.assertEqual(module.name, f"coppice-verify-{version()}.wasm")
        for part, pattern, file in (("npm", "coppice-verify-*.tgz", "package/verify.wasm"),
                                    ("python", "*.tar.gz", f"coppice-{version()}/coppice_verify/verify.wasm")):
            if (DIST / part).exists():
                with tarfile.open(self.only(part, pattern)) as tar:
                    self.assertEqual(tar.extractfile(file).read(), module.read_bytes(), part)


class Npm(Clean):
    CHECK = """
import { readFile } from "node:fs/promises";
import { load } from "@coppice/verify";
const verifier = await load();
const keys = await readFile("ledger.vkey", "utf8");
const proof = await readFile("sample.proof");
const result = verifier.verify(proof, { keys, expect: { keys: "key-11" } });
console.log(result.valid, result.value ?? result.failed_step);
"""

    def test_the_package_is_installed_and_tells_a_proof_from_a_forgery(self):
        package = self.only("npm", f"coppice-verify-{version()}.tgz")
        (self.folder / "package.json").write_text('{"private": true}')
        told("npm", "install", "--offline", "--ignore-scripts", "--no-audit", "--no-fund", package, cwd=self.folder)
        installed = json.loads((self.folder / "node_modules/@coppice/verify/package.json").read_text())
        self.assertEqual((installed["version"], "private" in installed), (version(), False))
        (self.folder / "check.mjs").write_text(self.CHECK)
        self.assertEqual(told("node", "check.mjs", cwd=self.folder), "true value 543\n")
        forge(self.folder / "sample.proof")
        self.assertTrue(told("node", "check.mjs", cwd=self.folder).startswith("false "))

    CLIENT = """
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { Client } from "@coppice/client";
const proof = await readFile("sample.proof");
const server = createServer((_, response) => response.end(proof)).listen(0, "127.0.0.1", async () => {
  const trust = await readFile("ledger.vkey", "utf8");
  const ledger = await Client.open(`http://127.0.0.1:${server.address().port}`, { trust });
  const read = (key) => ledger.get(key, { version: 32 }).then((got) => new TextDecoder().decode(got.value.value));
  console.log(await read("key-11").catch((error) => error.name), await read("key-12").catch((error) => error.step));
  server.close();
  server.closeAllConnections();
});
"""

    def test_the_client_is_installed_with_its_verifier_and_believes_no_forgery(self):
        files = [self.only("npm", f"coppice-{name}-{version()}.tgz") for name in ("verify", "client")]
        (self.folder / "package.json").write_text('{"private": true}')
        told("npm", "install", "--offline", "--ignore-scripts", "--no-audit", "--no-fund", *files, cwd=self.folder)
        (self.folder / "check.mjs").write_text(self.CLIENT)
        self.assertEqual(told("node", "check.mjs", cwd=self.folder), "value 543 question\n")
        forge(self.folder / "sample.proof")
        self.assertTrue(told("node", "check.mjs", cwd=self.folder).startswith("Untrusted "))


class Python(Clean):
    CHECK = """
from pathlib import Path
import coppice
from coppice_verify import Verifier
file, vkey = Path("sample.proof").read_bytes(), Path("ledger.vkey").read_text()
answer = Verifier().verify(file, keys=vkey, expect_keys="key-11")
print(coppice.Client.__name__, answer["valid"], answer.get("value"))
"""

    def check(self, python):
        environment = {"PATH": os.environ["PATH"]}
        self.assertEqual(told(python, "-c", self.CHECK, cwd=self.folder, env=environment), "Client True value 543\n")

    def test_the_wheel_is_installed_and_tells_a_proof_from_a_forgery(self):
        python = self.venv(ROOT / "scripts/web/requirements.txt")
        wheel = self.only("python", f"coppice-{version()}-py3-none-any.whl")
        # Without an index: what `verify` demands must be what was installed.
        self.pip(python, "--no-index", f"coppice[verify] @ {wheel.as_uri()}")
        self.check(python)
        forge(self.folder / "sample.proof")
        self.assertTrue(told(python, "-c", self.CHECK, cwd=self.folder).startswith("Client False"))

    def test_the_source_distribution_is_installed_too(self):
        python = self.venv(ROOT / "scripts/web/requirements.txt", pathlib.Path(__file__).with_name("python.requirements.txt"))
        self.pip(python, "--no-index", "--no-build-isolation", self.only("python", f"coppice-{version()}.tar.gz"))
        self.check(python)

    def test_without_the_runtime_there_is_the_client_that_verifies_nothing(self):
        python = self.venv()
        self.pip(python, "--no-index", self.only("python", "*.whl"))
        self.assertEqual(told(python, "-c", "import coppice; print(coppice.UnverifiedClient.__name__)"), "UnverifiedClient\n")


class Charts(Clean):
    def test_the_packages_render_what_the_charts_render(self):
        for chart in packages.CHARTS:
            package = shutil.copy(self.only("charts", f"{chart}-{version()}.tgz"), self.folder)
            homes = {f"HELM_{kind}_HOME": str(self.folder / kind) for kind in ("CACHE", "CONFIG", "DATA")}
            # A cosigner has no defaults for keys and addresses.
            golden, values = ("choices", ["-f", ROOT / "charts/golden/cosigner.values.yaml"]) if chart == "coppice-cosigner" else ("default", [])
            rendered = output(packages.helm(), "template", "ledger", package, "--namespace", "bank", "--kube-version", "1.33.0", *values,
                              env=os.environ | homes, cwd=self.folder)
            self.assertEqual(rendered.strip(), (ROOT / f"charts/golden/{chart}-{golden}.yaml").read_text().strip(), chart)
            self.assertIn(f"{programs.IMAGE}:{version()}", rendered)


class Sbom(Clean):
    def test_it_names_each_crate_that_is_linked_with_its_licence(self):
        bill = json.loads(self.only("sbom", f"coppice-{version()}.cdx.json").read_text())
        self.assertEqual((bill["bomFormat"], bill["specVersion"]), ("CycloneDX", "1.5"))
        named = {(one["name"], one.get("version")): one for one in bill["components"]}
        linked = licences.linked("Cargo.toml", programs.TARGET, programs.PROGRAMS)
        linked |= licences.linked("cluster/verify/wasm/Cargo.toml", "wasm32-unknown-unknown", ["coppice-verify-wasm"])
        self.assertGreater(len(linked), 200)
        self.assertEqual(linked - set(named), set())
        for crate in linked:
            self.assertTrue(named[crate].get("licenses"), f"{crate} has no licence")
        references = {one["bom-ref"] for one in bill["components"]} | {bill["metadata"]["component"]["bom-ref"]}
        for need in bill["dependencies"]:
            self.assertEqual(set(need["dependsOn"]) - references, set(), need["ref"])
        self.assertNotIn(str(ROOT), json.dumps(bill))


class Programs(Clean):
    def setUp(self):
        super().setUp()
        self.unpacked("programs", "*.tar.gz")
        self.tree = self.folder / programs.name()
        self.coppice = self.tree / "bin" / "coppice"

    def test_each_program_says_the_version_and_needs_no_newer_glibc_than_promised(self):
        for program in programs.PROGRAMS:
            path = self.tree / "bin" / program
            if program != "coppice-bench":
                self.assertIn(version(), told(path, "--version"), program)
            self.assertLessEqual(programs.glibc(path), programs.GLIBC, program)
            self.assertNotIn(str(ROOT).encode(), path.read_bytes(), f"{program} has a path of the machine that built it")

    def test_a_session_ends_with_a_proof_that_two_verifiers_accept(self):
        with Ledger(self.coppice, self.folder / "data") as ledger:
            ledger.call("commit", "--put", "alice=100", "--put", "bob=20")
            self.assertEqual(ledger.call("get", "alice", "--proof", "alice.proof"), "100")
        vkey = self.folder / "data" / "ledger.vkey"
        answer = told(self.coppice, "verify", "alice.proof", "--key", f"@{vkey}", "--expect-key", "alice", cwd=self.folder)
        self.assertIn("`alice` has the value `100`", answer)
        told(sys.executable, VECTORS / "second.py", "alice.proof", "--key", f"@{vkey}", cwd=self.folder)
        told(self.coppice, "verify", "alice.proof", "--key", "@ledger.vkey", cwd=self.folder, fails=True)

    def test_every_command_has_a_manual_page_that_renders_without_warnings(self):
        pages = sorted((self.tree / "share/man/man1").glob("*.1"))
        commands = re.findall(r"^  ([a-z-]+) ", told(self.coppice, "--help").partition("Commands:")[2], re.MULTILINE)
        self.assertGreater(len(commands), 20)
        wanted = {f"coppice-{command}.1" for command in commands if command != "help"}
        self.assertEqual(wanted - {page.name for page in pages}, set())
        for program in programs.PROGRAMS:
            self.assertIn(self.tree / f"share/man/man1/{program}.1", pages)
        environment = os.environ | {"LC_ALL": "C.UTF-8", "MANWIDTH": "100"}
        for page in pages:
            done = subprocess.run(["man", "--warnings", "-l", page], env=environment, capture_output=True, text=True, check=True)
            self.assertEqual(done.stderr, "", page.name)
            self.assertIn("NAME", done.stdout)

    def test_the_licences_of_linked_crates_are_there(self):
        text = (self.tree / licences.FILE).read_text()
        for crate in ("tokio 1.", "curve25519-dalek ", "ring 0.", "tikv-jemalloc-sys "):
            self.assertIn(f"\n{crate}", text)
        self.assertIn("Redistributions in binary form must reproduce", text)

    def test_shells_read_the_completions(self):
        for place in programs.SHELLS.values():
            self.assertIn("coppice", (self.tree / place).read_text())
        told("bash", "-n", self.tree / programs.SHELLS["bash"])


class Ledger:
    """A ledger of `coppice dev` on a free port."""

    def __init__(self, program, folder):
        self.program, self.folder = program, folder

    def __enter__(self):
        call = [self.program, "dev", "--replicas", "1", "--listen", "127.0.0.1:0", "--data-dir", self.folder]
        self.process = subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        said = []
        for line in self.process.stdout:
            if line.startswith("ready "):
                self.endpoint = line.split()[1]
                return self
            said.append(line)
        raise AssertionError(f"the ledger did not start: {''.join(said)}")

    def __exit__(self, *_):
        self.process.terminate()
        self.process.communicate(timeout=LIMIT_S)

    def call(self, *words):
        return told(self.program, *words, cwd=self.folder.parent, env=os.environ | {"COPPICE_ENDPOINT": self.endpoint})


class Image(Clean):
    def test_it_is_an_image_of_the_programs_for_a_user_without_rights(self):
        with tarfile.open(self.only("image", "*.image.tar")) as tar:
            def blob(one):
                data = tar.extractfile(f"blobs/{one['digest'].replace(':', '/')}").read()
                self.assertEqual(hashlib.sha256(data).hexdigest(), one["digest"].partition(":")[2])
                return data

            (entry,) = json.loads(tar.extractfile("index.json").read())["manifests"]
            manifest = json.loads(blob(entry))
            config = json.loads(blob(manifest["config"]))
            (layer,) = manifest["layers"]
            (self.folder / "layer.tar").write_bytes(blob(layer))
        self.assertEqual(config["config"]["User"], "65532:65532")
        self.assertEqual(entry["annotations"]["io.containerd.image.name"], f"{programs.IMAGE}:{version()}")
        with tarfile.open(self.folder / "layer.tar") as tar:
            tar.extractall(self.folder / "root", filter="tar")
        for program in programs.PROGRAMS:
            if program != "coppice-bench":
                self.assertIn(version(), self.within("--version", program=program))
            self.assertTrue((self.folder / "root/usr/local/bin" / program).exists())

    def within(self, *words, program):
        """Runs a program with the image's files and no others, without root's rights."""
        return told("unshare", "--user", f"--root={self.folder / 'root'}", f"/usr/local/bin/{program}", *words)


def load_tests(loader, _tests, _pattern):
    chosen = [Release]
    for part, (_, name) in dist.PARTS.items():
        if (DIST / part).exists():
            chosen.append(globals()[name])
        else:
            print(f"test-dist: {DIST} has no {part}, which is not tried", file=sys.stderr)
    return unittest.TestSuite(loader.loadTestsFromTestCase(case) for case in chosen)


if __name__ == "__main__":
    unittest.main()
