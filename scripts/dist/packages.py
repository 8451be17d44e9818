"""The packages of a release: npm, Python, helm, and the verifiers that are one file each."""

import functools
import json
import os
import shutil
import subprocess
import sys

import licences
from common import ROOT, epoch, output, python_tools, repack, run, version

JS = ROOT / "cluster/sdk/js"
PYTHON = ROOT / "cluster/sdk/python"
CHARTS = ("coppice", "coppice-cosigner", "coppice-operator")


@functools.cache
def wasm():
    """The path of the verifier as a module, after its build where sources changed."""
    run(ROOT / "cluster/verify/wasm/build.sh", stdout=sys.stderr)
    return ROOT / "target/wasm/verify.wasm"


def third_parties():
    """The licences of what the module links."""
    return licences.third_parties("cluster/verify/wasm/Cargo.toml", "wasm32-unknown-unknown", ["coppice-verify-wasm"])


def pack_wasm(work, out):
    shutil.copy(wasm(), out / f"coppice-verify-{version()}.wasm")


def pack_second(work, out):
    shutil.copy(ROOT / "cluster/verify/vectors/second.py", out / "second.py")


def pack_npm(work, out):
    """Makes coppice-verify-VERSION.tgz and coppice-client-VERSION.tgz. In the repository, a mark keeps
    them from being published by mistake, without the modules; a release has them and not the mark."""
    wasm()
    for name in ("verify", "client"):
        pack_one_npm(JS / name, work / name, out)


def pack_one_npm(source, tree, out):
    package = json.loads((source / "package.json").read_text())
    tree.mkdir()
    for file in package["files"]:
        if (source / file).is_dir():
            shutil.copytree(source / file, tree / file)
        else:
            shutil.copy(wasm() if file == "verify.wasm" else source / file, tree / file)
    shutil.copy(ROOT / "LICENSE", tree / "LICENSE")
    # The client has no code of others.
    if "verify.wasm" in package["files"]:
        (tree / licences.FILE).write_text(third_parties())
        package["files"].append(licences.FILE)
    del package["private"]
    (tree / "package.json").write_text(json.dumps(package, indent=2) + "\n")
    run("npm", "pack", "--silent", "--ignore-scripts", "--pack-destination", out, cwd=tree, stdout=subprocess.DEVNULL)


def pack_python(work, out):
    """Makes the wheel and the source distribution of `coppice`."""
    tree = work / "python"
    for package in ("coppice", "coppice_verify"):
        shutil.copytree(PYTHON / package, tree / package, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md"):
        shutil.copy(PYTHON / file, tree / file)
    shutil.copy(ROOT / "LICENSE", tree / "LICENSE")
    # The name makes setuptools take it along.
    (tree / "LICENSE-THIRD-PARTY.txt").write_text(third_parties())
    shutil.copy(wasm(), tree / "coppice_verify" / "verify.wasm")
    built = work / "built"
    for path in [tree, *tree.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
        os.utime(path, (epoch(), epoch()))
    call = "import sys; from setuptools.build_meta import *; _, out = sys.argv; build_sdist(out); build_wheel(out)"
    environment = os.environ | {"SOURCE_DATE_EPOCH": str(epoch()), "TZ": "UTC"}
    run(python_tools("python") / "bin" / "python", "-c", call, built, cwd=tree, env=environment,
        stdout=subprocess.DEVNULL)
    for file in built.iterdir():
        shutil.copy(file, out / file.name)
    repack(out / f"coppice-{version()}.tar.gz")


def helm():
    """The helm that the project builds, which tests of the charts use too."""
    environment = os.environ | {"CGO_ENABLED": "0"}
    return output(ROOT / "scripts/go-tool.sh", "helm", "e2e/bed", "helm.sh/helm/v3/cmd/helm", cwd=ROOT, env=environment)


def pack_charts(work, out):
    """Makes a NAME-VERSION.tgz of each chart."""
    for chart in CHARTS:
        run(helm(), "package", ROOT / "charts" / chart, "--destination", out, stdout=subprocess.DEVNULL)
        repack(out / f"{chart}-{version()}.tgz")
