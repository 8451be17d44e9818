"""The programs of a release: for Linux on x86-64 with glibc 2.28 or newer, with manual pages and
completions; and the image of them.

zig has the C library's symbols as of each of its releases, so that its linker takes none that is
newer. The Python package `ziglang` is zig, and cargo-zigbuild tells Cargo to use it.
"""

import os
import re
import shutil
import sys

from common import ROOT, TOOLS, epoch, files_of, output, python_tools, run, version, write_archive

sys.path.insert(0, str(ROOT / "scripts"))
import image  # noqa: E402
import licences  # noqa: E402

# The oldest C library: that of RHEL 8; Debian 10 and Ubuntu 20.04 have no older one.
GLIBC = (2, 28)
TARGET = "x86_64-unknown-linux-gnu"
PROGRAMS = ("coppice", "coppice-shard-node", "coppice-coordinator", "coppice-operator", "coppice-bench")
SHELLS = {
    "bash": "share/bash-completion/completions/coppice",
    "fish": "share/fish/vendor_completions.d/coppice.fish",
    "zsh": "share/zsh/site-functions/_coppice",
}
# Help shows the values of variables, which are this machine's.
BARE = {"LC_ALL": "C.UTF-8", "COLUMNS": "100"}
QUICK = {f"CARGO_PROFILE_RELEASE_{name}": value for name, value in (("OPT_LEVEL", "0"), ("LTO", "off"), ("CODEGEN_UNITS", "16"))}
IMAGE = "ghcr.io/coppice-dev/coppice"


def name():
    return f"coppice-{version()}-x86_64-linux-gnu"


def compiled():
    """Compiles the programs and returns their folder. Cargo sees for itself what is up to date.

    Neither paths of this machine nor times get into the programs. `DIST_QUICK=1` compiles them
    without optimisation, for work on these scripts.
    """
    quick = bool(os.environ.get("DIST_QUICK"))
    tools = python_tools("zig")
    target = ROOT / "target" / ("dist-quick" if quick else "dist-programs")
    cargo = os.environ.get("CARGO_HOME", os.path.expanduser("~/.cargo"))
    moved = {str(ROOT): "/coppice", cargo: "/cargo"}
    environment = os.environ | {
        "PATH": f"{tools / 'bin'}:{os.environ['PATH']}",
        "CARGO_ZIGBUILD_CACHE_DIR": str(TOOLS / "zigbuild"),
        "CARGO_ENCODED_RUSTFLAGS": "\x1f".join(f"--remap-path-prefix={old}={new}" for old, new in moved.items()),
        "CFLAGS": " ".join(f"-ffile-prefix-map={old}={new}" for old, new in moved.items()),
        "CARGO_PROFILE_RELEASE_STRIP": "debuginfo",
        "CARGO_INCREMENTAL": "0",
        "SOURCE_DATE_EPOCH": str(epoch()),
        **(QUICK if quick else {}),
    }
    environment.pop("RUSTFLAGS", None)
    bins = [word for program in PROGRAMS for word in ("--bin", program)]
    run("cargo", "zigbuild", "--locked", "--release", "--target", f"{TARGET}.{GLIBC[0]}.{GLIBC[1]}",
        "--target-dir", target, *bins, env=environment, cwd=ROOT)
    folder = target / TARGET / "release"
    for program in PROGRAMS:
        newest = glibc(folder / program)
        if newest > GLIBC:
            raise SystemExit(f"{program} needs glibc {newest[0]}.{newest[1]}, which is newer than {GLIBC[0]}.{GLIBC[1]}")
    return folder


def glibc(program):
    """The oldest glibc that has all symbols of a program."""
    symbols = output("objdump", "-T", program)
    return max((int(major), int(minor)) for major, minor in re.findall(r"GLIBC_(\d+)\.(\d+)", symbols))


def page(program, told):
    """A manual page of what `--help` tells."""
    about, _, usage = told.partition("\n")
    body = re.sub(r"^([.'])", r"\\&\1", usage.strip("\n").replace("\\", "\\e").replace("-", "\\-"), flags=re.MULTILINE)
    title = program.upper().replace("-", "\\-")
    return (f'.TH "{title}" 1 "" "Coppice {version()}"\n.SH NAME\n{program.replace("-", chr(92) + "-")} \\- {about.rstrip(".")}\n'
            f".SH USAGE\n.nf\n{body}\n.fi\n.SH SEE ALSO\n.BR coppice (1)\n")


def manual(folder, work):
    """Writes the manual pages that programs print or that follow from their help."""
    pages = work / "share" / "man" / "man1"
    pages.mkdir(parents=True)
    run(folder / "coppice", "man", "--out", pages, env=BARE)
    for program in PROGRAMS[1:]:
        (pages / f"{program}.1").write_text(page(program, output(folder / program, "--help", env=BARE)))


def pack(work, out):
    """Makes coppice-VERSION-x86_64-linux-gnu.tar.gz."""
    folder = compiled()
    tree = work / name()
    (tree / "bin").mkdir(parents=True)
    for program in PROGRAMS:
        shutil.copy(folder / program, tree / "bin" / program)
    manual(folder, tree)
    for shell, place in SHELLS.items():
        (tree / place).parent.mkdir(parents=True)
        (tree / place).write_text(output(folder / "coppice", "completions", shell, env=BARE) + "\n")
    for text in ("LICENSE", "README.md", "CHANGELOG.md"):
        shutil.copy(ROOT / text, tree / text)
    (tree / licences.FILE).write_text(licences.third_parties("Cargo.toml", TARGET, PROGRAMS))
    write_archive(out / f"{name()}.tar.gz", files_of(work), {f"{name()}/bin/{program}" for program in PROGRAMS})


def pack_image(work, out):
    """Makes coppice-VERSION-linux-amd64.image.tar, with the same programs."""
    folder = compiled()
    revision = output("git", "-C", ROOT, "rev-parse", "HEAD")
    programs = [folder / program for program in PROGRAMS]
    image.write(out / f"coppice-{version()}-linux-amd64.image.tar", f"{IMAGE}:{version()}", programs, revision)
