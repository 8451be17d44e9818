#!/usr/bin/env python3
"""Measures the cost of default telemetry in the path of a commit, part by part.

Three nodes, two shards and a coordinator run as processes, without a collector; clients commit
single records. The processes' own metrics say how often each kind of event was recorded.
`cluster/process/examples/telemetry.rs` says what one such event costs. The sum is compared with the
processor time that the processes used for these commits. A busy machine hardly affects processor
time. Build with `make release` and `cargo build --release --workspace --bin coppice-bench --example
telemetry`.
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
import urllib.request

from harness.cluster import HEALTH_PORT, ROOT, Cluster, Failure, well
from harness.network import Loopback
from harness.processes import wait_until

NODES = ("node-1", "node-2", "node-3")
COORDINATOR = "coordinator-1"
# An upper bound on the polls of a version's preparation and decision: more than it has calls to
# wait for.
POLLS_OF_A_VERSION = 40
# Number of checks by the leader whether a command is traced: when it is proposed, committed and
# applied.
LOOKS_AT_A_TRACE = 6
SCRAPES = 100
SCRAPE_INTERVAL_SECONDS = 15
SAMPLE = re.compile(r"^(\w+)(?:{(.*)})? (\S+)$", re.MULTILINE)


class Run:
    """A cluster under load."""

    def __init__(self, directory, binaries):
        self.network = Loopback([*NODES, COORDINATOR])
        self.cluster = Cluster(self.network, directory / "cluster", binaries, nodes=NODES, coordinators=[COORDINATOR],
                               ledger={"splits": ["m"]})

    def scrape(self, place):
        with urllib.request.urlopen(f"http://{self.network.address(place)}:{HEALTH_PORT}/metrics", timeout=10) as answer:
            return answer.read().decode()

    def recorded(self):
        """Sums over all processes: by name, and by name and outcome or stage where a metric has
        one."""
        sums = {}
        for place in self.cluster.processes:
            side = "coordinator" if place == COORDINATOR else "node"
            for name, labels, value in SAMPLE.findall(self.scrape(place)):
                part = re.search(r'(?:outcome|stage)="(\w+)"', labels)
                for key in {name, f"{side}/{name}", f"{name}/{part[1]}" if part else name}:
                    sums[key] = sums.get(key, 0) + float(value)
        return sums

    def processor_seconds(self):
        def of(process):
            fields = pathlib.Path(f"/proc/{process.child.pid}/stat").read_text().rsplit(") ", 1)[1].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

        return sum(of(process) for process in self.cluster.processes.values())

    def drive(self, clients, seconds):
        command = [self.cluster.binaries / "coppice-bench", "drive", "--endpoints", self.cluster.endpoint(COORDINATOR), "--key", self.cluster.vkey,
                   "--clients", clients, "--batch", 1, "--value-bytes", 1024, "--seconds", seconds, "--warmup", 0]
        subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL)

    def measure(self, clients, seconds):
        """The metrics' growth during the load, and the processor time of the load and of one
        look at all metrics."""
        self.cluster.start(NODES[0])
        try:
            wait_until(lambda: well(self.cluster.status(NODES[0]), len(NODES)), 60, "leaders of all groups")
            before, began = self.recorded(), self.processor_seconds()
            self.drive(clients, seconds)
            load, after = self.processor_seconds() - began, self.recorded()
            began = self.processor_seconds()
            for _ in range(SCRAPES):
                self.recorded()
            look = (self.processor_seconds() - began) / SCRAPES
        finally:
            self.cluster.kill()
        return {name: value - before.get(name, 0) for name, value in after.items()}, load, look


def account(recorded, costs):
    """How often each part occurred, and its cost in ns."""
    def times(name):
        return recorded.get(name, 0)

    versions, commands = times("coppice_commit_versions_total"), times("coppice_raft_proposals_total")
    events = sum(value for name, value in recorded.items() if re.fullmatch(r"coppice_engine_\w+(?<!_bytes)_total", name))
    return [
        ("calls that were served, counted and timed", times("rpc_server_call_duration_seconds_count"), costs["served_call"]),
        ("calls that were made, asked for a trace", times("node/rpc_server_call_duration_seconds_count"), costs["made_call"]),
        ("durations of commits", times("coppice_commit_duration_seconds_count"), costs["duration"]),
        ("durations of their stages", times("coppice_commit_stage_duration_seconds_count"), costs["duration_of_stage"]),
        ("outcomes of batches", times("coppice_commit_batches_total"), costs["counter_with_label"]),
        ("versions, their records and bytes", 3 * versions, costs["counter"]),
        ("durations of raft's steps and of entries",
         times("coppice_raft_persist_duration_seconds_count") + times("coppice_raft_apply_duration_seconds_count"), costs["duration_of_group"]),
        # Each counted event also adds its bytes.
        ("plain counters of the engine and of raft", 2 * (events + commands), costs["plain_counter"]),
        ("traces that are not there: versions", POLLS_OF_A_VERSION * versions, costs["poll_with_context"]),
        ("traces that are not there: commands", LOOKS_AT_A_TRACE * commands, costs["made_call"]),
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--binaries", type=pathlib.Path, default=ROOT / "target" / "release")
    options = parser.parse_args()
    directory = pathlib.Path(tempfile.mkdtemp(prefix="telemetry-", dir=ROOT / "target"))
    try:
        costs = json.loads(subprocess.run([options.binaries / "examples" / "telemetry"], check=True, stdout=subprocess.PIPE).stdout)
        recorded, load, look = Run(directory, options.binaries).measure(options.clients, options.seconds)
    except (Failure, TimeoutError, subprocess.CalledProcessError) as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    batches = recorded["coppice_commit_batches_total/committed"]
    whole = load * 1e9 / batches
    print(f"{batches:.0f} batches in {recorded['coppice_commit_versions_total']:.0f} versions, {whole / 1e3:.1f} us of processor time each\n")
    print("| part | a batch | ns each | us a batch | share |\n| --- | --- | --- | --- | --- |")
    total = 0
    for part, times, cost in account(recorded, costs):
        total += times * cost / batches
        print(f"| {part} | {times / batches:.2f} | {cost:.0f} | {times * cost / batches / 1e3:.2f} | {times * cost / batches / whole:.2%} |")
    scraped = look * 1e9 / SCRAPE_INTERVAL_SECONDS * options.seconds / batches
    print(f"| all metrics looked at every {SCRAPE_INTERVAL_SECONDS} s, {look * 1e3:.1f} ms | | | {scraped / 1e3:.2f} | {scraped / whole:.2%} |")
    print(f"| **all** | | | {(total + scraped) / 1e3:.2f} | **{(total + scraped) / whole:.2%}** |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
