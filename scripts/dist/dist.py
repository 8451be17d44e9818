#!/usr/bin/env python3
"""Makes what a release publishes, and lists it.

    scripts/dist/dist.py --out target/dist [PART...]

Without parts, all are made. Equal sources give equal bytes; docs/releasing.md says where that
depends on the machine. SHA256SUMS has the checksum of each file. MANIFEST.md lists them with their
sizes and with the test of each, which `make test-dist` runs.
"""

import argparse
import pathlib
import shutil
import sys
import tempfile
import time

import docs
import packages
import programs
import sbom
from common import sha256, version

# Each part has a folder, a function that fills it, and a class of tests that tries its files.
PARTS = {
    "second": (packages.pack_second, "Second"),
    "wasm": (packages.pack_wasm, "Wasm"),
    "npm": (packages.pack_npm, "Npm"),
    "python": (packages.pack_python, "Python"),
    "charts": (packages.pack_charts, "Charts"),
    "docs": (docs.pack, "Docs"),
    "sbom": (sbom.pack, "Sbom"),
    "programs": (programs.pack, "Programs"),
    "image": (programs.pack_image, "Image"),
}


def files(out):
    """The files of a release with their parts, in the order of parts."""
    return [(part, path) for part in PARTS for path in sorted((out / part).glob("*"))]


def make(parts, out):
    """Makes parts. Each takes the place of what was made of it before."""
    for part in parts:
        began = time.monotonic()
        pack, _ = PARTS[part]
        folder = out / part
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        with tempfile.TemporaryDirectory() as work:
            pack(pathlib.Path(work), folder)
        print(f"dist: {part}: {time.monotonic() - began:.0f} s", file=sys.stderr)


def lists(out):
    """Writes SHA256SUMS and MANIFEST.md of what is in the folder, and returns the latter."""
    rows = [f"# Coppice {version()}", "", "| file | bytes | sha256 | tried by |", "| --- | ---: | --- | --- |"]
    sums = []
    for part, path in files(out):
        digest, name = sha256(path), path.relative_to(out)
        sums.append(f"{digest}  {name}")
        rows.append(f"| `{name}` | {path.stat().st_size:,} | `{digest}` | `test_dist.{PARTS[part][1]}` |")
    manifest = "\n".join(rows) + "\n"
    (out / "SHA256SUMS").write_text("\n".join(sums) + "\n")
    (out / "MANIFEST.md").write_text(manifest)
    return manifest


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"one of {', '.join(PARTS)}")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="the folder, in which other parts stay as they are")
    options = parser.parse_args()
    unknown = set(options.parts) - set(PARTS)
    if unknown:
        parser.error(f"no part is called {', '.join(sorted(unknown))}: there are {', '.join(PARTS)}")
    make(options.parts or PARTS, options.out.resolve())
    print(lists(options.out.resolve()), end="")


if __name__ == "__main__":
    main()
