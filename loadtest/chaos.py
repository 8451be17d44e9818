#!/usr/bin/env python3
"""`make chaos`: puts a Coppice cluster of real processes under real faults, and judges what its
clients were told.

There are three etcd, three shard-nodes with a replica of the root group and of two shards each, and
three coordinators. A fourth node hosts readers. Clients write unconditionally, on conditions and in
sessions, and read, through all coordinators. Faults follow one after the other by a plan that
depends only on the seed. In the end, Porcupine and two more checks judge the history, the offline
verifier checks every proof, the root log is walked, and fsck runs on every node. `report.json` and
`report.md` say what happened. The exit code is 0 if all verdicts hold.
"""

import argparse
import concurrent.futures
import hashlib
import json
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import time

from harness import schedule
from harness.clocks import Clocks
from harness.cluster import ROOT, TOOLS, Cluster, Etcd, Failure, build_go, ills, well
from harness.faults import Faults, NotInjected
from harness.history import Progress, longest_gap
from harness.network import do_without, open_network
from harness.processes import Process, wait_until

OBSERVER = "client"
# The longest time from the end of a fault until commits go on and every replica is back, on a busy
# machine.
HEAL_SECONDS = 60
# The small disk: room for the reserve with three busy groups, 104 MiB each, and for the writes of a
# run. It fills soon.
SMALL_DISK_MEGABYTES = 512
LEDGER = {"splits": ["m"], "capacity": 256}


