"""What the parts of a release share: the version, tools, and archives with reproducible bytes."""

import gzip
import hashlib
import io
import os
import pathlib
import re
import subprocess
import sys
import tarfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOLS = ROOT / "target" / "tools"
HERE = pathlib.Path(__file__).resolve().parent
# No command of a release takes longer; the programs are the slowest.
COMMAND_SECONDS_MAX = 5400


def run(*words, **options):
    """Runs a command; a failure ends the whole."""
    subprocess.run([str(word) for word in words], check=True, timeout=COMMAND_SECONDS_MAX, **options)


def output(*words, **options):
    """What a command prints, without the last newline."""
    words = [str(word) for word in words]
    told = subprocess.run(words, check=True, timeout=COMMAND_SECONDS_MAX, stdout=subprocess.PIPE, text=True, **options)
    return told.stdout.removesuffix("\n")


def version():
    """The version of this tree: that of the workspace in Cargo.toml."""
    text = (ROOT / "Cargo.toml").read_text()
    return re.search(r'\[workspace\.package\]\nversion = "([^"]+)"', text).group(1)


def epoch():
    """The time that goes into artefacts, in seconds: that of the commit."""
    return int(os.environ.get("SOURCE_DATE_EPOCH") or output("git", "-C", ROOT, "log", "-1", "--format=%ct"))


def sha256(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def python_tools(name):
    """The folder of a virtual environment with the pinned packages of NAME.requirements.txt."""
    wanted = HERE / f"{name}.requirements.txt"
    tools = TOOLS / f"dist-{name}-{sha256(wanted)[:12]}"
    if not (tools / "complete").exists():
        print(f"installing {wanted.name} (once)", file=sys.stderr)
        run(sys.executable, "-m", "venv", "--clear", "--without-pip", tools)
        run(sys.executable, "-m", "pip", "--python", tools / "bin" / "python", "install", "--quiet", "--require-hashes",
            "--only-binary", ":all:", "--disable-pip-version-check", "--root-user-action=ignore", "-r", wanted)
        (tools / "complete").touch()
    return tools


def files_of(folder):
    """The files of a folder, as pairs of their path below it and content."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return [(path.relative_to(folder).as_posix(), path.read_bytes()) for path in paths]


def write_archive(path, files, runnable=()):
    """Writes a .tar.gz of pairs (name, content). Equal files give equal bytes."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in files:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime, entry.mode = len(data), epoch(), 0o755 if name in runnable else 0o644
            tar.addfile(entry, io.BytesIO(data))
    path.write_bytes(gzip.compress(content.getvalue(), 9, mtime=0))


def repack(path):
    """Writes a .tar.gz again, with the same files in the same order."""
    with tarfile.open(path) as tar:
        files = [(entry.name, tar.extractfile(entry).read()) for entry in tar if entry.isfile()]
    write_archive(path, files)
