"""The documentation as a site: every page of the repository, for a reader without a network.

The pages are laid out as in the repository, so that links between them hold. A link to any other
file of the repository becomes one to its public copy. Sphinx makes the site, and fails on a link
to a page or heading that does not exist.
"""

import base64
import hashlib
import os
import posixpath
import re
import shutil

from common import HERE, ROOT, epoch, files_of, output, python_tools, run, version, write_archive

# Parts of docs/benchmarks.md, which are no pages.
FRAGMENTS = "loadtest/benchmarks/"
LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=\))|(?<=^\[)[^\]]+\]: (\S+)", re.MULTILINE)
PICTURES = (".svg", ".webp")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
SCRIPT = re.compile(r"<script(?![^>]*\bsrc=)[^>]*>(.*?)</script>", re.DOTALL)


def repository():
    return re.search(r'^repository = "([^"]+)"', (ROOT / "Cargo.toml").read_text(), re.MULTILINE).group(1)


def pages():
    """The pages, by their path in the repository."""
    tracked = output("git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard", "*.md").split("\n")
    return sorted(page for page in tracked if not page.startswith(FRAGMENTS))


def place(page):
    """Where a page lies on the site. A README is the page of its folder."""
    return re.sub(r"README\.md$", "index.md", page)


def retarget(page, target, known):
    """What a link in a page becomes on the site."""
    path, mark, heading = target.partition("#")
    if not path or re.match(r"[a-z]+:", path):
        return target
    here = posixpath.dirname(page)
    found = posixpath.normpath(posixpath.join(here, path))
    if found in known:
        return posixpath.relpath(place(found), here or ".") + mark + heading
    if not (ROOT / found).exists() or found.startswith(".."):
        raise SystemExit(f"{page}: there is no {target}")
    if found.endswith(PICTURES):
        return target
    return f"{repository()}/{'tree' if (ROOT / found).is_dir() else 'blob'}/v{version()}/{found}{mark}{heading}"


def retargeted(page, text, known):
    """The text of a page with links as on the site. Blocks of code stay as they are."""
    def link(match):
        target = match.group(1) or match.group(2)
        return match.group(0).removesuffix(target) + retarget(page, target, known)

    pieces, at = [], 0
    for fence in FENCE.finditer(text):
        pieces += [LINK.sub(link, text[at:fence.start()]), fence.group(0)]
        at = fence.end()
    return "".join([*pieces, LINK.sub(link, text[at:])])


def contents(page, text, known):
    """The parts of the navigation that a page holds: pairs of a caption and pages.

    docs/README.md decides the order of the site; the index of runbooks, that of the runbooks.
    """
    if page == "README.md":
        index = (ROOT / "docs/README.md").read_text()
        sections = re.findall(r"^## For ([^:\n]+)[^\n]*\n(.*?)(?=^## )", index, re.MULTILINE | re.DOTALL)
        parts = [(f"For {who}", "docs/README.md", body) for who, body in sections]
        parts.append(("About", page, "(docs/README.md) (docs/upgrading.md) (CHANGELOG.md) (SECURITY.md)"))
    elif page == "docs/runbooks/README.md":
        parts = [("Runbooks", page, text)]
    else:
        return []
    seen, chosen = {page}, []
    for caption, base, body in parts:
        found = []
        for target in re.findall(r"\(([^)\s#]+\.md)\)", body):
            to = posixpath.normpath(posixpath.join(posixpath.dirname(base), target))
            inside = to.startswith("docs/runbooks/") and to != "docs/runbooks/README.md"
            if to in known and to not in seen and inside == (page != "README.md"):
                seen.add(to)
                found.append(to)
        chosen.append((caption, found))
    return chosen


def lay_out(source):
    """Writes what Sphinx reads."""
    known = set(pages())
    for page in sorted(known):
        text = (ROOT / page).read_text()
        out = retargeted(page, text, known)
        for caption, found in contents(page, text, known):
            inside = [posixpath.relpath(place(to), posixpath.dirname(page) or ".").removesuffix(".md") for to in found]
            out += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n" + "\n".join(inside) + "\n```\n"
        (source / place(page)).parent.mkdir(parents=True, exist_ok=True)
        (source / place(page)).write_text(out)
    for picture in (path for path in ROOT.glob("docs/**/*") if path.suffix in PICTURES):
        copy = source / picture.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(picture, copy)
    shutil.copytree(HERE / "docs", source, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))


def policy(html):
    """A page that says what a browser may load: the site's own files, and the scripts in it."""
    digests = {hashlib.sha256(script.encode()).digest() for script in SCRIPT.findall(html)}
    scripts = " ".join(sorted(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests))
    allowed = f"default-src 'none'; script-src 'self' {scripts}; style-src 'self' 'unsafe-inline'; img-src 'self' data:; " \
        "connect-src 'self'; form-action 'self'; base-uri 'none'"
    meta = f'<meta http-equiv="Content-Security-Policy" content="{allowed}">'
    return re.sub(r"(<meta charset=[^>]*>)", lambda charset: charset.group(1) + meta, html, count=1)


def generate(source, site, **options):
    """Runs Sphinx, which takes a broken link for an error."""
    environment = os.environ | {
        "COPPICE_VERSION": version(), "SOURCE_DATE_EPOCH": str(epoch()), "PYTHONHASHSEED": "0", "TZ": "UTC", "LC_ALL": "C.UTF-8"}
    run(python_tools("docs") / "bin" / "python", "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", source, site, env=environment,
        **options)


def build(work):
    """Makes the site in a folder, and returns it."""
    source, site = work / "source", work / "site"
    source.mkdir(parents=True)
    lay_out(source)
    generate(source, site)
    # These are for a next build, and depend on the machine.
    (site / ".buildinfo").unlink()
    shutil.rmtree(site / ".doctrees")
    for page in site.rglob("*.html"):
        page.write_text(policy(page.read_text()))
    return site


def pack(work, out):
    """Makes coppice-docs-VERSION.tar.gz."""
    name = f"coppice-docs-{version()}"
    write_archive(out / f"{name}.tar.gz", [(f"{name}/{path}", data) for path, data in files_of(build(work))])
