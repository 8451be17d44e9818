"""Wrong wall clocks, for one process at a time.

A time namespace shifts only the monotonic clocks, and setting the machine's clock would affect
others. Therefore a small library is preloaded (`clock.c`, built here with the C compiler that Rust
needs anyway). It adds a number from a file to the process's wall clock. The number can change while
the process runs: then the clock jumps. libfaketime does the same and more, but is not installed
everywhere. etcd is a Go program, which does not ask the C library for the time: its clock stays
right.
"""

import hashlib
import pathlib
import shutil
import struct
import subprocess

_SOURCE = pathlib.Path(__file__).with_name("clock.c")


class Clocks:
    """The shift of each process's wall clock, in a file of its own."""

    def __init__(self, tools, directory):
        name = hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:12]
        self.library = pathlib.Path(tools) / f"clock-{name}.so"
        if not self.library.exists():
            self.library.parent.mkdir(parents=True, exist_ok=True)
            half = self.library.with_suffix(".half")
            command = ["cc", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", half, _SOURCE, "-ldl"]
            if not shutil.which("cc"):
                raise OSError("there is no C compiler `cc` for clock.c: install one (Debian: apt install gcc)")
            subprocess.run(command, check=True)
            half.rename(self.library)
        self.directory = pathlib.Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)

    def environment(self, place):
        """The environment of a process whose clock can be shifted."""
        path = self.directory / place
        if not path.exists():
            path.write_bytes(struct.pack("=q", 0))
        return {"LD_PRELOAD": str(self.library), "CLOCK_SHIFT_FILE": str(path)}

    def shift(self, place, seconds):
        """Sets a process's clock this many seconds ahead of the machine's (or behind, if
        negative)."""
        # The file is overwritten in place, since the process has mapped it.
        with open(self.directory / place, "r+b") as file:
            file.write(struct.pack("=q", int(seconds * 1e9)))
