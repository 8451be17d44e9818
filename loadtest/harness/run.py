"""What all runs of comparisons have: a directory, a clock, fresh data."""

import os
import pathlib
import shutil
import time


class Run:
    """A run that writes its results to a directory."""

    def __init__(self, directory):
        self.directory = pathlib.Path(directory).resolve()
        self.began = time.monotonic()

    def say(self, text):
        print(f"[{time.monotonic() - self.began:6.1f}] {text}", flush=True)

    def fresh(self, name):
        """A path for data. Nothing is there."""
        path = self.directory / "data" / name
        if path.exists():
            shutil.rmtree(path)
        return path


def settle_disk():
    """Waits until the disk has written the data that builds or the last system left behind, so that
    it does not write during the next measurement."""
    os.sync()


def processor():
    """The model of the processor."""
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown")