def forge(proof):
    """Flips one bit of a proof file and corrects the checksum, so that only the proof itself is
    wrong."""
    forged = bytearray(proof[:-8])
    forged[len(forged) // 2] ^= 1
    return bytes(forged) + hashlib.sha256(b"\x1e" + forged).digest()[:8]


class Run:
    """One run, from an empty directory to its verdicts."""

    def __init__(self, options):
        self.options = options
        self.directory = pathlib.Path(options.directory).resolve()
        self.began = time.monotonic()
        self.faults, self.verdicts, self.notes = [], {}, []
        self.mounted = []
        self.network = self.cluster = self.load = None

    def say(self, text):
        print(f"[{time.monotonic() - self.began:6.1f}] {text}", flush=True)

    def note(self, text):
        self.say(text)
        self.notes.append(text)

    def verdict(self, name, faults):
        faults = list(faults)
        self.verdicts[name] = {"ok": not faults, "faults": faults[:10]}
        self.say(f"{name}: {'holds' if not faults else 'FAILS: ' + '; '.join(map(str, faults[:3]))}")

    # Before the faults.

    def prepare(self):
        if self.directory.exists():
            self.unmount_leftovers()
            shutil.rmtree(self.directory)
        self.directory.mkdir(parents=True)
        self.checker = build_go("checker", "loadtest/checker")
        etcd = build_go("etcd", "scripts/etcd")
        self.clocks = Clocks(TOOLS, self.directory / "clocks")
        coordinators = schedule.COORDINATORS[: self.options.coordinators]
        etcds = schedule.ETCDS if len(coordinators) > 1 else ()
        places = [*etcds, *schedule.NODES, *schedule.READERS, *coordinators, OBSERVER]
        self.network = open_network(places)
        if not self.network.can_cut:
            self.notes.append("no network namespaces: partitions and slow links were not injected")
        self.small_disks = self.mount_small_disks()
        members = Etcd(self.network, etcds, self.directory / "etcd", etcd) if etcds else None
        self.cluster = Cluster(
            self.network, self.directory / "cluster", self.options.binaries,
            nodes=schedule.NODES + schedule.READERS, readers=schedule.READERS, coordinators=coordinators,
            etcd=members, clocks=self.clocks, ledger=LEDGER, node_directories=self.small_disks)

    def mount_small_disks(self):
        """Mounts a small file system for the data of one node; returns its directory by node."""
        directory = self.directory / "small-disk"
        directory.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK_MEGABYTES}m", "coppice-chaos", directory]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            lack = f"NO FULL DISK: a tmpfs can't be mounted here ({done.stderr.strip()})"
            do_without(lack, "run as root, outside of a container without that right")
            self.notes.append(lack)
            return {}
        self.mounted.append(directory)
        return {"node-3": directory}

    def unmount_leftovers(self):
        for line in pathlib.Path("/proc/mounts").read_text().splitlines():
            target = line.split()[1]
            if target.startswith(f"{self.directory}/"):
                subprocess.run(["umount", target], check=False)

    def start_load(self):
        self.out = self.directory / "history"
        command = [self.options.binaries / "coppice-bench", "history", "--endpoints", ",".join(self.cluster.endpoints()),
                   "--key", self.cluster.vkey, "--out", self.out, "--seed", self.options.seed,
                   "--clients", self.options.clients, "--pause-ms", self.options.pause]
        self.load = Process("load", self.network.command(OBSERVER, [str(part) for part in command]), self.directory / "load.log")
        self.load.start()
        wait_until(lambda: "started" in self.load.tail(), 20, "the load's start")
        self.progress = Progress(self.out / "history.jsonl", time.monotonic())
        wait_until(lambda: self.progress.poll() >= 20, HEAL_SECONDS, "twenty commits before the first fault")

    # During the faults.

    def storm(self):
        injector = Faults(self.cluster, self.network, self.clocks, OBSERVER, self.small_disks, self.say)
        end = time.monotonic() + self.options.seconds
        for fault in schedule.plan(self.options.seed, self.options.seconds, self.options.only):
            if time.monotonic() >= end:
                self.note(f"the plan's time was over before: {fault}")
                break
            if not self.suffer(injector, fault):
                return
            time.sleep(fault.calm)

    def suffer(self, injector, fault):
        """Injects one fault, undoes it, and waits until all is well. Returns false if that takes
        too long."""
        entry = {"fault": str(fault), "kind": fault.kind, "began": time.monotonic(), "injected": True}
        self.faults.append(entry)
        undo = []
        try:
            for part in filter(None, (fault, fault.also)):
                target, healing = injector.bring(part)
                entry.setdefault("targets", []).append(target)
                undo.append(healing)
            time.sleep(fault.seconds)
        except NotInjected as error:
            entry["injected"] = False
            self.note(f"not injected: {fault}: {error}")
        except TimeoutError as error:
            entry["error"] = str(error)
        for healing in undo:
            healing()
        entry["undone"] = time.monotonic()
        try:
            wait_until(lambda: self.is_well(entry["undone"]), HEAL_SECONDS, f"commits and all replicas after `{fault}`")
        except TimeoutError as error:
            wrong = ills(self.cluster.status(OBSERVER), len(schedule.NODES), len(schedule.READERS))
            entry["error"] = f"{error}: {'; '.join(wrong) or 'commits are missing'}"
        entry["well"] = time.monotonic()
        if entry["injected"]:
            gap = longest_gap(self.progress.commits, entry["began"], entry["well"])
            self.say(f"{fault}; well again after {entry['well'] - entry['undone']:.1f} s, {gap:.1f} s without commits")
        if "error" in entry:
            self.note(entry["error"])
        return "error" not in entry

    def is_well(self, since):
        for name, process in self.cluster.all().items():
            code = process.ended_by_itself()
            if code is not None:
                self.note(f"{name} ended by itself with {code}: {process.tail(5)}")
                self.died = True
                process.start()
        if self.load.ended_by_itself() is not None:
            raise Failure(f"the load ended by itself:\n{self.load.tail()}")
        if not self.progress.commit_after(since):
            time.sleep(0.1)
            return False
        status = self.cluster.status(OBSERVER)
        if well(status, len(schedule.NODES), len(schedule.READERS)):
            return True
        time.sleep(0.3)
        return False

    died = False

    # After the faults.

    def judge(self):
        code = self.load.stop(limit=90)
        self.verdict("load", [] if code == 0 else [f"the clients ended with {code}: {self.load.tail(5)}"])
        self.progress.poll()
        self.verdict("progress", [entry["error"] for entry in self.faults if "error" in entry])
        self.verdict("no process ends by itself", [note for note in self.notes if "ended by itself" in note])
        findings = (self.out / "findings.jsonl").read_text().splitlines()
        self.verdict("answers are proven", findings)
        if not self.options.no_restart:
            self.verdict("stop in order", self.cluster.stop())
            self.cluster.start(OBSERVER)
        self.judge_ledger()
        self.verdict("stop in order at the end", self.cluster.stop())
        self.judge_proofs()
        self.judge_disks()

    def judge_ledger(self):
        """Compares what the ledger holds in the end with what clients were told."""
        command = [self.options.binaries / "coppice-bench", "collect", "--endpoint", self.cluster.endpoints()[0],
                   "--key", self.cluster.vkey, "--out", self.out]
        command = self.network.command(OBSERVER, [str(part) for part in command])
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        self.verdict("root log", [] if done.returncode == 0 else [done.stderr.strip()])
        self.collected = json.loads(done.stdout) if done.returncode == 0 else {}
        command = [self.checker]
        if self.collected:
            command += ["-dump", self.out / "changes.jsonl"]
        done = subprocess.run([*command, self.out / "history.jsonl"], capture_output=True, text=True, check=False)
        self.checked = json.loads(done.stdout) if done.returncode in (0, 1) else {}
        for part in self.checked.get("verdicts", []):
            self.verdict(part["name"], part.get("faults", []))
        if not self.checked:
            self.verdict("history", [done.stderr.strip()])
        elif not self.collected:
            self.verdict("once", ["the ledger's list of changes could not be had"])

    def judge_proofs(self):
        """Checks every kept proof and receipt with the offline verifier, and one with a flipped
        bit, which must not pass."""
        files = sorted((self.out / "proofs").glob("*.proof"))
        standing = self.out / "standing.proof"
        files += [standing] if standing.exists() else []
        with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
            results = list(pool.map(self.verify, files))
        self.verdict("proofs", [f"{file.name}: {text}" for file, text in zip(files, results) if text])
        self.proofs = len(files)
        if not files:
            self.verdict("proofs", ["no proof was kept"])
            return
        forged = self.out / "forged.proof"
        forged.write_bytes(forge(files[0].read_bytes()))
        self.verdict("a forged proof is refused", [] if self.verify(forged) else ["a flipped bit went unseen"])

    def verify(self, file):
        """The offline verifier's complaint about a file; empty if the file is valid."""
        command = [self.options.binaries / "coppice", "verify", file, "--key", self.cluster.vkey]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return "" if done.returncode == 0 else (done.stderr.strip() or f"exit code {done.returncode}")

    def judge_disks(self):
        wrong = []
        for node, directory in self.cluster.node_directories.items():
            command = [self.options.binaries / "coppice", "fsck", directory]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                wrong.append(f"{node}: {(done.stdout + done.stderr).strip()}")
        self.verdict("fsck", wrong)

    def close(self):
        if self.load:
            self.load.kill()
        if self.cluster:
            self.cluster.kill()
        if self.network:
            self.network.close()
        for directory in self.mounted:
            subprocess.run(["umount", directory], check=False)

    # The report.

    def report(self, broken=None):
        if broken:
            self.verdict("run", [broken])
        kinds = {}
        commits = self.progress.commits if getattr(self, "progress", None) else []
        for entry in self.faults:
            if not entry["injected"] or "well" not in entry:
                continue
            gap = longest_gap(commits, entry["began"], entry["well"])
            kinds.setdefault(entry["kind"], []).append((gap, entry["well"] - entry["undone"]))
        outcomes = getattr(self, "checked", {}).get("outcomes", {})
        begin = self.faults[0]["began"] if self.faults else 0
        report = {
            "ok": all(verdict["ok"] for verdict in self.verdicts.values()) and bool(self.verdicts),
            "seed": self.options.seed, "seconds": self.options.seconds, "clients": self.options.clients,
            "network": self.network.description if self.network else "none", "notes": self.notes,
            "operations": getattr(self, "checked", {}).get("operations", 0), "outcomes": outcomes,
            "collected": getattr(self, "collected", {}), "proofs": getattr(self, "proofs", 0),
            "faults": [{
                "fault": entry["fault"], "targets": entry.get("targets", []), "injected": entry["injected"],
                "at": round(entry["began"] - begin, 2), "error": entry.get("error"),
                "seconds_until_well": round(entry.get("well", entry["began"]) - entry.get("undone", entry["began"]), 2),
                "seconds_without_commits": round(longest_gap(commits, entry["began"], entry["well"]), 2)
                if entry["injected"] and "well" in entry else None,
            } for entry in self.faults],
            "kinds": {kind: {
                "count": len(list_), "longest_without_commits": round(max(gap for gap, _ in list_), 2),
                "median_without_commits": round(statistics.median(gap for gap, _ in list_), 2),
                "longest_until_well": round(max(until for _, until in list_), 2),
            } for kind, list_ in sorted(kinds.items())},
            "verdicts": self.verdicts,
        }
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / "report.json").write_text(json.dumps(report, indent=2) + "\n")
        (self.directory / "report.md").write_text(readable(report))
        return report


