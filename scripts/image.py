#!/usr/bin/env python3
"""Makes a container image of programs without a container engine: the image that the Dockerfile
describes, from programs that were built here.

    scripts/image.py ghcr.io/coppice-dev/coppice:0.1.0 coppice.tar \\
        target/release/coppice{,-shard-node,-coordinator,-operator,-bench}

The archive is an OCI layout that also has the manifest of `docker save`, so podman, docker, skopeo,
kind and containerd can load it. It holds the programs in /usr/local/bin, the shared libraries that
they need on this machine, and a user 65532. An image of a single program runs that program. The
same files make the same image, bit for bit.
"""

import argparse
import hashlib
import io
import json
import pathlib
import platform
import re
import shutil
import subprocess
import tarfile
import tempfile

USER = 65532
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
LAYER, CONFIG, MANIFEST, INDEX = (
    f"application/vnd.oci.image.{kind}" for kind in ("layer.v1.tar", "config.v1+json", "manifest.v1+json", "index.v1+json"))
ACCOUNTS = {
    "etc/passwd": f"root:x:0:0::/:/sbin/nologin\nnonroot:x:{USER}:{USER}::/:/sbin/nologin\n",
    "etc/group": f"root:x:0:\nnonroot:x:{USER}:\n",
    # Names are looked up in /etc/hosts, then by DNS.
    "etc/nsswitch.conf": "hosts: files dns\n",
}


def libraries(program):
    """The shared libraries of a program, including the loader; empty for a static program."""
    told = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    missing = [line.strip() for line in told.splitlines() if "not found" in line]
    if missing:
        raise SystemExit(f"image.py: {program} lacks libraries here: {'; '.join(missing)}")
    return re.findall(r"(/\S+) \(0x[0-9a-f]+\)", told)


def layer(programs, strip):
    """The file system, as a tar."""
    files = {name: text.encode() for name, text in ACCOUNTS.items()}
    runnable = set()
    with tempfile.TemporaryDirectory() as work:
        for program in programs:
            copy = pathlib.Path(work) / program.name
            shutil.copy(program, copy)
            if strip:
                subprocess.run(["strip", copy], check=True)
            for source, name in [(copy, f"usr/local/bin/{program.name}"), *((path, path.lstrip("/")) for path in libraries(program))]:
                files[name] = pathlib.Path(source).read_bytes()
                runnable.add(name)
    folders = {"tmp"} | {str(parent) for name in files for parent in pathlib.PurePath(name).parents if str(parent) != "."}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name in sorted(folders | set(files)):
            entry = tarfile.TarInfo(name)
            if name in folders:
                entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            else:
                entry.size, entry.mode = len(files[name]), 0o755 if name in runnable else 0o644
            tar.addfile(entry, io.BytesIO(files.get(name, b"")))
    return out.getvalue()


class Archive:
    """An archive that is being written; blobs are named by their digest."""

    def __init__(self, tar):
        self.tar = tar

    def file(self, name, content):
        entry = tarfile.TarInfo(name)
        entry.size = len(content)
        self.tar.addfile(entry, io.BytesIO(content))

    def blob(self, kind, content):
        digest = hashlib.sha256(content).hexdigest()
        self.file(f"blobs/sha256/{digest}", content)
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(content)}


def encoded(value):
    return json.dumps(value, sort_keys=True).encode()


def write(path, name, programs, revision="", strip=False):
    """Writes an image with this name and tag."""
    architecture = ARCHITECTURES[platform.machine()]
    content = layer(programs, strip)
    with tarfile.open(path, "w") as tar:
        archive = Archive(tar)
        files = archive.blob(LAYER, content)
        config = archive.blob(CONFIG, encoded({
            "architecture": architecture,
            "os": "linux",
            "config": {
                "User": f"{USER}:{USER}",
                "WorkingDir": "/",
                "Env": ["PATH=/usr/local/bin"],
                **({"Entrypoint": [f"/usr/local/bin/{programs[0].name}"]} if len(programs) == 1 else {}),
                "Labels": {"org.opencontainers.image.revision": revision},
            },
            "rootfs": {"type": "layers", "diff_ids": [files["digest"]]},
        }))
        manifest = archive.blob(MANIFEST, encoded({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": [files]}))
        names = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name.rpartition(":")[2]}
        archive.file("index.json", encoded({
            "schemaVersion": 2,
            "mediaType": INDEX,
            "manifests": [manifest | {"platform": {"architecture": architecture, "os": "linux"}, "annotations": names}],
        }))
        archive.file("oci-layout", encoded({"imageLayoutVersion": "1.0.0"}))
        place = "blobs/sha256/{}".format
        archive.file("manifest.json", encoded([{
            "Config": place(config["digest"][7:]), "RepoTags": [name], "Layers": [place(files["digest"][7:])],
        }]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="the image's name with its tag; not `latest`, which is always pulled")
    parser.add_argument("archive", type=pathlib.Path)
    parser.add_argument("programs", nargs="+", type=pathlib.Path)
    parser.add_argument("--revision", default="", help="a label; it is part of the image's identity")
    parser.add_argument("--strip", action="store_true", help="leave out what only debuggers need")
    options = parser.parse_args()
    write(options.archive, options.name, options.programs, options.revision, options.strip)


if __name__ == "__main__":
    main()
