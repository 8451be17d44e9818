#!/usr/bin/env python3
"""`make test-adversaries`: attacks a cluster of processes with mutual TLS while another client goes
on with its work.

Each attack comes from one party with a certificate of its own, or from one without any. While it
lasts, every call of the good client must succeed, and no process may end or exceed its memory
budgets. When the attack is over, everything that it held must be released. Durations are reported
but not judged. `--sample` runs each attack for a few seconds.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys

from adversary import attacks
from adversary.watch import During, GoodClient, Memory
from adversary.wire import Target
from harness.processes import wait_until

ROOT = pathlib.Path(__file__).resolve().parents[1]
NODES = ("node-1", "node-2", "node-3")
COORDINATORS = ("coordinator-1", "coordinator-2")
PORT = 7600
# The most by which a process's memory may grow in an attack, in MiB: both byte budgets, and what
# calls in progress need.
MEMORY_GROWTH_MIB_MAX = 640
# The time within which descriptors must be released.
RELEASE_SECONDS = 90


class Cluster:
    """The cluster that scripts/local-cluster.sh makes."""

    def __init__(self, directory, binaries):
        self.directory = pathlib.Path(directory)
        self.environment = {**{name: value for name, value in os.environ.items() if not name.startswith("COPPICE_")},
                            "BIN": str(binaries), "PORT": str(PORT)}
        self.coppice = pathlib.Path(binaries) / "coppice"

    def script(self, *arguments):
        done = subprocess.run([ROOT / "scripts" / "local-cluster.sh", arguments[0], self.directory, *arguments[1:]],
                              env=self.environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"local-cluster.sh {arguments[0]} failed: {done.stderr}{done.stdout}")
        return done.stdout

    def start(self):
        if self.directory.exists():
            shutil.rmtree(self.directory)
        self.script("init")
        subprocess.run([ROOT / "scripts" / "certificates.sh", self.directory / "tls", "mallory", "writer", "127.0.0.1"], check=True)
        self.script("start")

    def client_environment(self):
        lines = [line.split("=", 1) for line in self.script("env").replace("export ", "").replace(" COPPICE", "\nCOPPICE").splitlines()]
        return self.environment | {name: value.strip() for name, value in lines}

    def pids(self):
        return {name: int((self.directory / f"{name}.pid").read_text()) for name in NODES + COORDINATORS}

    def leader(self, client):
        """The coordinator that leads, which an attack must not stop."""
        done = subprocess.run([client.coppice, "status", "--json"], env=client.environment, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)["leader"]

    def endpoint(self, coordinator):
        return f"https://127.0.0.1:{self.port(coordinator)}"

    def target(self, attack, leader):
        """The target of an attack."""
        tls = self.directory / "tls"
        number = COORDINATORS.index(leader) + 1
        ports = {"ledger": PORT + 10 + number, "log": PORT + 12 + number, "node": PORT + 1}
        port = self.port(self.replaced(attack, leader)) if attack.instead_of else ports[attack.place]
        shown = {"certificate": tls / "mallory.pem", "key": tls / "mallory.key"} if attack.certificate else {}
        return Target("127.0.0.1", port, ca=tls / "ca.pem" if attack.place != "log" else None, **shown)

    @staticmethod
    def replaced(attack, leader):
        """The process that an attacker replaces: the last of its kind that does not lead."""
        names = NODES if attack.instead_of == "node" else COORDINATORS
        return [name for name in names if name != leader][-1]

    @staticmethod
    def port(name):
        return PORT + 1 + NODES.index(name) if name in NODES else PORT + 11 + COORDINATORS.index(name)


def figures(rounds, of=statistics.median):
    """Milliseconds by call."""
    names = ("commit", "get", "head")
    return {name: of(times) * 1000 for name in names if (times := [one[name] for one in rounds if name in one])}


def text(before, during):
    return ", ".join(f"{name} {before.get(name, 0):.0f} → {during[name]:.0f}" for name in during)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binaries", type=pathlib.Path, default=ROOT / "target" / "debug")
    parser.add_argument("--directory", type=pathlib.Path, default=ROOT / "target" / "adversaries")
    parser.add_argument("--only", default="", help="only attacks whose name contains this")
    parser.add_argument("--seconds", type=float, default=20, help="how long each attack lasts [20]")
    parser.add_argument("--sample", action="store_true", help="run each attack for 4 seconds")
    options = parser.parse_args()
    seconds = 4 if options.sample else options.seconds
    cluster = Cluster(options.directory.resolve(), options.binaries.resolve())
    cluster.start()
    try:
        failed = run(cluster, [one for one in attacks.ALL if options.only in one.name], seconds)
    finally:
        subprocess.run([ROOT / "scripts" / "local-cluster.sh", "kill", cluster.directory, *NODES, *COORDINATORS, "etcd"], check=False)
    print(f"{len(attacks.ALL)} attacks known, report in {cluster.directory / 'report.md'}")
    if failed:
        print("FAILED: " + "; ".join(failed))
    return 1 if failed else 0


def fill(client):
    """Writes values of a MiB, so that a few answers are large."""
    value = client_directory(client) / "value"
    value.write_bytes(os.urandom((1 << 20) - 1024))
    for number in range(44):
        taken, failure = client.call("commit", "--put", f"big-{number:02}=@{value}")
        if failure:
            raise SystemExit(f"the ledger could not be filled: {failure}")


def client_directory(client):
    return pathlib.Path(client.environment["COPPICE_CA"]).parent


def run(cluster, chosen, seconds):
    client = GoodClient(cluster.coppice, cluster.client_environment())
    fill(client)
    memory = Memory(cluster.pids())
    failed = []
    rows = ["| attack | what it does | median ms of a call, before → meanwhile | longest, ms | memory of the process that grew most, MiB |",
            "| --- | --- | --- | --- | --- |"]
    for attack in chosen:
        leader = cluster.leader(client)
        target = cluster.target(attack, leader)
        # The good client and the attacker use the leading coordinator. Others only forward to it.
        client.environment["COPPICE_ENDPOINT"] = cluster.endpoint(leader)
        quiet = [client.round()[0] for _ in range(3)]
        open_before = memory.descriptors()
        memory.begin()
        if attack.instead_of:
            away = cluster.replaced(attack, leader)
            cluster.script("kill", away)
            if away in COORDINATORS:
                client.environment["COPPICE_ENDPOINT"] = f"{cluster.endpoint(away)},{cluster.endpoint(leader)}"
        base = memory.peak()
        during = During(client, lambda attack=attack, target=target: attack.run(target, seconds)).run()
        peak = memory.peak()
        if attack.instead_of:
            cluster.script("start", away)
            memory = Memory(cluster.pids())
        wrong = judge(attack, during, base, peak)
        wrong += released(attack, memory, open_before)
        grown = max(peak, key=lambda name: peak[name] - base.get(name, 0)) if peak else "none"
        row = (f"| {attack.name} | {attack.about} | {text(figures(quiet), figures(during.times))} | "
               f"{max(figures(during.times, max).values(), default=0):.0f} | {grown}: {base.get(grown, 0):.0f} → {peak.get(grown, 0):.0f} |")
        rows.append(row)
        print(row, flush=True)
        failed += wrong
        for line in wrong:
            print("  " + line, flush=True)
    (cluster.directory / "report.md").write_text("\n".join(rows) + "\n")
    return failed


def judge(attack, during, base, peak):
    """The conditions that were violated."""
    wrong = [f"{attack.name}: {failure}" for failure in during.failures]
    if during.error:
        wrong.append(f"{attack.name}: the attack itself failed: {during.error!r}")
    for name, before in base.items():
        if name not in peak:
            wrong.append(f"{attack.name}: {name} has ended")
        elif peak[name] - before > MEMORY_GROWTH_MIB_MAX:
            wrong.append(f"{attack.name}: {name} took {peak[name] - before:.0f} MiB more, over {MEMORY_GROWTH_MIB_MAX}")
    return wrong


def released(attack, memory, before):
    """Waits until everything that the attack held is released."""
    def done():
        now = memory.descriptors()
        return all(count <= before.get(name, 0) + 24 for name, count in now.items())

    try:
        wait_until(done, RELEASE_SECONDS, "descriptors are given back")
    except TimeoutError as error:
        return [f"{attack.name}: {error}: {memory.descriptors()} after {before}"]
    return []


if __name__ == "__main__":
    sys.exit(main())
