#!/usr/bin/env python3
"""Ledgers of members beside plain batches of the same cluster, and immudb, in one run.

Every figure of a round is measured on a fresh cluster of one node and one coordinator. Journals
have one clue and a payload of 1 KiB; each append comes with its receipt. The goals are floors for a
machine of two cores that clients share. The report, `report.json` and `report.md` in the
directory, has medians over all rounds. QUICK=1 in the environment makes it a short run.
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

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from bench import costs  # noqa: E402
from harness.cluster import ROOT, Failure  # noqa: E402
from harness.processes import cpu_seconds  # noqa: E402
from harness.run import Run, settle_disk  # noqa: E402
from harness.systems import Coppice, Immudb  # noqa: E402

# Name, unit of the figure, floor or ceiling, and the load of `coppice-bench ledger`.
APPENDS = [
    ("append, 100 a signature, 16 clients", "journals/s", 18_000, {"clients": 16, "batch": 100}),
    ("append, 1 a signature, 64 clients", "journals/s", 3_000, {"clients": 64, "batch": 1}),
]
READS = [
    ("get with payload, signature and proof, 16 clients", "journals/s", 1_500, {"mode": "get", "clients": 16}),
    ("lineage of 100, made and verified, 1 client", "ms", 27, {"mode": "lineage", "clients": 1, "batch": 100}),
]
PLAIN = [("plain batches of 100, 16 clients", {"clients": 16, "batch": 100}),
         ("plain batches of 1, 64 clients", {"clients": 64, "batch": 1})]


class Bench(Run):
    """One comparison."""

    def __init__(self, options):
        super().__init__(options.directory)
        self.options = options
        self.figures, self.costs = {}, {}

    def drive(self, system, command, **load):
        """Runs a driver. Returns its figures, with what the servers used meanwhile."""
        load = {"seconds": self.options.seconds, "warmup": self.options.warmup, **load}
        command = list(command)
        for name, value in load.items():
            command += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
        child = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, text=True)
        before = after = None
        event = {}
        for line in child.stdout:
            event = json.loads(line)
            if event.get("event") == "begin":
                before = system.usage(), cpu_seconds(child.pid)
            elif event.get("event") == "end":
                after = system.usage(), cpu_seconds(child.pid)
        if child.wait() != 0 or before is None or after is None:
            raise Failure(f"the driver failed: {' '.join(map(str, command))}")
        # immudb refuses calls beyond its limit; the report says how many.
        if event["errors"] and not isinstance(system, Immudb):
            raise Failure(f"{event['errors']} errors, the first: {event['first_error']}")
        return event | costs(before, after, max(event.get("journals", event.get("records", 0)), 1))

    def note(self, what, unit, figure, event):
        self.figures.setdefault((what, unit), []).append(figure)
        self.costs.setdefault(what, []).append(event["cpu_us_per_record"])
        latency = event["latency_us"]
        self.say(f"  {what}: {figure:,.1f} {unit}, p50 {latency['p50'] / 1000:.2f} ms, p99 {latency['p99'] / 1000:.2f} ms, "
                 f"{event['cpu_us_per_record']:.0f} us of servers' CPU each")

    def coppice(self):
        """Plain batches, then ledgers, on one cluster that keeps ledgers."""
        system = Coppice(self.fresh("coppice"), self.options.binaries, 1, shards=2, ledgers=True)
        self.say("Coppice 2 x 1 with ledgers")
        settle_disk()
        try:
            system.start()
            first = 0
            for what, load in PLAIN:
                event = self.drive(system, system.driver(), first=first, **load)
                first = event["next_key"]
                self.note(what, "records/s", event["records_per_second"], event)
            for what, unit, _, load in APPENDS:
                event = self.drive(system, system.ledger_driver(), **load)
                self.note(what, unit, event["journals_per_second"], event)
            half = event["calls"] / event["seconds"] / 2
            event = self.drive(system, system.ledger_driver(), rate=half, **APPENDS[1][3])
            self.note("append, 1 a signature, half load, p99", "ms", event["latency_us"]["p99"] / 1000, event)
            for what, unit, _, load in READS:
                event = self.drive(system, system.ledger_driver(), **load)
                figure = event["journals_per_second"] if unit == "journals/s" else event["latency_us"]["p50"] / 1000
                self.note(what, unit, figure, event)
            self.many(system)
        finally:
            system.stop()
            shutil.rmtree(system.directory, ignore_errors=True)

    def many(self, system):
        """One client's appends, before and after many ledgers are founded, and the memory of the
        servers."""
        alone = self.drive(system, system.ledger_driver(), clients=1)
        memory = resident(system)
        crowd = self.drive(system, system.ledger_driver(), clients=1, others=self.options.ledgers)
        grown = (resident(system) - memory) / (1 << 20)
        ratio = crowd["latency_us"]["p50"] / max(alone["latency_us"]["p50"], 1)
        name = f"beside {self.options.ledgers:,} ledgers"
        self.note(f"append p50, {name}", "x alone", ratio, crowd)
        self.note(f"memory of the servers, {name}", "MiB more", grown, crowd)

    def purge(self):
        """A ledger is filled and purged but for some journals; what each step takes, and the disk
        before and after. The report is `purge.md` in the directory."""
        self.directory.mkdir(parents=True, exist_ok=True)
        system = Coppice(self.fresh("purge"), self.options.binaries, 1, shards=2, ledgers=True)
        self.say(f"a purge of {self.options.purge:,} journals")
        settle_disk()
        try:
            system.start()
            rows = [("empty", 0.0, resident(system), stored(system))]
            command = [*system.driver()[:1], "purge", *system.driver()[2:], "--journals", self.options.purge]
            child = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, text=True)
            for line in child.stdout:
                event = json.loads(line)
                rows.append((event["event"], event["seconds"], resident(system), stored(system)))
                self.say(f"  {event}")
            if child.wait() != 0:
                raise Failure("the driver of the purge failed")
            began = time.monotonic()
            coppice = [self.options.binaries / "coppice", "--endpoint", system.cluster.endpoints()[0]]
            head = json.loads(subprocess.check_output([*coppice, "head", "--json"], text=True))["version"]
            subprocess.run([*coppice, "prune", "--before", str(head), "--reason", "measured", "--yes"], check=True)
            rows.append(("pruned", time.monotonic() - began, resident(system), stored(system)))
            rows.append(("settled", self.settle(system), resident(system), stored(system)))
        finally:
            system.stop()
            shutil.rmtree(system.directory, ignore_errors=True)
        lines = ["| step | seconds | memory, MiB | disk, MiB |", "| --- | --- | --- | --- |"]
        lines += [f"| {step} | {seconds:,.1f} | {memory / (1 << 20):,.0f} | {disk / (1 << 20):,.0f} |"
                  for step, seconds, memory, disk in rows]
        text = "\n".join(["# A purge", "", *lines]) + "\n"
        (self.directory / "purge.md").write_text(text)
        return text

    def settle(self, system):
        """Waits until the servers have given back what they will: the disk stays for 15 s."""
        began = last = time.monotonic()
        before = stored(system)
        while time.monotonic() - last < 15:
            time.sleep(1)
            now = stored(system)
            if abs(now - before) > 1 << 20:
                before, last = now, time.monotonic()
        return last - began

    def immudb(self):
        system = Immudb(self.fresh("immudb"))
        self.say("immudb (nothing is signed by clients)")
        settle_disk()
        try:
            system.start()
            first = 0
            for what, load in PLAIN:
                event = self.drive(system, system.driver(), first=first, **load)
                first = event["next_key"]
                self.note(what.replace("plain batches", "immudb SetAll"), "records/s", event["records_per_second"], event)
        finally:
            system.stop()
            shutil.rmtree(system.directory, ignore_errors=True)

    def run(self):
        self.directory.mkdir(parents=True, exist_ok=True)
        for number in range(self.options.rounds):
            self.say(f"round {number + 1} of {self.options.rounds}; load {os.getloadavg()[0]:.1f}")
            self.coppice()
            if not self.options.alone:
                self.immudb()
        return self.report()

    def report(self):
        ledgers = f"beside {self.options.ledgers:,} ledgers"
        floors = {what: (floor, unit) for what, unit, floor, _ in APPENDS + READS}
        floors |= {"append, 1 a signature, half load, p99": (25, "ms"), f"append p50, {ledgers}": (1.2, "x alone"),
                   f"memory of the servers, {ledgers}": (100, "MiB more")}
        rows = []
        for (what, unit), figures in self.figures.items():
            median = statistics.median(figures)
            goal = floors.get(what, (None, None))[0]
            more = unit == "journals/s"
            met = None if goal is None else (median >= goal if more else median <= goal)
            cpu = statistics.median(self.costs[what])
            rows.append({"what": what, "unit": unit, "median": median, "figures": figures, "goal": goal, "met": met,
                         "cpu_us": cpu})
        result = {"rounds": self.options.rounds, "seconds": self.options.seconds, "cores": os.cpu_count(), "rows": rows}
        (self.directory / "report.json").write_text(json.dumps(result, indent=1) + "\n")
        (self.directory / "report.md").write_text(readable(rows))
        return readable(rows)


def stored(system):
    """Bytes that the files of the servers take on the disk."""
    total = 0
    for folder, _, files in os.walk(system.directory):
        for file in files:
            try:
                total += os.stat(os.path.join(folder, file)).st_blocks * 512
            except FileNotFoundError:  # It was removed meanwhile.
                continue
    return total


def resident(system):
    """Bytes of memory that the servers hold."""
    total = 0
    for process in system.processes():
        with open(f"/proc/{process.child.pid}/statm") as statm:
            total += int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return total


def readable(rows):
    lines = ["# Ledgers of members", "", "| what | median | goal | met | servers' CPU each |", "| --- | --- | --- | --- | --- |"]
    for row in rows:
        met = {None: "", True: "yes", False: "**no**"}[row["met"]]
        goal = "" if row["goal"] is None else f"{row['goal']:,} {row['unit']}"
        lines.append(f"| {row['what']} | {row['median']:,.1f} {row['unit']} | {goal} | {met} | {row['cpu_us']:.0f} us |")
    return "\n".join(lines) + "\n"


def parse():
    quick = bool(os.environ.get("QUICK"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1 if quick else 3)
    parser.add_argument("--seconds", type=float, default=2 if quick else 5, help="measured seconds of each load")
    parser.add_argument("--warmup", type=float, default=0.7 if quick else 1)
    parser.add_argument("--ledgers", type=int, default=500 if quick else 10_000, help="how many other ledgers are founded")
    parser.add_argument("--purge", type=int, metavar="N", help="measure a purge of so many journals instead")
    parser.add_argument("--alone", action="store_true", help="without immudb")
    parser.add_argument("--binaries", type=pathlib.Path, default=ROOT / "target" / "release")
    parser.add_argument("--directory", type=pathlib.Path, default=ROOT / "target" / "bench-ledger")
    return parser.parse_args()


def main():
    options = parse()
    options.binaries = options.binaries.resolve()
    try:
        if options.purge:
            print(Bench(options).purge())
            return 0
        print(Bench(options).run())
    except (Failure, TimeoutError, subprocess.SubprocessError, OSError) as error:
        print(f"bench-ledger: {error}", file=sys.stderr)
        return 1
    print(f"{options.directory}/report.json and report.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
