#!/usr/bin/env python3
"""`make bench-cluster`: compares Coppice with etcd and immudb on this machine, in one run.

All systems get the same records (keys of 32 B; values of 1 KiB and 256 B), the same durability (on
disk before the answer) and the same number of client connections, each through its own official
client. Every round starts every system fresh; figures are medians over the rounds. Batches have 1,
100 and 1,000 records; etcd writes larger batches than 1 in transactions of 128 puts. Coppice
returns a receipt with each commit. The results and their conditions are written to `report.json`,
`report.md` and plots. They hold for this machine only.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time

from harness import plots
from harness.cluster import ROOT, Failure, build_go
from harness.processes import wait_until
from harness.systems import Coppice, EtcdSystem, Immudb

# Records of a batch: clients that send batches of this size.
BATCHES = {1: 64, 100: 16, 1000: 4}
VALUES = (1024, 256)
READERS = 16
TOOLS = (("etcd", "scripts/etcd"), ("etcd-drive", "loadtest/etcd"), ("immudb", "loadtest/immudb", "./server"),
         ("immudb-drive", "loadtest/immudb"))


class Bench:
    """One comparison."""

    def __init__(self, options):
        self.options = options
        self.directory = pathlib.Path(options.directory).resolve()
        self.cells = {}
        self.began = time.monotonic()
        self.loads = []

    def say(self, text):
        print(f"[{time.monotonic() - self.began:6.1f}] {text}", flush=True)

    def fresh(self, name):
        path = self.directory / "data" / name
        if path.exists():
            shutil.rmtree(path)
        return path

    def systems(self):
        """Constructors of the systems, in the order in which a round runs them."""
        binaries = self.options.binaries
        all_ = {
            "Coppice 1 x 1": lambda: Coppice(self.fresh("coppice-1"), binaries, 1),
            "immudb 1": lambda: Immudb(self.fresh("immudb-1")),
            "etcd 1": lambda: EtcdSystem(self.fresh("etcd-1"), 1),
            "Coppice 1 x 3": lambda: Coppice(self.fresh("coppice-3"), binaries, 3),
            "etcd 3": lambda: EtcdSystem(self.fresh("etcd-3"), 3),
        }
        return {name: make for name, make in all_.items() if not self.options.only or self.options.only in name}

    def drive(self, system, **load):
        """Runs a driver. Returns its figures, with the CPU time and bytes of the servers during the
        run."""
        load = {"seconds": self.options.seconds, "warmup": self.options.warmup, **load}
        command = [*system.driver()]
        for name, value in load.items():
            command += [f"--{name.replace('_', '-')}", str(value)]
        child = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, text=True)
        before = after = None
        for line in child.stdout:
            event = json.loads(line)
            if event.get("event") == "begin":
                before = system.usage()
            elif event.get("event") == "end":
                after = system.usage()
        if child.wait() != 0 or before is None or after is None:
            raise Failure(f"the driver of {system.name} failed: {' '.join(map(str, command))}")
        records = max(event["records"], 1)
        event["cpu_us_per_record"] = (after[0] - before[0]) * 1e6 / records
        event["io_bytes_per_record"] = (after[1] - before[1]) / records
        event["disk_bytes_per_record"] = (after[2] - before[2]) / records
        if event["errors"]:
            self.say(f"  {event['errors']} errors, the first: {event['first_error']}")
        return event

    def note(self, system, what, event):
        self.cells.setdefault(system, {}).setdefault(what, []).append(event)
        latency = event["latency_us"]
        self.say(f"  {what}: {event['records_per_second']:,.0f} records/s, p50 {latency['p50'] / 1000:.1f} ms, "
                 f"p99 {latency['p99'] / 1000:.1f} ms, {event['cpu_us_per_record']:.0f} us CPU and "
                 f"{event['disk_bytes_per_record']:,.0f} B on disk a record")

    def round(self, name, make):
        system = make()
        self.say(name)
        settle_disk()
        try:
            system.start()
            # A single client writes every key of a range; these keys are read at the end.
            event = self.drive(system, clients=1, batch=1000, value_bytes=VALUES[0])
            first, keys = event["next_key"], event["next_key"] - 1000
            for value in VALUES:
                for batch, clients in BATCHES.items():
                    event = self.drive(system, clients=clients, batch=batch, value_bytes=value, first=first)
                    first = event["next_key"]
                    self.note(name, f"write {batch} x {value} B", event)
                    if value != VALUES[0]:
                        continue
                    rate = event["calls"] / event["seconds"] / 2
                    if rate > 0:
                        event = self.drive(system, clients=clients, batch=batch, value_bytes=value, first=first, mode="open",
                                           rate=rate)
                        first = event["next_key"]
                        self.note(name, f"half load {batch} x {value} B", event)
            event = self.drive(system, clients=READERS, mode="read", keys=keys)
            self.note(name, "verified reads" if not name.startswith("etcd") else "linearizable reads", event)
        finally:
            system.stop()
        shutil.rmtree(system.directory, ignore_errors=True)

    def failover(self, name, make, victim):
        """Kills the leader under load; returns the time in which no batch was acknowledged."""
        system = make()
        settle_disk()
        try:
            system.start()
            command = [*system.driver(), "--clients", "8", "--seconds", "12", "--warmup", "1"]
            child = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, text=True)
            event = None
            for line in child.stdout:
                event = json.loads(line)
                if event.get("event") == "begin":
                    time.sleep(2)
                    victim(system).kill()
            child.wait()
            self.cells.setdefault(name, {}).setdefault("killed leader", []).append(event)
            self.say(f"{name}: {event['gap_ms']:.0f} ms without commits after the leader was killed")
        finally:
            system.stop()
        shutil.rmtree(system.directory, ignore_errors=True)

    def spread(self):
        """Measures versions that touch one shard, in a ledger of 2 shards and in one of 64."""
        for shards in (2, 64):
            name = f"Coppice {shards} x 1"
            system = Coppice(self.fresh(f"coppice-{shards}-shards"), self.options.binaries, 1, shards=shards)
            self.say(name)
            settle_disk()
            try:
                system.start()
                self.note(name, "one shard touched, 1 client", self.drive(system, clients=1))
                self.note(name, "one shard touched, 16 clients", self.drive(system, clients=16, first=1 << 40))
            finally:
                system.stop()
            shutil.rmtree(system.directory, ignore_errors=True)

    def ceiling(self):
        command = [self.options.binaries / "coppice-bench", "ceiling", "--dir", self.directory, "--seconds",
                   str(min(self.options.seconds, 3))]
        return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    def run(self):
        self.directory.mkdir(parents=True, exist_ok=True)
        # Before anything is measured.
        for tool in TOOLS:
            build_go(*tool)
        ceilings = [self.ceiling()]
        for number in range(self.options.rounds):
            self.say(f"round {number + 1} of {self.options.rounds}; load {os.getloadavg()[0]:.1f}")
            for name, make in self.systems().items():
                self.loads.append(os.getloadavg()[0])
                self.round(name, make)
            self.spread()
            self.failovers()
            ceilings.append(self.ceiling())
        return report(self, ceilings)

    def failovers(self):
        binaries = self.options.binaries
        if self.options.only:
            return
        self.failover("etcd 3", lambda: EtcdSystem(self.fresh("etcd-3"), 3), lambda system: system.leader())
        self.failover("Coppice 1 x 3", lambda: Coppice(self.fresh("coppice-3"), binaries, 3), lambda system: system.leader())
        self.failover("Coppice 1 x 3, 3 coordinators",
                      lambda: Coppice(self.fresh("coppice-33"), binaries, 3, coordinators=3),
                      lambda system: system.leading_coordinator())


def settle_disk():
    """Waits until the disk has written the data that builds or the last system left behind, so that
    it does not write during the next measurement."""
    os.sync()


def median(events, *path):
    def pick(event):
        for name in path:
            event = event[name]
        return event

    return statistics.median(pick(event) for event in events)


def goals(cells, ceiling):
    """(goal, measured value, whether the goal holds) for each goal that was measured."""
    def rate(system, what):
        events = cells.get(system, {}).get(what)
        return median(events, "records_per_second") if events else None

    def ratio(left, right, what, least):
        mine, other = rate(left, what), rate(right, what)
        if not mine or not other:
            return None
        return f"{left} >= {least} x {right}, {what}", f"{mine / other:.2f} x", mine / other >= least

    rows = []
    for value in VALUES:
        thousand, one = f"write 1000 x {value} B", f"write 1 x {value} B"
        rows += [
            ratio("Coppice 1 x 1", "immudb 1", thousand, 3), ratio("Coppice 1 x 3", "immudb 1", thousand, 1.2),
            ratio("Coppice 1 x 3", "etcd 3", thousand, 4), ratio("Coppice 1 x 1", "etcd 1", one, 1),
            ratio("Coppice 1 x 3", "etcd 3", one, 1),
        ]
    limit = 3 * ceiling["append_4k_fdatasync_us"]["p99"] / 1000 + 5
    for system in ("Coppice 1 x 1", "Coppice 1 x 3"):
        for batch in BATCHES:
            events = cells.get(system, {}).get(f"half load {batch} x {VALUES[0]} B")
            if events and median(events, "calls"):
                reached = median(events, "latency_us", "p99") / 1000
                rows.append((f"{system}, batches of {batch}: p99 at half load <= {limit:.1f} ms (3 x fdatasync p99 + 5 ms)",
                             f"{reached:.1f} ms", reached <= limit))
    two, many = (cells.get(f"Coppice {shards} x 1", {}).get("one shard touched, 1 client") for shards in (2, 64))
    if two and many and median(two, "calls") and median(many, "calls"):
        part = median(many, "latency_us", "p50") / max(median(two, "latency_us", "p50"), 1)
        rows.append(("a version that touches 1 of 64 shards takes as long as with 1 of 2 (within a fifth)", f"{part:.2f} x",
                     part <= 1.2))
    gap = cells.get("Coppice 1 x 3, 3 coordinators", {}).get("killed leader")
    if gap:
        rows.append(("commits resume within 3 s after the leading coordinator is killed", f"{median(gap, 'gap_ms'):.0f} ms",
                     median(gap, "gap_ms") <= 3000))
    return [row for row in rows if row]


def conditions(bench):
    model = next((line.split(":")[1].strip() for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()
                  if line.startswith("model name")), "unknown")
    return {
        "cpu": model, "cores": os.cpu_count(), "kernel": os.uname().release, "seconds": bench.options.seconds,
        "warmup": bench.options.warmup, "rounds": bench.options.rounds, "build": bench.options.binaries.name,
        "load_before_each_system": [round(load, 1) for load in bench.loads],
        "clients_by_batch": BATCHES, "readers": READERS,
    }


def report(bench, ceilings):
    cells = bench.cells
    ceiling = {"append_4k_fdatasync_us": {
        part: statistics.median(one["append_4k_fdatasync_us"][part] for one in ceilings) for part in ("p50", "p99", "p999")}}
    for name in ("sequential_write_mb_per_second", "sha256_1k_mb_per_second", "sha256_64_mb_per_second"):
        ceiling[name] = statistics.median(one[name] for one in ceilings)
    reached = goals(cells, ceiling)
    result = {"conditions": conditions(bench), "ceiling": ceiling, "ceilings": ceilings, "cells": cells,
              "goals": [{"goal": goal, "reached": figure, "holds": holds} for goal, figure, holds in reached]}
    (bench.directory / "report.json").write_text(json.dumps(result, indent=1) + "\n")
    (bench.directory / "report.md").write_text(readable(result))
    plots.write(bench.directory, cells)
    return result


def readable(result):
    cells, ceiling = result["cells"], result["ceiling"]
    fsync = ceiling["append_4k_fdatasync_us"]
    lines = [
        "# Coppice beside etcd and immudb", "",
        "Conditions: " + ", ".join(f"{name} {value}" for name, value in result["conditions"].items()) + ".", "",
        f"The machine: append 4 KiB + fdatasync p50 {fsync['p50'] / 1000:.2f} ms, p99 {fsync['p99'] / 1000:.2f} ms; sequential write "
        f"{ceiling['sequential_write_mb_per_second']:.0f} MB/s; SHA-256 of 1 KiB {ceiling['sha256_1k_mb_per_second']:.0f} MB/s a core.",
        "", "CPU and bytes are the servers' (not the clients'). Disk bytes are those of the whole device meanwhile; /proc/PID/io counts a whole "
        "folio of the page cache, up to a MiB, for every write into it.",
        "", "| system | what | records/s | p50 ms | p99 ms | p99.9 ms | CPU us a record | disk bytes a record | /proc io bytes a record | errors |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    gaps = []
    for system, whats in cells.items():
        for what, events in whats.items():
            if what == "killed leader":
                gaps.append(f"| {system} | {median(events, 'gap_ms'):.0f} |")
                continue
            latency = [f"{median(events, 'latency_us', part) / 1000:.2f}" for part in ("p50", "p99", "p999")]
            lines.append(f"| {system} | {what} | {median(events, 'records_per_second'):,.0f} | {' | '.join(latency)} | "
                         f"{median(events, 'cpu_us_per_record'):.0f} | {median(events, 'disk_bytes_per_record'):,.0f} | "
                         f"{median(events, 'io_bytes_per_record'):,.0f} | "
                         f"{sum(event['errors'] for event in events)} |")
    if gaps:
        lines += ["", "| killed leader | ms without commits |", "| --- | --- |", *gaps]
    lines += ["", "| goal | reached | holds |", "| --- | --- | --- |"]
    lines += [f"| {row['goal']} | {row['reached']} | {'yes' if row['holds'] else '**no**'} |" for row in result["goals"]]
    return "\n".join(lines) + "\n"


def parse():
    quick = bool(os.environ.get("QUICK"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1 if quick else 3)
    parser.add_argument("--seconds", type=float, default=2 if quick else 4, help="measured seconds of each load")
    parser.add_argument("--warmup", type=float, default=0.7 if quick else 1)
    parser.add_argument("--only", help="only systems whose name contains this")
    parser.add_argument("--binaries", type=pathlib.Path, default=ROOT / "target" / "release")
    parser.add_argument("--directory", default=ROOT / "target" / "bench-cluster")
    return parser.parse_args()


def main():
    options = parse()
    options.binaries = options.binaries.resolve()
    try:
        result = Bench(options).run()
    except (Failure, TimeoutError, subprocess.SubprocessError, OSError) as error:
        print(f"bench-cluster: {error}", file=sys.stderr)
        return 1
    print(readable(result))
    print(f"{options.directory}/report.json, report.md and plots")
    return 0


if __name__ == "__main__":
    sys.exit(main())
