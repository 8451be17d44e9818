#!/usr/bin/env python3
"""Suites of go-ethereum and Fabric on three processes, while the leading coordinator is killed.

Each of three processes is a shard-node and a coordinator; etcd elects the leader. Every few seconds
the process that leads is killed, and started again. Meanwhile the suites of cluster/adapters run on
this one ledger: go-ethereum's for databases, its block tests with their fixtures, the common tests
of Fabric's state databases, Fabric's tests of what lies above them, and blocks on the ledger's own
roots.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time

from harness.cluster import ROOT, Cluster, Etcd, Failure, output, wait_until, well
from harness.network import Loopback

NODES = ["node-1", "node-2", "node-3"]
MEMBERS = ["etcd-1", "etcd-2", "etcd-3"]
# The one on own roots is last, as its chain stays.
SUITES = {
    "dbtest": ("geth", "TestTheSuiteOfGethPassesOnALedger", ""),
    "blocks": ("geth", "TestTheBlockTestsOfGethFeedTheLedger", "fixtures"),
    "fabric": ("fabric", "TestTheCommonTestsOfFabricPass", ""),
    "ledgers": ("fabric", "TestTheLedgerSuitesOfFabricPass", "suites"),
    "own": ("geth", "TestStateDBRunsOnTheRootsOfTheLedger", ""),
}
WELL_SECONDS = 60


class Killer(threading.Thread):
    """Kills the process that leads, every few seconds, and starts it again."""

    def __init__(self, cluster, seconds):
        super().__init__(daemon=True)
        self.cluster, self.seconds = cluster, seconds
        self.deaths, self.failure = 0, None
        self.ended = threading.Event()

    def run(self):
        try:
            while not self.ended.wait(self.seconds):
                self.kill_leader()
        except (Failure, TimeoutError, OSError) as error:
            self.failure = error

    def kill_leader(self):
        status = self.cluster.status(NODES[0])
        leader = (status or {}).get("leader")
        if leader not in NODES:
            # The election is under way.
            return
        process = self.cluster.processes[leader]
        process.kill()
        self.deaths += 1
        process.start()

    def end(self):
        self.ended.set()
        self.join()


def fixtures():
    """The directory with the fixtures of go-ethereum's block tests; empty if there are none."""
    return output("ethereum-tests.sh")


def run(name, cluster, environment):
    """Runs a suite; returns whether it passed."""
    module, test, tags = SUITES[name]
    if tags == "fixtures" and not environment["ETHEREUM_TESTS"]:
        print("THE BLOCK TESTS OF GO-ETHEREUM WERE NOT RUN: set ETHEREUM_TESTS to a checkout of "
              "github.com/ethereum/tests")
        return True
    command = ["go", "test", "-count=1", "-timeout=60m", "-v", f"-tags={tags}", f"-run=^{test}$",
               "."]
    began = time.monotonic()
    done = subprocess.run(command, cwd=ROOT / "cluster" / "adapters" / module, env=environment,
                          text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    # A name that no test has makes no failure.
    passed = done.returncode == 0 and f"--- PASS: {test}" in done.stdout
    (cluster.directory / f"{name}.log").write_text(done.stdout)
    if not passed:
        print("\n".join(done.stdout.splitlines()[-40:]))
    took = time.monotonic() - began
    print(f"{name}: {'passed' if passed else 'FAILED'} in {took:.0f} s", flush=True)
    return passed


def start(directory, binaries):
    """A cluster that serves."""
    network = Loopback([*NODES, *MEMBERS])
    etcd = Etcd(network, MEMBERS, directory, output("install-etcd.sh"))
    cluster = Cluster(network, directory / "cluster", binaries, nodes=NODES, coordinators=None,
                      etcd=etcd, ledger={"shards": 2}, settings={"coordinator": {"log": "warn"}})
    try:
        cluster.start(NODES[0])
        wait_until(lambda: well(cluster.status(NODES[0]), len(NODES)), WELL_SECONDS,
                   "leaders of all groups")
    except BaseException:
        cluster.kill()
        raise
    return cluster


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=SUITES, action="append",
                        help="run this suite; may be repeated")
    parser.add_argument("--seconds", type=float, default=5, help="between two kills")
    parser.add_argument("--binaries", type=pathlib.Path, default=ROOT / "target" / "debug")
    options = parser.parse_args()
    directory = pathlib.Path(tempfile.mkdtemp(prefix="state-killed-", dir=ROOT / "target"))
    cluster, killer, passed = None, None, False
    try:
        cluster = start(directory, options.binaries)
        environment = os.environ | {
            "COPPICE_STATE_ENDPOINTS": ",".join(cluster.endpoints()),
            "COPPICE_STATE_KEY": cluster.vkey, "ETHEREUM_TESTS": fixtures(),
        }
        killer = Killer(cluster, options.seconds)
        killer.start()
        outcomes = [run(name, cluster, environment) for name in options.only or SUITES]
        killer.end()
        if killer.failure:
            raise killer.failure
        print(f"the leading coordinator was killed {killer.deaths} times")
        passed = all(outcomes) and killer.deaths > 0
    except (Failure, TimeoutError) as error:
        print(error, file=sys.stderr)
    finally:
        if killer:
            killer.end()
        if cluster:
            cluster.kill()
    if passed:
        shutil.rmtree(directory, ignore_errors=True)
    else:
        print(f"its logs are in {directory}", file=sys.stderr)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
