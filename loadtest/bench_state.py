#!/usr/bin/env python3
"""`make bench-state`: a ledger as the state of other platforms, beside their own stores.

Blocks of Fabric (F), of go-ethereum's EVM (E) and of revm (R) run on a ledger that is 0, 0.5 and
1 ms away, and on the store of each platform. H are reads of old blocks, V is the check of a version
on the stream of changes, and C is the cache. Goals are ratios of medians of one run, except for
figures of the cache. The results are written to `report.json` and `report.md`. QUICK=1 in the
environment makes it a short run.
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

from harness.cluster import ROOT, Failure, build_go, output
from harness.run import Run, processor, settle_disk
from harness.systems import Coppice

ADAPTERS = ROOT / "cluster" / "adapters"
# Shards of a ledger with one chain of accounts and slots.
SPLITS = ["0x6574682f6180", "0x6574682f73", "0x6574682f7380"]
DELAYS = (0, 0.5, 1)
# What a block of the ledger may take at each distance, as a multiple of the platform's own store.
F_GOALS = (1.5, 1.6, 1.75)
EVM_GOALS = {"prefetch": (1.5, 1.75, 2.0), "cache": (2, 3, 4)}
MODES = {"prefetch": "cache and access list", "speculation": "cache and speculation", "cache": "cache alone",
         "none": "no cache", "": "cache"}
# A workload's own store, and the mode of it that goals compare with.
STORES = {"F": ("goleveldb", ""), "E": ("geth", "state on disk"), "R": ("rocksdb", "")}
NAMES = {"goleveldb": "goleveldb", "geth": "go-ethereum on Pebble", "rocksdb": "revm on RocksDB"}
# Times of benchmarks in Go.
GO_RESULT = re.compile(r"^Benchmark(\S+?)(?:-\d+)?\s+\d+\s+([\d.]+) ns/op(.*)$")
GO_MEDIAN = re.compile(r"([\d.]+) ms/median")
GO_DELAY = re.compile(r"at_([\d.]+)(ms|µs|s)$")
GO_UNITS = {"s": 1000, "ms": 1, "µs": 0.001}


def go_lines(workload, text):
    """Lines of a workload from the output of benchmarks in Go. Times are in ms."""
    lines = []
    for row in text.splitlines():
        found = GO_RESULT.match(row)
        if not found:
            continue
        name = found[1].partition("/")[2]
        median = GO_MEDIAN.search(found[3])
        time = float(median[1]) if median else float(found[2]) / 1e6
        far = GO_DELAY.search(name)
        line = {"workload": workload, "side": "coppice" if far else name, "block_ms": [time]}
        if far:
            line |= {"mode": "", "delay_ms": float(far[1]) * GO_UNITS[far[2]]}
        lines.append(line)
    if not lines:
        raise Failure(f"no results of {workload}:\n{text[-2000:]}")
    return lines


class Figures:
    """The lines of a run."""

    def __init__(self, lines):
        self.lines = lines
        self.goals = []

    def find(self, workload, side, mode=None, delay=None):
        """The first line of a kind, or None."""
        for line in self.lines:
            if line["workload"] == workload and line["side"] == side and mode in (None, line.get("mode", "")) \
                    and delay in (None, line.get("delay_ms", 0)):
                return line
        return None

    def median(self, workload, side, mode=None, delay=None, of="block_ms"):
        line = self.find(workload, side, mode, delay)
        return statistics.median(line[of]) if line else None

    def beside(self, workload, delay, mode=None):
        """The median of a workload's own store, as it was measured along with a distance."""
        side, usual = STORES[workload]
        mode = mode or usual or None
        return self.median(workload, side, mode, delay) or self.median(workload, side, mode)

    def ratio(self, workload, mode, delay):
        mine, other = self.median(workload, "coppice", mode, delay), self.beside(workload, delay)
        return mine / other if mine and other else None

    def judge(self, name, goal, measured, holds):
        self.goals.append({"name": name, "goal": goal, "measured": measured, "holds": holds})

    def most(self, name, figure, most, form):
        """A goal that a figure is at most so much; left out if it was not measured."""
        if figure is not None:
            self.judge(name, f"<= {form.format(most)}", form.format(figure), figure <= most)

    def all_goals(self):
        self.goals = []
        for workload, mode, limits in (("F", "", F_GOALS), *(("E", *row) for row in EVM_GOALS.items()),
                                       *(("R", *row) for row in EVM_GOALS.items())):
            for delay, most in zip(DELAYS, limits):
                name = f"{workload}, {MODES[mode]}, {delay:.1f} ms away: a block, as a multiple of {NAMES[STORES[workload][0]]}"
                self.most(name, self.ratio(workload, mode, delay), most, "{:.2f} x")
        old, head = (self.median("H", side, of="read_ms") for side in ("old", "head"))
        if old and head:
            blocks = self.find("H", "old")["versions"]
            self.most(f"H: an account and 4 slots with a proof, {blocks:,} blocks back, as a multiple of head", old / head, 1.1,
                      "{:.2f} x")
        journal, keys = self.median("V", "by_its_journal"), self.median("V", "key_by_key")
        if journal and keys:
            self.most("V: the check of a version with 1,000 changes, as a part of proving 1,000 keys", journal / keys, 0.1, "{:.3f}")
            self.most("V: the check of a version with 1,000 changes", journal, 2, "{:.2f} ms")
        self.cache_goals()
        return self.goals

    def cache_goals(self):
        for line in self.lines:
            if line["workload"] != "C":
                continue
            if line["mode"] == "cut":
                self.most(f"C: back after a cut of {line['seconds']:g} s", line["back_ms"] / 1000, 1, "{:.2f} s")
                continue
            delay = line["delay_ms"]
            name = f"C: after {line['seconds']:g} s of E, {delay:.1f} ms away"
            listed, alone = (self.find("E", "coppice", mode, delay) for mode in EVM_GOALS)
            self.judge(f"{name}: reads of the EVM that the cache answers, cache and access list", ">= 90 %",
                       f"{listed['served_ratio']:.0%}", listed["served_ratio"] >= 0.9)
            self.judge(f"{name}: accounts and slots of a block that are in the cache", ">= 90 %",
                       f"{alone['hit_ratio']:.0%}, of {alone['known_ratio']:.0%} that an earlier block has read",
                       alone["hit_ratio"] >= 0.9)
            self.most(f"{name}: everything dropped", line["drops"], 0, "{} times")

    def blocks(self):
        """Rows of a table: each kind of blocks at each distance."""
        rows = []
        for workload, (store, usual) in STORES.items():
            if not self.find(workload, store):
                continue
            for mode in (usual, *(["block on disk"] if workload == "E" else [])):
                cells = [self.beside(workload, delay, mode) for delay in DELAYS]
                line = self.find(workload, store, mode or None)
                rows.append([workload, NAMES[store] + (f", {mode}" if mode else ""),
                             *(f"{cell:.1f} ms" if cell else "" for cell in cells), *sizes(line)])
            for mode, name in MODES.items():
                cells = []
                for delay in DELAYS:
                    median, ratio = self.median(workload, "coppice", mode, delay), self.ratio(workload, mode, delay)
                    cells.append(f"{median:.1f} ms, {ratio:.2f} x" if ratio else "")
                if any(cells):
                    rows.append([workload, f"ledger, {name}", *cells, *sizes(self.find(workload, "coppice", mode))])
        return rows


