"""The systems that are compared. Each is started fresh, and has its own official client as
driver."""

import json
import pathlib
import subprocess
import urllib.request

from .cluster import ETCD_CLIENT_PORT, Cluster, Etcd, build_go, well
from .network import Loopback
from .processes import Process, device_bytes_written, wait_until

IMMUDB_PORT = 3322


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
        """CPU seconds and bytes written of all processes, and bytes that the disk has written."""
        usages = [process.usage() for process in self.processes()]
        return sum(cpu for cpu, _ in usages), sum(written for _, written in usages), device_bytes_written(self.directory) or 0

    def stop(self):
        for process in self.processes():
            process.kill()


class Coppice(System):
    """Coppice in release binaries: nodes with a replica of each group, and one coordinator by
    default."""

    def __init__(self, directory, binaries, replicas, shards=1, coordinators=1):
        super().__init__(directory)
        self.name = f"Coppice {shards} x {replicas}"
        self.members = replicas
        nodes = [f"node-{number}" for number in range(1, replicas + 1)]
        names = [f"coordinator-{number}" for number in range(1, coordinators + 1)]
        etcds = ["etcd-1", "etcd-2", "etcd-3"] if coordinators > 1 else []
        self.network = Loopback([*nodes, *names, *etcds])
        etcd = Etcd(self.network, etcds, self.directory / "etcd", build_go("etcd", "scripts/etcd")) if etcds else None
        self.cluster = Cluster(self.network, self.directory / "cluster", binaries, nodes=nodes, coordinators=names, etcd=etcd,
                               ledger={"shards": shards}, settings={"node": {"log": "warn"}, "coordinator": {"log": "warn"}})

    def processes(self):
        return list(self.cluster.all().values())

    def start(self):
        self.cluster.start("node-1")
        wait_until(lambda: well(self.cluster.status("node-1"), self.members), 60, "leaders of all groups")

    def driver(self):
        return [self.cluster.binaries / "coppice-bench", "drive", "--endpoints", ",".join(self.cluster.endpoints()),
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