def readable(report):
    lines = [
        f"# Chaos: {'all verdicts hold' if report['ok'] else 'FAILED'}", "",
        f"Seed {report['seed']}, {report['seconds']} s of faults, {report['clients']} clients. Network: {report['network']}.", "",
        f"{report['operations']} operations: " + ", ".join(f"{count} {name}" for name, count in sorted(report["outcomes"].items()))
        + f". {report['proofs']} proofs and receipts verified offline. {report['collected']}", "",
        "| verdict | holds | |", "| --- | --- | --- |",
    ]
    for name, verdict in report["verdicts"].items():
        lines.append(f"| {name} | {'yes' if verdict['ok'] else '**NO**'} | {'; '.join(map(str, verdict['faults']))[:500]} |")
    lines += ["", "| fault | times | longest without commits, s | median | longest until all replicas were well, s |",
              "| --- | --- | --- | --- | --- |"]
    for kind, figures in report["kinds"].items():
        lines.append(f"| {kind} | {figures['count']} | {figures['longest_without_commits']} | "
                     f"{figures['median_without_commits']} | {figures['longest_until_well']} |")
    if report["notes"]:
        lines += ["", "Notes:", *[f"- {note}" for note in report["notes"]]]
    return "\n".join(lines) + "\n"


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600, help="time for faults")
    parser.add_argument("--seed", type=int, default=1, help="the seed of the plan of faults")
    parser.add_argument("--only", action="append", choices=schedule.KINDS, metavar="KIND", help="only faults of this kind; repeatable")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--pause", type=int, default=40, help="pause of a client between operations, in ms")
    parser.add_argument("--coordinators", type=int, default=3, choices=(1, 2, 3), help="with 1, an embedded store replaces etcd")
    parser.add_argument("--binaries", type=pathlib.Path, default=ROOT / "target" / "debug")
    parser.add_argument("--directory", default=ROOT / "target" / "chaos", help="the results; replaced by the next run")
    parser.add_argument("--no-restart", action="store_true", help="don't restart everything before the judgement")
    parser.add_argument("--plan", action="store_true", help="print the plan of faults, and end")
    return parser.parse_args()


def main():
    options = parse()
    options.binaries = options.binaries.resolve()
    if options.plan:
        print("\n".join(map(str, schedule.plan(options.seed, options.seconds, options.only))))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    run = Run(options)
    broken = None
    try:
        run.prepare()
        run.cluster.start(OBSERVER)
        run.cluster.form_no_more()
        run.say(f"a cluster of {len(run.cluster.all())} processes serves; seed {options.seed}; {run.network.description}")
        run.start_load()
        run.storm()
        run.judge()
    except (Failure, TimeoutError, subprocess.SubprocessError, OSError) as error:
        broken = f"{type(error).__name__}: {error}"
    finally:
        run.close()
    report = run.report(broken)
    print(readable(report))
    print(f"{run.directory}/report.json, report.md; histories and logs are in the same directory")
    return 0 if report["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
