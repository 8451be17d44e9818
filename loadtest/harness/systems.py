"""The systems that are compared. Each is started fresh. Its driver uses its own official client, if
there is one."""

import json
import pathlib
import subprocess
import typing
import urllib.request

from .cluster import ETCD_CLIENT_PORT, Cluster, Etcd, build_go, well
from .network import Loopback
from .processes import Process, device_bytes_written, wait_until

IMMUDB_PORT = 3322
TESSERA_PORT = 2025
# Servers write one row for each step of over 3 ms of a loop that others wait for.
STEPS = "coppice::steps"
LOG = f"warn,{STEPS}=debug"


class Usage(typing.NamedTuple):
    """The resources that servers have used since their start."""

    cpu: dict
    written: int
    disk: int


class System:
    """A system under load: processes, and the command of its driver."""

    name = ""
    members = 1

    def __init__(self, directory):
        self.directory = pathlib.Path(directory)
        self.directory.mkdir(parents=True)

    def processes(self):
        raise NotImplementedError

    def start(self):
        raise NotImplementedError

    def driver(self):
        """The driver's command, without the load."""
        raise NotImplementedError

    def usage(self):
        """CPU seconds of the servers by their kind, bytes written by all of them, and bytes that
        the disk has written."""
        cpu, written = {}, 0
        for process in self.processes():
            seconds, bytes_ = process.usage()
            kind = process.name.rstrip("0123456789").rstrip("-")
            cpu[kind] = cpu.get(kind, 0) + seconds
            written += bytes_
        return Usage(cpu, written, device_bytes_written(self.directory) or 0)

    def long_steps(self):
        """The rows that the servers wrote about long steps since the last call."""
        return []

    def stop(self):
        for process in self.processes():
            process.kill()


class Coppice(System):
    """Coppice in release binaries: nodes with a replica of each group, and one coordinator by
    default. Without coordinators, the only node is one itself, in one process. `driver` is the
    driver's program, if it isn't among the binaries. With `ledgers` the cluster keeps ledgers of
    members. `splits` are the keys at which shards begin, if keys are not split evenly."""

    def __init__(self, directory, binaries, replicas, shards=1, coordinators=1, driver=None, ledgers=False, splits=None):
        super().__init__(directory)
        self.name = f"Coppice {shards} x {replicas}" + ("" if coordinators else " in one process")
        self.members = replicas
        self.drive = driver or pathlib.Path(binaries) / "coppice-bench"
        nodes = [f"node-{number}" for number in range(1, replicas + 1)]
        names = [f"coordinator-{number}" for number in range(1, coordinators + 1)]
        etcds = ["etcd-1", "etcd-2", "etcd-3"] if coordinators > 1 else []
        self.network = Loopback([*nodes, *names, *etcds])
        etcd = Etcd(self.network, etcds, self.directory / "etcd", build_go("etcd", "scripts/etcd")) if etcds else None
        ledger = {"splits": splits} if splits else {"shards": shards}
        self.cluster = Cluster(self.network, self.directory / "cluster", binaries, nodes=nodes, coordinators=names, etcd=etcd,
                               ledger=ledger | ({"ledgers": True} if ledgers else {}),
                               settings={"node": {"log": LOG}, "coordinator": {"log": LOG}})
        self.seen = {}

    def processes(self):
        return list(self.cluster.all().values())

    def start(self):
        self.cluster.start("node-1")
        wait_until(lambda: well(self.cluster.status("node-1"), self.members), 60, "leaders of all groups")

    def long_steps(self):
        rows = []
        for name, process in self.cluster.all().items():
            with open(process.log, errors="replace") as log:
                log.seek(self.seen.get(name, 0))
                text = log.read()
                self.seen[name] = log.tell()
            rows += [f"{name}: {line.split(STEPS + ': ', 1)[1]}" for line in text.splitlines() if STEPS + ": " in line]
        return rows

    def ledger_driver(self):
        """The command of the driver for ledgers of members, without the load."""
        return [self.drive, "ledger", *self.driver()[2:]]

    def driver(self):
        return [self.drive, "drive", "--endpoints", ",".join(self.cluster.endpoints()),
                "--key", self.cluster.vkey]

    def leader(self):
        """The process of the node that leads the root group."""
        status = self.cluster.status("node-1")
        root = next(group for group in status["groups"] if group["group"] == "root")
        name = next(replica["node"] for replica in root["replicas"] if replica["role"] == "leader")
        return self.cluster.processes[name]

    def leading_coordinator(self):
        return self.cluster.processes[self.cluster.status("node-1")["leader"]]


