#!/usr/bin/env python3
"""Measures how fast a replica that lost its disk is refilled while commits go on, in relation to
the disk's speed.

Three nodes with one shard run release binaries (`make release`, and `cargo build --release --locked
--bin coppice-bench`). The shard is loaded with values, a node is killed and its directory emptied.
The node is started again while clients write at half of their former rate. The rate of its snapshot
is compared with that of a file that is written sequentially and synced, before and after.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

from harness.cluster import ROOT, Cluster, Failure, well
from harness.network import Loopback
from harness.processes import wait_until

NODES = ("node-1", "node-2", "node-3")
LOST = "node-3"
COORDINATOR = "coordinator-1"
FETCHED = re.compile(r"a snapshot was fetched and checked.*?group=(\S+).*?sent=(\d+) held=(\d+) fetch_ms=(\d+) check_ms=(\d+)")


def disk_rate(directory, size=1 << 30, block=1 << 20):
    """Bytes a second of one file, written and synced."""
    path = pathlib.Path(directory) / "sequential"
    data = os.urandom(block)
    began = time.monotonic()
    with open(path, "wb", buffering=0) as file:
        for _ in range(size // block):
            file.write(data)
        os.fsync(file.fileno())
    took = time.monotonic() - began
    path.unlink()
    return size / took


class Load:
    """A running driver."""

    def __init__(self, cluster, **load):
        command = [cluster.binaries / "coppice-bench", "drive", "--endpoints", ",".join(cluster.endpoints()), "--key", cluster.vkey]
        for name, value in load.items():
            command += [f"--{name.replace('_', '-')}", value]
        self.child = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, text=True)

    def result(self):
        events = [json.loads(line) for line in self.child.stdout]
        if self.child.wait() != 0:
            raise Failure("the driver failed")
        return next(event for event in events if "records" in event)


def measure(options, directory):
    cluster = Cluster(Loopback([*NODES, COORDINATOR]), directory / "cluster", options.binaries, nodes=NODES,
                      coordinators=[COORDINATOR], ledger={"shards": 1}, settings={"coordinator": {"log": "warn"}})
    before = disk_rate(directory)
    cluster.start(NODES[0])
    try:
        wait_until(lambda: well(cluster.status(NODES[0]), len(NODES)), 60, "leaders of all groups")
        shape = {"clients": 4, "batch": 16, "value_bytes": options.value_bytes}
        first, rate = 0, 0
        while first * options.value_bytes < options.gigabytes * 1e9:
            done = Load(cluster, **shape, seconds=4, warmup=0, first=first).result()
            first, rate = done["next_key"], done["records_per_second"] / shape["batch"]
        cluster.form_no_more()
        cluster.processes[LOST].kill()
        shutil.rmtree(cluster.node_directories[LOST])
        load = Load(cluster, **shape, mode="open", rate=rate / 2, seconds=options.seconds, warmup=0, first=1 << 40)
        began = time.monotonic()
        cluster.processes[LOST].start()
        plain = re.compile(r"\x1b\[[0-9;]*m")

        def shard():
            log = plain.sub("", cluster.processes[LOST].log.read_text(errors="replace"))
            return next((match for match in FETCHED.finditer(log) if match[1] != "root"), None)

        match = wait_until(shard, options.seconds, "the shard's snapshot")
        wait_until(lambda: well(cluster.status(NODES[0]), len(NODES)), options.seconds, "a vote of the new replica")
        whole = time.monotonic() - began
        during = load.result()
    finally:
        cluster.kill()
    after = disk_rate(directory)
    sent, held, fetch, check = (int(match[part]) for part in range(2, 6))
    latency = during["latency_us"]
    print(f"loaded: {first * options.value_bytes / 1e9:.2f} GB of values of {options.value_bytes} B")
    print(f"the disk, one file: {before / 1e6:.0f} MB/s before, {after / 1e6:.0f} MB/s after")
    print(f"fetched: {sent / 1e6:.0f} MB in {fetch / 1000:.1f} s, {sent / 1e3 / max(fetch, 1):.0f} MB/s; {held / 1e6:.0f} MB were there")
    print(f"checked: in {check / 1000:.1f} s, {(sent + held) / 1e3 / max(check, 1):.0f} MB/s")
    print(f"from the start of the process to its vote: {whole:.1f} s")
    print(f"meanwhile: {during['records_per_second'] * options.value_bytes / 1e6:.0f} MB/s written at half of the rate before, "
          f"p50 {latency['p50'] / 1000:.1f} ms, p99 {latency['p99'] / 1000:.1f} ms, {during['errors']} errors")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--value-bytes", type=int, default=16384)
    parser.add_argument("--seconds", type=float, default=60, help="how long clients write meanwhile, and the time limit")
    parser.add_argument("--binaries", type=pathlib.Path, default=ROOT / "target" / "release")
    options = parser.parse_args()
    directory = pathlib.Path(tempfile.mkdtemp(prefix="refill-", dir=ROOT / "target"))
    try:
        measure(options, directory)
    except (Failure, TimeoutError) as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
