#!/usr/bin/env python3
"""`make bench-cluster`: compares Coppice with etcd, immudb and Tessera on this machine, in one run.

All systems get the same records (keys of 32 B; values of 1 KiB and 256 B), the same durability (on
disk before the answer) and the same number of client connections, each through its own official
client. Every round starts every system fresh; figures are medians over the rounds. Batches have 1,
100 and 1,000 records; etcd writes larger batches than 1 in transactions of 128 puts. Coppice
returns a receipt with each commit. Where receipts are compared with Tessera's proofs, clients of
both verify them. The results and their conditions are written to `report.json`, `report.md` and
plots. They hold for this machine only.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import time

from harness import goals as targets
from harness import plots
from harness.cluster import ROOT, Failure, build_go
from harness.goals import CROWD, LINEARIZABLE, MANY, RECEIPTS, SHARED, TEN, VERIFIED, median
from harness.processes import cpu_seconds
from harness.run import Run, processor, settle_disk
from harness.systems import Coppice, EtcdSystem, Immudb, Tessera

# Records of a batch: clients that send batches of this size.
BATCHES = {1: 64, 100: 16, 1000: 4}
VALUES = (1024, 256)
READERS = 16
# Clients that wait for receipts. Tessera also gets a crowd, since its entries wait for a
# checkpoint.
RECEIVERS = 64
CROWD_CLIENTS = 1024
# Rows of long steps that a half-load cell prints; the report has all of them.
STEPS_SHOWN = 8
TOOLS = (("etcd", "scripts/etcd"), ("etcd-drive", "loadtest/etcd"), ("immudb", "loadtest/immudb", "./server"),
         ("immudb-drive", "loadtest/immudb"), ("tessera", "loadtest/tessera", "./server"), ("tessera-drive", "loadtest/tessera"))
# The work that systems do for an answer, by the first words of their names.
FACTS = {
    "Coppice": ("one batch, one version", "on disk of a majority", "receipts of commits, presence and absence of keys at each version",
                "defaults; one coordinator"),
    "immudb": ("SetAll; Set of one record", "its log is synced (the default)",
               "VerifiedGet proves presence under its newest state; writes are not verified", "defaults; no SQL, web or metrics server"),
    "etcd": ("a put; larger batches in transactions of 128 puts", "its log is synced on a majority", "nothing; reads are linearizable",
             "defaults"),
    "Tessera": ("one entry; the answer waits for a signed checkpoint that covers it", "entries, tiles and checkpoint are synced",
                "the entry's inclusion under the checkpoint; both are verified by the client",
                "POSIX driver; checkpoints each 100 ms (its least), batches of up to 4,096 entries or 50 ms, no antispam, the server "
                "makes the proof from tiles in memory"),
}


class Bench(Run):
    """One comparison."""

    def __init__(self, options):
        super().__init__(options.directory)
        self.options = options
        self.cells = {}
        self.loads = []

    def systems(self):
        """Constructors of the systems, in the order in which a round runs them."""
        binaries = self.options.binaries
        all_ = {
            "Coppice 1 x 1": lambda: Coppice(self.fresh("coppice-1"), binaries, 1),
            "Coppice 1 x 1 in one process": lambda: Coppice(self.fresh("coppice-serve"), binaries, 1, coordinators=0),
            "immudb 1": lambda: Immudb(self.fresh("immudb-1")),
            "etcd 1": lambda: EtcdSystem(self.fresh("etcd-1"), 1),
            "Coppice 1 x 3": lambda: Coppice(self.fresh("coppice-3"), binaries, 3),
            "etcd 3": lambda: EtcdSystem(self.fresh("etcd-3"), 3),
            "Tessera 1": lambda: Tessera(self.fresh("tessera")),
        }
        if base := self.options.base:
            all_ |= {
                f"Coppice 1 x {replicas} before": lambda replicas=replicas: Coppice(
                    self.fresh(f"coppice-{replicas}-before"), base, replicas, driver=binaries / "coppice-bench")
                for replicas in (1, 3)
            }
        return {name: make for name, make in all_.items() if not self.options.only or self.options.only in name}

    def drive(self, system, **load):
        """Runs a driver. Returns its figures, with the CPU time and bytes of the servers during the
        run."""
        load = {"seconds": self.options.seconds, "warmup": self.options.warmup, **load}
        command = [*system.driver()]
        for name, value in load.items():
            command += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
        child = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, text=True)
        before = after = None
        for line in child.stdout:
            event = json.loads(line)
            if event.get("event") == "begin":
                before = system.usage(), cpu_seconds(child.pid)
            elif event.get("event") == "end":
                after = system.usage(), cpu_seconds(child.pid)
        if child.wait() != 0 or before is None or after is None:
            raise Failure(f"the driver of {system.name} failed: {' '.join(map(str, command))}")
        event |= costs(before, after, max(event["records"], 1))
        if event["errors"]:
            self.say(f"  {event['errors']} errors, the first: {event['first_error']}")
        return event

    def note(self, system, what, event):
        self.cells.setdefault(system, {}).setdefault(what, []).append(event)
        latency = event["latency_us"]
        self.say(f"  {what}: {event['records_per_second']:,.0f} records/s, p50 {latency['p50'] / 1000:.1f} ms, "
                 f"p99 {latency['p99'] / 1000:.1f} ms, {event['cpu_us_per_record']:.0f} us CPU and "
                 f"{event['disk_bytes_per_record']:,.0f} B on disk a record")

    def say_steps(self, rows):
        """Prints how many long steps there were, and the longest ones."""
        if rows:
            self.say(f"    {len(rows)} steps of over 3 ms, the longest:")
        for row in sorted(rows, key=step_ms, reverse=True)[:STEPS_SHOWN]:
            print(f"               {row}", flush=True)

    def wanted(self, what):
        return not self.options.load or self.options.load in what

    def measure(self, name, system, what, **load):
        """Measures one load, unless it is left out. Returns the driver's figures, or None."""
        if not self.wanted(what):
            return None
        event = self.drive(system, **load)
        self.note(name, what, event)
        return event

    def round(self, name, make):
        system = make()
        self.say(name)
        settle_disk()
        try:
            system.start()
            if isinstance(system, Tessera):
                self.appends(name, system)
                return
            # A single client writes every key of a range; these keys are read at the end.
            event = self.drive(system, clients=1, batch=1000, value_bytes=VALUES[0])
            first, keys = event["next_key"], event["next_key"] - 1000
            first = self.writes(name, system, first)
            if isinstance(system, Coppice):
                self.measure(name, system, RECEIPTS, clients=RECEIVERS, first=first, verify=True)
            self.reads(name, system, keys)
        finally:
            system.stop()
            shutil.rmtree(system.directory, ignore_errors=True)

    def writes(self, name, system, first):
        """Batches of each size at full load, and at half of the rate that was reached. Returns the
        number of the first key that was not written."""
        for value in VALUES:
            for batch, clients in BATCHES.items():
                load = {"clients": clients, "batch": batch, "value_bytes": value}
                what = f"{batch} x {value} B"
                if not self.wanted(f"write {what}") and not self.wanted(f"half load {what}"):
                    continue
                event = self.drive(system, first=first, **load)
                first = event["next_key"]
                self.note(name, f"write {what}", event)
                rate = event["calls"] / event["seconds"] / 2
                if value != VALUES[0] or rate == 0:
                    continue
                system.long_steps()
                event = self.drive(system, first=first, mode="open", rate=rate, **load)
                first = event["next_key"]
                event["long_steps"] = system.long_steps()
                self.note(name, f"half load {what}", event)
                self.say_steps(event["long_steps"])
        return first

    def reads(self, name, system, keys):
        """Reads of keys that are there: proven ones, of systems that can prove them."""
        kind = LINEARIZABLE if isinstance(system, EtcdSystem) else VERIFIED
        reads = {"clients": READERS, "mode": "read", "keys": keys}
        self.measure(name, system, kind, **reads)
        if isinstance(system, Immudb):
            return
        self.measure(name, system, kind + SHARED, connections=4, **reads)
        self.measure(name, system, kind + TEN, batch=10, **reads)
        if isinstance(system, Coppice):
            self.measure(name, system, kind + MANY, **reads | {"batch": 2000, "clients": 1})

    def appends(self, name, system):
        """Appends to a log, each with its proof."""
        event = self.measure(name, system, RECEIPTS, clients=RECEIVERS)
        first = event["next_key"] if event else 0
        self.measure(name, system, RECEIPTS + CROWD, clients=CROWD_CLIENTS, first=first)

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
            if not self.options.load:
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


