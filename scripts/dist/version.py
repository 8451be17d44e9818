#!/usr/bin/env python3
"""The version of a release stands in the workspace's Cargo.toml; other files repeat it.

    scripts/dist/version.py           compares all places with it
    scripts/dist/version.py 0.2.0     writes a new version everywhere

A new version also needs its sections in CHANGELOG.md and docs/upgrading.md, and the lock files and
the charts' golden files that the last lines of the output name.
"""

import re
import sys

from common import ROOT, version

# Each place is a file with a pattern, whose one group is the version.
CARGO = r'^version = "([^"]+)"'
IMAGE = r"(?<=/coppice:)([0-9][^\s\"]*)|(?<=image\.tag=)([0-9]\S*)"
PLACES = {
    "Cargo.toml": CARGO,
    "cluster/verify/wasm/Cargo.toml": CARGO,
    "cluster/adapters/revm/Cargo.toml": CARGO,
    "cluster/sdk/python/pyproject.toml": CARGO,
    "cluster/sdk/js/verify/package.json": r'^  "version": "([^"]+)"',
    # The client needs the verifier of its own release.
    "cluster/sdk/js/client/package.json": r'^  "version": "([^"]+)"|^    "@coppice/verify": "([^"]+)"',
    "charts/coppice/Chart.yaml": r"^(?:version|appVersion): (\S+)",
    "charts/coppice-cosigner/Chart.yaml": r"^(?:version|appVersion): (\S+)",
    "charts/coppice-operator/Chart.yaml": r"^(?:version|appVersion): (\S+)",
    "charts/examples/3-production.yaml": r"^    tag: (\S+)",
    "docs/guide.md": IMAGE,
    "docs/kind.md": IMAGE,
    "docs/operator.md": IMAGE,
    "scripts/image.py": IMAGE,
}
NOTES = {"CHANGELOG.md": "## {} ", "docs/upgrading.md": "## {}"}


def stale(wanted, read=lambda file: (ROOT / file).read_text()):
    """What does not say the version: a list of messages."""
    wrong = []
    for file, pattern in PLACES.items():
        found = [next(filter(None, match.groups())) for match in re.finditer(pattern, read(file), re.MULTILINE)]
        if not found:
            wrong.append(f"{file} has no version where version.py looks for it")
        wrong += [f"{file} says {one}, and not {wanted}" for one in found if one != wanted]
    for file, heading in NOTES.items():
        if not re.search(f"^{re.escape(heading.format(wanted).strip())}( |$)", read(file), re.MULTILINE):
            wrong.append(f"{file} has no section `{heading.format(wanted).strip()}`")
    return wrong


def write(new):
    """Writes a version everywhere."""
    for file, pattern in PLACES.items():
        text = (ROOT / file).read_text()

        def other(match):
            begin, end = match.span(match.lastindex)
            return match.group(0)[:begin - match.start()] + new + match.group(0)[end - match.start():]

        (ROOT / file).write_text(re.sub(pattern, other, text, flags=re.MULTILINE))


def main():
    if len(sys.argv) > 2 or not re.fullmatch(r"\d+\.\d+\.\d+(-[0-9A-Za-z.]+)?", (sys.argv + [version()])[1]):
        raise SystemExit(__doc__)
    if len(sys.argv) == 2:
        write(sys.argv[1])
        print("then: cargo update --workspace, also in cluster/verify/wasm, cluster/adapters/revm, loadtest/engines "
              "and loadtest/structures; "
              "make crds, and make charts BLESS=1")
    wrong = stale(version())
    print("\n".join(wrong) or f"every place says {version()}")
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