class EtcdSystem(System):
    """Etcd as a store of its own."""

    def __init__(self, directory, members):
        super().__init__(directory)
        self.name = f"etcd {members}"
        self.members = members
        self.places = [f"etcd-{number}" for number in range(1, members + 1)]
        self.network = Loopback(self.places)
        self.etcd = Etcd(self.network, self.places, self.directory, build_go("etcd", "scripts/etcd"))
        self.drive = build_go("etcd-drive", "loadtest/etcd")

    def processes(self):
        return list(self.etcd.processes.values())

    def start(self):
        for process in self.processes():
            process.start()
        probe = [*self.driver(), "-seconds", "0.1", "-warmup", "0.1", "-first", str(1 << 60)]
        wait_until(lambda: '"errors":0' in subprocess.run(probe, capture_output=True, text=True, check=False).stdout, 60,
                   "an answer of etcd")

    def driver(self):
        return [self.drive, "-endpoints", ",".join(self.etcd.endpoints())]

    def leader(self):
        """The member whose status says that it leads."""
        for place in self.places:
            request = urllib.request.Request(f"http://{self.network.address(place)}:{ETCD_CLIENT_PORT}/v3/maintenance/status",
                                             data=b"{}")
            with urllib.request.urlopen(request, timeout=5) as answer:
                status = json.load(answer)
            if status["leader"] == status["header"]["member_id"]:
                return self.etcd.processes[place]
        raise TimeoutError("etcd has no leader")


class Immudb(System):
    """One node of immudb, which syncs before it answers (its default)."""

    name = "immudb 1"

    def __init__(self, directory):
        super().__init__(directory)
        self.network = Loopback(["immudb"])
        server = build_go("immudb", "loadtest/immudb", "./server")
        self.drive = build_go("immudb-drive", "loadtest/immudb")
        self.address = f"{self.network.address('immudb')}:{IMMUDB_PORT}"
        command = [server, "--dir", self.directory / "data", "--address", self.network.address("immudb"), "--port", IMMUDB_PORT,
                   "--pgsql-server=false", "--web-server=false", "--metrics-server=false", "--logfile", "",
                   # Every run of the driver opens a session for each client; the sessions end only
                   # after minutes.
                   "--max-sessions", 10000]
        self.process = Process("immudb", command, self.directory / "immudb.log")

    def processes(self):
        return [self.process]

    def start(self):
        self.process.start()
        probe = [*self.driver(), "-seconds", "0.1", "-warmup", "0.1", "-first", str(1 << 60)]
        wait_until(lambda: '"errors":0' in subprocess.run(probe, capture_output=True, text=True, check=False).stdout, 60,
                   "an answer of immudb")

    def driver(self):
        return [self.drive, "-endpoints", self.address, "-state", self.directory / "clients"]


class Tessera(System):
    """A log on Tessera's POSIX driver, in a process of its own (`loadtest/tessera`)."""

    name = "Tessera 1"

    def __init__(self, directory):
        super().__init__(directory)
        self.network = Loopback(["tessera"])
        server = build_go("tessera", "loadtest/tessera", "./server")
        self.drive = build_go("tessera-drive", "loadtest/tessera")
        self.address = f"{self.network.address('tessera')}:{TESSERA_PORT}"
        self.key = self.directory / "log.vkey"
        command = [server, "-dir", self.directory / "log", "-key", self.key, "-listen", self.address]
        self.process = Process("tessera", command, self.directory / "tessera.log")

    def processes(self):
        return [self.process]

    def start(self):
        self.process.start()
        wait_until(self.key.exists, 60, "the key of the log")
        probe = [*self.driver(), "-seconds", "1", "-warmup", "0.1", "-first", str(1 << 60)]
        wait_until(lambda: '"errors":0' in subprocess.run(probe, capture_output=True, text=True, check=False).stdout, 60,
                   "an answer of Tessera")

    def driver(self):
        return [self.drive, "-endpoints", self.address, "-key", self.key]
