"""The licences of the crates that programs and modules link, as one text: most demand that it
comes with what is made of them."""

import json
import pathlib
import re

from common import ROOT, output

FILE = "THIRD-PARTY.txt"
TEXTS = re.compile(r"(LICEN[CS]E|COPYING|COPYRIGHT|NOTICE|UNLICENSE)", re.IGNORECASE)


def linked(manifest, target, crates):
    """What Cargo links into crates: a set of pairs of name and version."""
    chosen = [word for crate in crates for word in ("--package", crate)]
    told = output("cargo", "tree", "--locked", "--manifest-path", ROOT / manifest, "--target", target, "--edges", "normal",
                  "--prefix", "none", "--format", "{p}", *chosen)
    return set(re.findall(r"^(\S+) v(\S+)", told, re.MULTILINE))


def third_parties(manifest, target, crates):
    """The text: every crate of others with its licence, then each licence's text once."""
    wanted = linked(manifest, target, crates)
    metadata = json.loads(output("cargo", "metadata", "--locked", "--format-version", "1", "--manifest-path", ROOT / manifest,
                                 "--filter-platform", target))
    names, texts = [], {}
    for package in sorted(metadata["packages"], key=lambda one: (one["name"], one["version"])):
        if package["source"] is None or (package["name"], package["version"]) not in wanted:
            continue
        name = f"{package['name']} {package['version']}"
        names.append(f"{name}: {package['license'] or 'see its text'}")
        for file in sorted(pathlib.Path(package["manifest_path"]).parent.iterdir()):
            if file.is_file() and TEXTS.match(file.name):
                text = file.read_text(errors="replace").strip()
                # Copies differ in how lines are broken.
                _, owners = texts.setdefault(" ".join(text.split()), (text, []))
                owners.append(name)
    rule = "\n" + "=" * 80 + "\n"
    parts = [f"{', '.join(dict.fromkeys(owners))}\n\n{text}" for text, owners in sorted(texts.values(), key=lambda item: item[1])]
    return "Software of others that is a part of this:\n\n" + "\n".join(names) + "\n" + "".join(rule + part + "\n" for part in parts)