def costs(before, after, records):
    """Returns the costs of a record. `before` and `after` are pairs: the usage of the servers, and
    the CPU seconds of the driver."""
    (servers, driver), (later, driver_later) = before, after
    split = {kind: (seconds - servers.cpu.get(kind, 0)) * 1e6 / records for kind, seconds in later.cpu.items()}
    return {
        "cpu_us_per_record": sum(split.values()),
        "cpu_us_by_process": split | {"driver": (driver_later - driver) * 1e6 / records},
        "io_bytes_per_record": (later.written - servers.written) / records,
        "disk_bytes_per_record": (later.disk - servers.disk) / records,
    }


def step_ms(row):
    """The length of a step, from its row."""
    return float(re.search(r"([0-9.]+) ms:", row)[1])


def goals(cells, ceiling):
    return targets.goals(cells, ceiling, VALUES, BATCHES)


def conditions(bench):
    return {
        "cpu": processor(), "cores": os.cpu_count(), "kernel": os.uname().release, "seconds": bench.options.seconds,
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
        "# Coppice beside its peers", "",
        "Conditions: " + ", ".join(f"{name} {value}" for name, value in result["conditions"].items()) + ".", "",
        f"The machine: append 4 KiB + fdatasync p50 {fsync['p50'] / 1000:.2f} ms, p99 {fsync['p99'] / 1000:.2f} ms; sequential write "
        f"{ceiling['sequential_write_mb_per_second']:.0f} MB/s; SHA-256 of 1 KiB {ceiling['sha256_1k_mb_per_second']:.0f} MB/s a core.",
        "", "CPU and bytes are the servers' (not the clients'). The parts of CPU are all processes of a kind together, and the driver "
        "with its clients. Disk bytes are those of the whole device meanwhile; /proc/PID/io counts a whole folio of the page cache, up "
        "to a MiB, for every write into it.",
        "", "| system | what | records/s | p50 ms | p99 ms | p99.9 ms | CPU us a record | of which | disk bytes a record "
        "| /proc io bytes a record | errors |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    gaps = []
    for system, whats in cells.items():
        for what, events in whats.items():
            if what == "killed leader":
                gaps.append(f"| {system} | {median(events, 'gap_ms'):.0f} |")
                continue
            latency = [f"{median(events, 'latency_us', part) / 1000:.2f}" for part in ("p50", "p99", "p999")]
            split = ", ".join(f"{kind} {median(events, 'cpu_us_by_process', kind):.0f}" for kind in events[0]["cpu_us_by_process"])
            lines.append(f"| {system} | {what} | {median(events, 'records_per_second'):,.0f} | {' | '.join(latency)} | "
                         f"{median(events, 'cpu_us_per_record'):.0f} | {split} | {median(events, 'disk_bytes_per_record'):,.0f} | "
                         f"{median(events, 'io_bytes_per_record'):,.0f} | "
                         f"{sum(event['errors'] for event in events)} |")
    if gaps:
        lines += ["", "| killed leader | ms without commits |", "| --- | --- |", *gaps]
    lines += ["", "| goal | reached | holds |", "| --- | --- | --- |"]
    lines += [f"| {row['goal']} | {row['reached']} | {'yes' if row['holds'] else '**no**'} |" for row in result["goals"]]
    lines += ["", "| what is compared | a write | durable before the answer | proven | settings |", "| --- | --- | --- | --- | --- |"]
    lines += [f"| {name} | {' | '.join(facts)} |" for name, facts in FACTS.items() if any(system.startswith(name) for system in cells)]
    return "\n".join(lines) + "\n"


def parse():
    quick = bool(os.environ.get("QUICK"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1 if quick else 3)
    parser.add_argument("--seconds", type=float, default=2 if quick else 4, help="measured seconds of each load")
    parser.add_argument("--warmup", type=float, default=0.7 if quick else 1)
    parser.add_argument("--only", help="only systems whose name contains this")
    parser.add_argument("--load", help="only loads whose name contains this")
    parser.add_argument("--binaries", type=pathlib.Path, default=ROOT / "target" / "release")
    parser.add_argument("--base", type=pathlib.Path, metavar="DIR",
                        help="servers of an earlier build, measured as `before`; drivers are of this build")
    parser.add_argument("--directory", default=ROOT / "target" / "bench-cluster")
    return parser.parse_args()


def main():
    options = parse()
    options.binaries = options.binaries.resolve()
    options.base = options.base and options.base.resolve()
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
