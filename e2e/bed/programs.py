"""The programs of a bed. They are built from the modules that go.mod pins, checked against go.sum,
and kept for the next time."""

import fcntl
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import image  # noqa: E402

GO_PATH = f"{os.environ['PATH']}:/usr/local/go/bin"
KUBERNETES = "k8s.io/kubernetes"
CONTAINERD = "github.com/containerd/containerd/v2/cmd"
PLUGINS = "github.com/containernetworking/plugins/plugins"
PACKAGES = {
    **{name: f"{KUBERNETES}/cmd/{name}" for name in (
        "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet", "kubectl")},
    **{name: f"{CONTAINERD}/{name}" for name in ("containerd", "containerd-shim-runc-v2", "ctr")},
    "runc": "github.com/opencontainers/runc",
    "bridge": f"{PLUGINS}/main/bridge",
    "loopback": f"{PLUGINS}/main/loopback",
    "host-local": f"{PLUGINS}/ipam/host-local",
    "helm": "helm.sh/helm/v3/cmd/helm",
    "coredns": "./coredns",
    "pause": "./pause",
}
IMAGES = {name: f"bed.local/{name}:1" for name in ("pause", "coredns", "etcd")}
# Packages of the operating system: the tool with which kube-proxy writes its rules, and what runc
# is linked with.
SYSTEM = {"nftables": "nft", "libseccomp-dev": None, "pkg-config": "pkg-config", "gcc": "gcc", "libc6-dev": None, "iproute2": "ip",
          "openssl": "openssl", "procps": "sysctl"}


class Failure(Exception):
    """The bed can't be made; the message says why."""


def run(*command, **options):
    """Runs a command that must succeed; returns its output."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, check=False, **options)
    if done.returncode != 0:
        # The shown command has no prefix: neither the network to run it in, nor its variables.
        shown = words[max([at + 1 for at, word in enumerate(words) if re.match("[A-Z_]+=", word)], default=0):]
        raise Failure(f"{' '.join(shown)}: {done.stderr.strip() or done.stdout.strip() or done.returncode}")
    return done.stdout


def eventually(what, seconds, condition):
    """Waits until `condition()` is true; an exception counts as false."""
    end = time.monotonic() + seconds
    while True:
        problem = None
        try:
            if condition():
                return
        except (Failure, OSError) as error:
            problem = error
        if time.monotonic() > end:
            raise Failure(f"{what}: not within {seconds} s" + (f": {problem}" if problem else ""))
        time.sleep(0.2)


class Programs:
    """The programs and images, in a folder that is named by their versions."""

    def __init__(self, cache):
        made_of = hashlib.sha256(repr(PACKAGES).encode())
        for name in ("go.mod", "go.sum", "coredns/main.go", "pause/main.go"):
            made_of.update((HERE / name).read_bytes())
        self.cache = pathlib.Path(cache)
        self.folder = self.cache / f"bin-{made_of.hexdigest()[:16]}"

    def build(self, say=print, only=tuple(PACKAGES)):
        """Builds the missing ones; the first time, that takes two cores 11 minutes."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.cache / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if "runc" in only:
                self.install_system()
            for name in only:
                if (self.folder / name).exists():
                    continue
                began = time.monotonic()
                self.compile(name)
                say(f"built {name} in {time.monotonic() - began:.0f} s")
            etcd = pathlib.Path(run(ROOT / "scripts" / "install-etcd.sh").strip())
            if not (self.folder / "etcd").exists() or (self.folder / "etcd").read_bytes() != etcd.read_bytes():
                shutil.copy(etcd, self.folder / "etcd")
                (self.folder / "etcd.tar").unlink(missing_ok=True)
            for name, tag in IMAGES.items():
                archive = self.folder / f"{name}.tar"
                if (self.folder / name).exists() and not archive.exists():
                    image.write(archive.with_suffix(".new"), tag, [self.folder / name])
                    archive.with_suffix(".new").rename(archive)

    @staticmethod
    def install_system():
        def there(package, program):
            return shutil.which(program) if program else subprocess.run(["dpkg", "-s", package], capture_output=True, check=False).returncode == 0

        missing = [package for package, program in SYSTEM.items() if not there(package, program)]
        if not missing:
            return
        if not shutil.which("apt-get"):
            raise Failure(f"install {', '.join(missing)} (these are Debian's names)")
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        run("apt-get", "update", "-q")
        run("apt-get", "install", "-yq", "--no-install-recommends", *missing, env=environment)

    def compile(self, name):
        # runc enters namespaces in C, before Go starts threads, and filters system calls with a C
        # library.
        native = name == "runc"
        environment = {**os.environ, "PATH": GO_PATH, "CGO_ENABLED": str(int(native)), "GOTOOLCHAIN": "local",
                       "GOFLAGS": "-mod=readonly -buildvcs=false -trimpath"}
        new = self.folder / f"{name}.new"
        flags = " ".join(["-s -w", *(f"-X {variable}={value}" for variable, value in self.versions(name))])
        command = ["go", "build", "-C", HERE, "-ldflags", flags, "-o", new, *(["-tags", "seccomp"] if native else []), PACKAGES[name]]
        run(*command, env=environment)
        new.rename(self.folder / name)

    @staticmethod
    def versions(name):
        """The linker flags that set a program's version; without it, clients refuse to talk to the
        program."""
        pinned = dict(line.split()[:2] for line in (HERE / "go.mod").read_text().splitlines() if line.startswith("\t") and " v" in line)
        version = pinned[KUBERNETES]
        major, minor, _ = version.lstrip("v").split(".", 2)
        if PACKAGES[name].startswith(KUBERNETES):
            for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version"):
                yield from ((f"{package}.gitVersion", version), (f"{package}.gitMajor", major), (f"{package}.gitMinor", minor))
        if name == "helm":
            for package in ("helm.sh/helm/v3/pkg/chartutil", "helm.sh/helm/v3/pkg/lint/rules"):
                yield from ((f"{package}.k8sVersionMajor", major), (f"{package}.k8sVersionMinor", minor))


def default_cache():
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "coppice-bed"
