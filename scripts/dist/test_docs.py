"""The documentation's site, as an unpacked archive: its links, what a browser loads, its search."""

import html.parser
import os
import pathlib
import posixpath
import re
import shutil
import subprocess
import tarfile
import tempfile
import unittest
import urllib.parse

import docs
from common import HERE, ROOT, output, version

DIST = pathlib.Path(os.environ.get("DIST", ROOT / "target/dist")).absolute()
# What a browser loads by itself, in contrast to what a reader follows.
LOADED = {("script", "src"), ("img", "src"), ("link", "href"), ("iframe", "src"), ("source", "src"), ("form", "action")}


class Page(html.parser.HTMLParser):
    """The names and links of a page."""

    def __init__(self, text):
        super().__init__()
        self.names, self.links, self.loads, self.handlers = set(), [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        for attribute, value in attributes:
            if attribute in ("id", "name"):
                self.names.add(value)
            elif (tag, attribute) in LOADED:
                self.loads.append(value)
            elif (tag, attribute) == ("a", "href"):
                self.links.append(value)
            elif attribute.startswith("on"):
                self.handlers.append(value)


class Docs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="coppice-docs-")
        cls.addClassCleanup(folder.cleanup)
        (archive,) = (DIST / "docs").glob("*.tar.gz")
        with tarfile.open(archive) as tar:
            tar.extractall(folder.name, filter="data")
        cls.site = pathlib.Path(folder.name) / f"coppice-docs-{version()}"
        cls.pages = {path.relative_to(cls.site).as_posix(): Page(path.read_text()) for path in cls.site.rglob("*.html")}

    def target(self, page, link):
        """The file that a link leads to, and the name in it."""
        path, _, name = link.partition("#")
        return posixpath.normpath(posixpath.join(posixpath.dirname(page), urllib.parse.unquote(path))) if path else page, name

    def test_every_page_of_the_repository_is_there(self):
        expected = {docs.place(page).replace(".md", ".html") for page in docs.pages()}
        self.assertEqual(set(self.pages) - {"search.html"}, expected)
        self.assertIn("docs/runbooks/quorum-loss.html", self.pages)

    def test_every_link_leads_to_a_page_and_a_heading_in_it(self):
        followed = 0
        for name, page in self.pages.items():
            for link in page.links:
                if re.match(r"[a-z]+:", link):
                    self.assert_copy_of_a_file(name, link)
                    continue
                file, heading = self.target(name, link)
                self.assertTrue((self.site / file).is_file(), f"{name}: {link} leads nowhere")
                if heading and file in self.pages:
                    self.assertIn(heading, self.pages[file].names, f"{name}: {link} leads to no heading")
                followed += 1
        self.assertGreater(followed, 1000)

    def assert_copy_of_a_file(self, page, link):
        self.assertTrue(link.startswith(("https://", "http://", "mailto:")), f"{page}: {link}")
        if link.startswith(docs.repository() + "/blob/") or link.startswith(docs.repository() + "/tree/"):
            _, _, file = link.partition(f"/v{version()}/")
            self.assertTrue(file and (ROOT / file.partition("#")[0]).exists(), f"{page}: {link} is no file of this version")

    def test_nothing_is_loaded_from_elsewhere(self):
        for name, page in self.pages.items():
            self.assertEqual(page.handlers, [], f"{name} has scripts in attributes")
            for link in page.loads:
                file, _ = self.target(name, link.partition("?")[0])
                self.assertTrue((self.site / file).is_file(), f"{name} loads {link}")
        for style in self.site.rglob("*.css"):
            for link in re.findall(r"url\(\s*['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)", style.read_text()):
                link = "".join(link)
                self.assertTrue(link.startswith("data:") or (style.parent / link).exists(), f"{style.name} loads {link}")

    def test_a_browser_shows_it_in_both_schemes_and_finds_what_is_searched(self):
        tools = output(ROOT / "scripts/install-web.sh", "test")
        pictures = ROOT / "target" / "dist-pictures"
        pictures.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(["node", HERE / "docs.chromium.mjs", self.site, pictures], env=os.environ | {"WEB_TOOLS": tools},
                              capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


class Links(unittest.TestCase):
    """Faults that are planted in pages."""

    def test_a_link_to_a_file_that_is_not_there_is_refused(self):
        for link in ("nothing.md", "../../outside.md", "../Makefil"):
            with self.assertRaisesRegex(SystemExit, re.escape(f"there is no {link}")):
                docs.retargeted("docs/guide.md", f"see [this]({link})", {"docs/guide.md"})

    def test_links_out_of_the_site_become_links_to_the_repository(self):
        known = {"docs/guide.md", "README.md", "docs/runbooks/README.md"}
        text = "[a](../Makefile) [b](runbooks/README.md#x) [c](../proto/)\n```\n[d](../no)\n```\n[e](../README.md)\n[f]: ../LICENSE\n"
        copy = f"{docs.repository()}/{{}}/v{version()}/"
        self.assertEqual(
            docs.retargeted("docs/guide.md", text, known),
            f"[a]({copy.format('blob')}Makefile) [b](runbooks/index.md#x) [c]({copy.format('tree')}proto)\n"
            f"```\n[d](../no)\n```\n[e](../index.md)\n[f]: {copy.format('blob')}LICENSE\n")

    def test_a_link_to_a_heading_that_is_not_there_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            source, site = pathlib.Path(folder, "source"), pathlib.Path(folder, "site")
            shutil.copytree(HERE / "docs", source)
            (source / "index.md").write_text("# Page\n\n## Part\n\n[there](#part)\n")
            docs.generate(source, site)
            (source / "index.md").write_text("# Page\n\n## Part\n\n[there](#parts)\n")
            with self.assertRaises(subprocess.CalledProcessError):
                docs.generate(source, site, stderr=subprocess.DEVNULL)