def sizes(line):
    """Reads and writes of a block, and the part of the reads that were hits."""
    size = f"{line['reads']:,.0f} / {line['writes']:,.0f}" if line.get("reads") else ""
    return size, f"{line['hit_ratio']:.0%}" if line.get("hit_ratio") else ""


def build_revm():
    """Builds the program that runs blocks in revm, with RocksDB; returns its path."""
    target, example = ROOT / "target" / "revm", "workload-r"
    command = ["cargo", "build", "--release", "--locked", "--manifest-path", ADAPTERS / "revm" / "Cargo.toml", "--target-dir", target,
               "--features", "bench", "--example", example]
    include = subprocess.run(["cc", "-print-file-name=include"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    environment = {"LIBCLANG_PATH": output("libclang.sh"), "BINDGEN_EXTRA_CLANG_ARGS": f"-I{include}"}
    subprocess.run([str(part) for part in command], env=environment | os.environ, check=True)
    return target / "release" / "examples" / example


class Bench(Run):
    """One run of all workloads."""

    def __init__(self, options):
        super().__init__(options.directory)
        self.options = options
        self.lines = []

    def wanted(self, *workloads):
        return any(not self.options.only or workload in self.options.only for workload in workloads)

    def on_ledger(self, name, command):
        """Runs a program on a fresh ledger. `command` gets the ledger's endpoint and its key."""
        system = Coppice(self.fresh(f"ledger-{name}"), self.options.binaries, 1, coordinators=0, splits=SPLITS)
        settle_disk()
        try:
            system.start()
            self.program(command(system.cluster.endpoints()[0], system.cluster.vkey))
        finally:
            system.stop()
            shutil.rmtree(system.directory, ignore_errors=True)

    def program(self, command):
        """Runs a program. Each line of its output that is an object is a figure."""
        child = subprocess.Popen([str(part) for part in command], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for row in child.stdout:
            if row.startswith("{"):
                self.note([json.loads(row)])
        if child.wait() != 0:
            raise Failure(f"{command[0]} failed; see above")

    def note(self, lines):
        for line in lines:
            self.lines.append(line)
            times = line.get("block_ms") or line.get("read_ms")
            figures = f"median {statistics.median(times):.2f} ms of {len(times)}" if times else json.dumps(line)
            self.say(f"  {line['workload']}, {line['side']}, {line.get('mode', '')}, {line.get('delay_ms', 0)} ms: {figures}")

    def geth(self):
        self.say("E, H and C: go-ethereum's EVM")
        program, directory = build_go("bench-state", "loadtest/state"), self.fresh("pebble")

        def command(endpoint, key):
            return [program, "-endpoint", endpoint.removeprefix("http://"), "-key", key, "-directory", directory,
                    *(f"-{name}={value}" for name, value in self.options.scale["geth"].items())]

        try:
            self.on_ledger("geth", command)
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def revm(self):
        if not (ADAPTERS / "revm" / "Cargo.toml").is_file():
            self.say("R IS NOT MEASURED: there is no cluster/adapters/revm")
            return
        self.say("R: revm")
        program, directory = build_revm(), self.fresh("rocksdb")
        scale = [part for name, value in self.options.scale["revm"].items() for part in (f"--{name}", value)]

        def command(endpoint, key):
            path = self.directory / "data" / "ledger.vkey"
            path.write_text(f"{key}\n")
            return [program, "--endpoint", endpoint, "--key", path, *scale]

        try:
            directory.mkdir(parents=True)
            self.program([program, "--dir", directory, *scale])
            self.on_ledger("revm", command)
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def go_bench(self, workload, directory, name, keys):
        """Runs a benchmark of a Go module, which starts its own ledgers with so many keys."""
        self.say(f"{workload}: {directory}")
        settle_disk()
        command = ["go", "test", "-run=^$", f"-bench=^Benchmark{name}$", f"-benchtime={self.options.scale['time']}", "-timeout=60m", "."]
        environment = os.environ | {"COPPICE_BIN": str(self.options.binaries / "coppice"), "COPPICE_BENCH_KEYS": str(keys)}
        done = subprocess.run(command, cwd=ROOT / directory, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, check=False)
        if done.returncode != 0:
            raise Failure(f"{' '.join(command)} in {directory} failed:\n{done.stdout[-2000:]}")
        self.note(go_lines(workload, done.stdout))

    def run(self):
        self.directory.mkdir(parents=True, exist_ok=True)
        keys = self.options.scale["keys"]
        if self.wanted("F"):
            self.go_bench("F", "cluster/adapters/fabric", "Blocks", keys)
        if self.wanted("V"):
            self.go_bench("V", "cluster/sdk/go/state", "Version", keys)
        if self.wanted("E", "H", "C"):
            self.geth()
        if self.wanted("R"):
            self.revm()
        return self.report()

    def report(self):
        result = {"conditions": conditions(self.options), "goals": Figures(self.lines).all_goals(), "lines": self.lines}
        (self.directory / "report.json").write_text(json.dumps(result, indent=1) + "\n")
        (self.directory / "report.md").write_text(readable(result))
        return result


def conditions(options):
    return {"cpu": processor(), "cores": os.cpu_count(), "kernel": os.uname().release, "load at the end": round(os.getloadavg()[0], 1),
            **{f"{name} of E": value for name, value in options.scale["geth"].items()}, "keys of F and V": options.scale["keys"]}


def readable(result):
    figures = Figures(result["lines"])
    lines = ["# State of other platforms", "",
             "Conditions: " + ", ".join(f"{name} {value}" for name, value in result["conditions"].items()) + ".", "",
             "| | blocks on | 0 ms away | 0.5 ms | 1 ms | reads / writes | hits |", "| --- | --- | --- | --- | --- | --- | --- |"]
    lines += [f"| {' | '.join(row)} |" for row in figures.blocks()]
    lines += ["", "| what | goal | measured | met |", "| --- | --- | --- | --- |"]
    lines += [f"| {row['name']} | {row['goal']} | {row['measured']} | {'yes' if row['holds'] else '**no**'} |" for row in result["goals"]]
    return "\n".join(lines) + "\n"


# Settings of the programs for a whole run, and for a short one.
WHOLE = {
    "geth": {"accounts": 1_000_000, "slots": 4_000_000, "contracts": 1000, "blocks": 60, "uncached": 5, "warm": "60s", "back": 10_000,
             "reads": 500},
    "revm": {"accounts": 1_000_000, "slots": 4_000_000, "blocks": 60, "warmup": 600},
    "keys": 1_000_000, "time": "60x",
}
QUICK = {
    "geth": {"accounts": 50_000, "slots": 200_000, "contracts": 200, "blocks": 20, "uncached": 2, "warm": "5s", "back": 1000,
             "reads": 100},
    "revm": {"accounts": 50_000, "slots": 200_000, "blocks": 20, "warmup": 80},
    "keys": 20_000, "time": "15x",
}


def parse(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=list("FERHVC"), help="only this workload; E, H and C are one; may be repeated")
    parser.add_argument("--binaries", type=pathlib.Path, default=ROOT / "target" / "release")
    parser.add_argument("--directory", type=pathlib.Path, default=ROOT / "target" / "bench-state")
    options = parser.parse_args(arguments)
    options.scale = QUICK if os.environ.get("QUICK") else WHOLE
    options.binaries = options.binaries.resolve()
    return options


def main():
    options = parse()
    try:
        result = Bench(options).run()
    except (Failure, TimeoutError, subprocess.SubprocessError, OSError) as error:
        print(f"bench-state: {error}", file=sys.stderr)
        return 1
    print(readable(result))
    print(f"{options.directory}/report.json and report.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
