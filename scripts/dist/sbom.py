"""The bill of materials: one CycloneDX file of all that a release links.

cargo-cyclonedx lists the crates of each program and of the verifier's module. Here they become one
list, below one component for each program and package.
"""

import datetime
import json
import os
import re
import uuid

from common import ROOT, epoch, output, run, version
from programs import PROGRAMS, TARGET

CARGO_CYCLONEDX = "0.5.9"
WASM = "cluster/verify/wasm"
# The runtime of the Python package's verifier.
OPTIONAL = re.compile(r'^verify = \["(\w+)', re.MULTILINE)


def crates(manifest, target):
    """The bills of the packages of a workspace, by name. The tool writes them beside manifests."""
    tool = output(ROOT / "scripts/cargo-tool.sh", "cargo-cyclonedx", CARGO_CYCLONEDX)
    name = f"dist-{os.getpid()}"
    try:
        run(f"{tool}/cargo-cyclonedx", "cyclonedx", "-qq", "--manifest-path", manifest, "--format", "json", "--spec-version", "1.5",
            "--target", target, "--no-build-deps", "--override-filename", name, cwd=ROOT)
        found = [json.loads(file.read_text()) for file in written(manifest, name)]
    finally:
        for file in written(manifest, name):
            file.unlink()
    return {bill["metadata"]["component"]["name"]: bill for bill in found}


def written(manifest, name):
    metadata = json.loads(output("cargo", "metadata", "--no-deps", "--offline", "--format-version", "1", "--manifest-path", manifest))
    folders = [os.path.dirname(package["manifest_path"]) for package in metadata["packages"]]
    return [path for folder in folders if (path := ROOT / folder / f"{name}.json").exists()]


def package(kind, name, needs):
    """A package that is no crate: its component, and what it depends on."""
    reference = f"pkg:{kind}/{name.replace('@', '%40')}@{version()}"
    return {"type": "library", "bom-ref": reference, "name": name, "version": version(), "purl": reference,
            "licenses": [{"expression": "Apache-2.0"}]}, {"ref": reference, "dependsOn": needs}


def merged(bills, packages):
    """One bill of all. A crate that several programs link appears once."""
    root = f"pkg:generic/coppice@{version()}"
    components = {component["bom-ref"]: component for component, _ in packages}
    needs = {need["ref"]: set(need["dependsOn"]) for _, need in packages}
    for bill in bills:
        for component in [bill["metadata"]["component"], *bill["components"]]:
            components[component["bom-ref"]] = component
        for need in bill["dependencies"]:
            needs.setdefault(need["ref"], set()).update(need.get("dependsOn", []))
    needs[root] = {bill["metadata"]["component"]["bom-ref"] for bill in bills} | {need["ref"] for _, need in packages}
    when = datetime.datetime.fromtimestamp(epoch(), datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, root + when)}",
        "metadata": {"timestamp": when, "component": {
            "type": "application", "bom-ref": root, "name": "coppice", "version": version(), "purl": root,
            "licenses": [{"expression": "Apache-2.0"}]}},
        "components": [components[reference] for reference in sorted(components)],
        "dependencies": [{"ref": reference, "dependsOn": sorted(needs[reference])} for reference in sorted(needs)],
    }


def pack(work, out):
    """Makes coppice-VERSION.cdx.json."""
    programs = crates(ROOT / "Cargo.toml", TARGET)
    (module,) = crates(ROOT / WASM / "Cargo.toml", "wasm32-unknown-unknown").values()
    reference = module["metadata"]["component"]["bom-ref"]
    wasmtime = OPTIONAL.search((ROOT / "cluster/sdk/python/pyproject.toml").read_text()).group(1)
    runtime = {"type": "library", "bom-ref": f"pkg:pypi/{wasmtime}", "name": wasmtime, "scope": "optional"}
    packages = [
        package("npm", "@coppice/verify", [reference]),
        package("pypi", "coppice", [reference, runtime["bom-ref"]]),
        (runtime, {"ref": runtime["bom-ref"], "dependsOn": []}),
    ]
    bill = merged([*(programs[program] for program in PROGRAMS), module], packages)
    # No path of this machine is a part of it.
    text = json.dumps(bill, indent=1, sort_keys=True).replace(str(ROOT), "/coppice")
    (out / f"coppice-{version()}.cdx.json").write_text(text + "\n")
