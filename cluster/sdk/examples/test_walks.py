"""The examples of docs/clients.md run against a real ledger, and the page has their text.

    test_walks.py [LANGUAGE..]

Without languages, all run. `make wasm` and `make build` come before.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path[:0] = [str(ROOT / "cluster/sdk/python/tests"), str(ROOT / "cluster/sdk/python")]
from bed import Dev  # noqa: E402

LIMIT_S = 300
SDK = ROOT / "cluster/sdk"
# Each language: its files, and the words that run it with the endpoint and the key of a ledger.
WALKS = {
    "curl": (["walk.sh"], lambda url, vkey: ["bash", HERE / "walk.sh", url, vkey, ROOT / "cluster/verify/vectors/second.py"]),
    "python": (["walk.py"], lambda url, vkey: [sys.executable, HERE / "walk.py", url, vkey]),
    "js": (["walk.mjs"], lambda url, vkey: ["node", "walk.mjs", url, vkey]),
    "go": (
        ["../go/examples/walk/main.go"],
        lambda url, vkey: ["go", "-C", SDK / "go", "run", "./examples/walk", url.removeprefix("http://"), vkey],
    ),
    "java": (
        ["java/src/main/java/Walk.java", "java/pom.xml"],
        lambda url, vkey: [
            "mvn", "-q", "-B", "-ntp", "-f", HERE / "java/pom.xml", "compile", "exec:java",
            f"-Dexec.args={url.removeprefix('http://')} {vkey} {SDK / 'js/verify/verify.wasm'}",
        ],
    ),
}
FENCES = {".sh": "bash", ".py": "python", ".mjs": "js", ".go": "go", ".java": "java", ".xml": "xml"}
languages = sys.argv[1:] or list(WALKS)


class Walks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.work = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.dev = Dev(cls.work / "ledger")
        packages = cls.work / "node_modules/@coppice"
        packages.mkdir(parents=True)
        (packages / "verify").symlink_to(SDK / "js/verify")
        # A copy, so that it finds the verifier beside it.
        shutil.copytree(SDK / "js/client", packages / "client", ignore=shutil.ignore_patterns("node_modules"))
        cls.addClassCleanup(cls.dev.stop)

    def test_each_example_prints_what_it_proved(self):
        (self.work / "walk.mjs").write_text((HERE / "walk.mjs").read_text())
        python = os.pathsep.join([os.environ["WEB_TOOLS"] + "/python", str(SDK / "python")])
        for version, language in enumerate(languages, 1):
            words = WALKS[language][1](self.dev.endpoint, self.dev.directory / "ledger.vkey")
            done = subprocess.run(
                words, cwd=self.work, env=os.environ | {"PYTHONPATH": python}, stdout=subprocess.PIPE, text=True,
                timeout=LIMIT_S,
            )
            self.assertEqual(done.returncode, 0, language)
            # Maven resets the colours of a terminal that is not there.
            shown = done.stdout.replace("\x1b[0m", "")
            expected = f"committed in version {version}\n{language}/alice is 100 in version {version}\nan entry "
            self.assertEqual(shown[: len(expected)], expected, language)
            self.assertRegex(shown[len(expected) :], r"^(is a commit|of [1-9]\d* bytes)\n$", language)

    def test_no_example_takes_the_proof_of_another_ledger(self):
        other = Dev(self.work / "other")
        self.addCleanup(other.stop)
        (self.work / "walk.mjs").write_text((HERE / "walk.mjs").read_text())
        python = os.pathsep.join([os.environ["WEB_TOOLS"] + "/python", str(SDK / "python")])
        for language in languages:
            words = WALKS[language][1](other.endpoint, self.dev.directory / "ledger.vkey")
            done = subprocess.run(
                words, cwd=self.work, env=os.environ | {"PYTHONPATH": python}, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, text=True, timeout=LIMIT_S,
            )
            self.assertNotEqual(done.returncode, 0, language)
            self.assertNotIn("committed", done.stdout, language)

    def test_the_page_has_the_text_of_each_file(self):
        page = (ROOT / "docs/clients.md").read_text()
        for files, _ in WALKS.values():
            for name in files:
                text = (HERE / name).read_text()
                self.assertIn(f"\n```{FENCES[Path(name).suffix]}\n{text}```\n", page, name)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
