#!/usr/bin/env python3
"""A real Kubernetes of one or more nodes on this machine, for tests; without a container engine,
systemd or a connection to other networks.

    bed.py build                build all programs and images; existing ones are kept
    bed.py up [--nodes N]       start a fresh cluster, and wait until pods can run
    bed.py in COMMAND...        run a command in the cluster's network: kubectl, helm, coppice, ...
    bed.py load ARCHIVE...      give image archives to all nodes
    bed.py off|on|cut|mend N    cut a node's power or its network cable, and restore it
    bed.py down                 end everything; logs stay

A node is a network namespace, and a process that is number 1 of a process namespace with mounts of
its own (`Node`). Ending that process is a power failure: the kernel ends everything inside and
drops the mounts, so no process has to be found by its name. Node 1 runs the control plane, and its
bridge is the switch that connects the others. Programs come from the modules that go.mod pins,
checked against go.sum.

A bed needs root, cgroups of version 1, overlayfs, bridges, nftables, and network, mount and process
namespaces; `unusable` says what is missing. Network policies and sizes of volumes are not enforced.
"""

import argparse
import concurrent.futures
import contextlib
import json
import os
import pathlib
import resource
import shutil
import signal
import string
import subprocess
import sys
import tempfile
import time

from apiserver import SERVICES, Api, Authority, api_server, certify_api, launch
from programs import HERE, IMAGES, ROOT, Failure, Programs, default_cache, eventually, run

__all__ = ["IMAGES", "Api", "Bed", "Failure", "run", "unusable"]

# These addresses exist only inside the namespaces.
NODE_ADDRESS, NODE_PODS = "10.71.0.{}", "10.72.{}.0/24"
ALL_PODS, DNS_SERVICE = "10.72.0.0/16", "10.73.0.10"
NODES_MAX = 9
FREE_GIB = 5
# The time limit for starts and ends: seconds, on a machine with nothing else to do.
START_SECONDS = 120
# Volumes that are prepared on each node.
VOLUMES = 12
# The kubelet demands these values, and would set them for the whole machine. It is shown files that
# contain them.
TUNABLES = {
    "vm/overcommit_memory": 1, "vm/panic_on_oom": 0, "kernel/panic": 10, "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1_000_000, "kernel/keys/root_maxbytes": 25_000_000,
}


def can_overlay(directory):
    """Whether overlayfs works on a directory: an image's layers are mounted over each other, and
    not every file system supports that."""
    with tempfile.TemporaryDirectory(dir=directory) as work:
        for name in ("lower", "upper", "work", "merged"):
            os.mkdir(f"{work}/{name}")
        mount = ["mount", "-t", "overlay", "overlay", "-o", f"lowerdir={work}/lower,upperdir={work}/upper,workdir={work}/work", f"{work}/merged"]
        return subprocess.run(["unshare", "--mount", *mount], capture_output=True, check=False).returncode == 0


# The parts of a network of machines and services; each is tried in a network of its own.
NETWORKS = {
    "bridges and pairs of links": "ip link add switch type bridge && ip link add cable type veth peer name far && ip link set cable master switch",
    "rules for what crosses bridges (br_netfilter)": "sysctl -qw net.bridge.bridge-nf-call-iptables=1",
    "translation of addresses by nftables": "nft 'add table ip t; add chain ip t c { type nat hook prerouting priority -100; };"
                                            " add rule ip t c ip daddr 10.0.0.1 tcp dport 1 dnat to 10.0.0.2:1; add chain ip t d"
                                            " { type nat hook postrouting priority 100; }; add rule ip t d masquerade'",
}


def unusable(directory):
    """The list of things that this machine lacks for a bed in a directory. Missing programs of the
    system are installed."""
    lacks = []
    if os.geteuid() != 0:
        return ["root"]
    try:
        Programs.install_system()
    except Failure as failure:
        return [f"programs of the system ({failure})"]
    for kind in ("memory", "pids", "cpu", "cpuset", "devices"):
        # Tests whether a place is writable: a container may show it and still deny access.
        if not os.access(f"/sys/fs/cgroup/{kind}/cgroup.procs", os.W_OK):
            lacks.append(f"cgroup {kind} of version 1")
    if not can_overlay(directory):
        lacks.append(f"a file system below {directory} on which overlayfs works")
    if subprocess.run(["unshare", "--net", "--mount", "--pid", "--fork", "true"], capture_output=True, check=False).returncode != 0:
        return [*lacks, "namespaces"]
    for what, trial in NETWORKS.items():
        if subprocess.run(["unshare", "--net", "sh", "-c", trial], capture_output=True, check=False).returncode != 0:
            lacks.append(what)
    return lacks


class Bed:
    """One cluster. Its name is the prefix of its nodes, network namespaces and cgroups."""

    def __init__(self, directory, cache=None, name="coppice-bed"):
        self.name, self.directory = name, pathlib.Path(directory).resolve()
        self.programs = Programs(cache or default_cache())
        self.pki = self.directory / "pki"

    def node(self, number):
        return Node(self, number)

    def nodes(self):
        """The nodes that are on."""
        return [node for number in range(1, NODES_MAX + 1) if (node := self.node(number)).pid()]

    # Operations on the bed.

    def up(self, nodes=1, say=print):
        began = time.monotonic()
        self.down()
        free = shutil.disk_usage(self.directory.parent).free >> 30
        if free < FREE_GIB:
            raise Failure(f"{free} GiB are free in {self.directory.parent}, and a cluster with its images may take {FREE_GIB}: kubelets on a full disk evict pods")
        every = [self.node(number) for number in range(1, nodes + 1)]
        self.certify(every)
        for node in every:
            node.plug_in(every)
            node.on()
        eventually("the API server is ready", START_SECONDS, lambda: self.kubectl("get", "--raw", "/readyz"))
        self.apply(self.fill(HERE / "config" / "cluster.yaml", every[0]))
        self.apply(json.dumps({"apiVersion": "v1", "kind": "List", "items": [volume for node in every for volume in node.volumes()]}))
        for node in every:
            eventually(f"containerd of {node.name} answers", START_SECONDS, lambda node=node: run(*self.command("ctr", "version", node=node)))
        self.load(*(self.programs.folder / f"{name}.tar" for name in IMAGES))
        self.kubectl("wait", "--for=condition=Ready", f"--timeout={START_SECONDS}s", *(f"node/{node.name}" for node in every))
        self.kubectl("-n", "kube-system", "rollout", "status", "deployment/coredns", f"--timeout={START_SECONDS}s")
        eventually("an account for pods", START_SECONDS, lambda: self.kubectl("get", "serviceaccount", "default"))
        say(f"a cluster of {nodes} node(s) is up after {time.monotonic() - began:.1f} s")

    def down(self):
        for node in [self.node(number) for number in range(1, NODES_MAX + 1)]:
            node.off()
            node.unplug()
            for path in node.directory.iterdir() if node.directory.exists() else ():
                if path.name != "log":
                    shutil.rmtree(path)
        for name in ("pki", "etcd", "volumes"):
            shutil.rmtree(self.directory / name, ignore_errors=True)

    def command(self, *words, node=None):
        """A command line that runs another one in a node's network, with its name server and the
        bed's programs."""
        node = node or self.node(1)
        containerd = f"/proc/{node.pid()}/root/run/containerd/containerd.sock"
        return ["ip", "netns", "exec", node.name, "env", f"PATH={self.programs.folder}:{os.environ['PATH']}",
                f"KUBECONFIG={self.pki}/admin.kubeconfig", f"CONTAINERD_ADDRESS={containerd}",
                "CONTAINERD_SUPPRESS_DEPRECATION_WARNINGS=1", *map(str, words)]

    def kubectl(self, *words, **options):
        return run(*self.command("kubectl", *words), **options)

    def apply(self, manifests):
        self.kubectl("apply", "-f", "-", input=manifests)

    def load(self, *archives):
        """Loads images on all nodes that are on."""
        def give(node, archive):
            run(*self.command("ctr", "--namespace", "k8s.io", "images", "import", "--local", pathlib.Path(archive).resolve(), node=node))

        with concurrent.futures.ThreadPoolExecutor() as pool:
            list(pool.map(lambda pair: give(*pair), [(node, archive) for node in self.nodes() for archive in archives]))

    # How the bed is made.

    def certify(self, nodes):
        made = Authority(self.pki)
        server = f"https://{nodes[0].address}:6443"
        certify_api(made, nodes[0].address, server)
        for name in ("kube-controller-manager", "kube-scheduler", "kube-proxy"):
            made.leaf(name, f"/CN=system:{name}")
            made.kubeconfig(name, server)
        for node in nodes:
            made.leaf(node.name, f"/O=system:nodes/CN=system:node:{node.name}", f"DNS:{node.name}", f"IP:{node.address}")
            made.kubeconfig(node.name, server)

    def fill(self, template, node):
        """A file of the configuration, for a node."""
        return string.Template(template.read_text()).substitute(
            name=node.name, node=node.directory, pods=node.pods, all_pods=ALL_PODS, dns=DNS_SERVICE, bin=self.programs.folder, pki=self.pki,
            pause=IMAGES["pause"], coredns=IMAGES["coredns"], files=resource.getrlimit(resource.RLIMIT_NOFILE)[1], first=self.node(1).name)


class Node:
    """A machine of the cluster. Its network namespace and its cgroup have the same name."""

    def __init__(self, bed, number):
        self.bed, self.number = bed, number
        self.name = f"{bed.name}-{number}"
        self.address, self.pods = NODE_ADDRESS.format(number), NODE_PODS.format(number)
        self.directory = bed.directory / f"node-{number}"
        self.log = self.directory / "log"
        self.record = self.directory / "pid"

    def pid(self):
        """The process that is the node, if the node is on; another process that reuses its number
        doesn't count."""
        with contextlib.suppress(OSError, ValueError):
            pid, started = self.record.read_text().split()
            if start_of(f"/proc/{pid}/stat")[1] == started:
                return int(pid)
        return None

    # The node from outside.

    def on(self):
        if self.pid():
            raise Failure(f"{self.name} is on already")
        self.log.mkdir(parents=True, exist_ok=True)
        (self.directory / "config").mkdir(exist_ok=True)
        for template in (HERE / "config").iterdir():
            (self.directory / "config" / template.name).write_text(self.bed.fill(template, self))
        for controller in self.controllers():
            folder = controller / self.name
            folder.mkdir(exist_ok=True)
            for file in ("cpuset.cpus", "cpuset.mems"):
                # A new cgroup has neither value, and then accepts no process.
                if (controller / file).exists():
                    (folder / file).write_text((controller / file).read_text())
        with open(self.log / "node.log", "ab") as log:
            # `ip netns exec` is not used: its own /sys would hide the cgroups.
            inside = ["nsenter", f"--net=/run/netns/{self.name}", "unshare", "--mount", "--pid", "--uts", "--ipc", "--fork", sys.executable,
                      __file__, "--directory", self.bed.directory, "--name", self.bed.name, "be", self.number]
            subprocess.Popen([str(word) for word in inside], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        eventually(f"{self.name} is on (see {self.log}/node.log)", START_SECONDS, self.pid)

    def off(self):
        if pid := self.pid():
            os.kill(pid, signal.SIGKILL)
            eventually(f"{self.name} is off", START_SECONDS, lambda: not self.pid())
        self.record.unlink(missing_ok=True)

    def inside(self):
        """The processes in its network, including those of a node whose record was lost."""
        listed = subprocess.run(["ip", "netns", "pids", self.name], capture_output=True, text=True, check=False).stdout
        return [int(pid) for pid in listed.split()]

    def plug_in(self, every):
        run("ip", "netns", "add", self.name)
        inside = ("ip", "-n", self.name)
        run(*inside, "link", "set", "lo", "up")
        first = self.bed.node(1)
        if self.number == 1:
            run(*inside, "link", "add", "up0", "type", "bridge")
        else:
            run(*inside, "link", "add", "up0", "type", "veth", "peer", "name", f"cable{self.number}", "netns", first.name)
            run("ip", "-n", first.name, "link", "set", f"cable{self.number}", "master", "up0", "up")
        run(*inside, "address", "add", f"{self.address}/24", "dev", "up0")
        run(*inside, "link", "set", "up0", "up")
        # This route is never used, but without it a connection to a service fails before
        # kube-proxy's rules can redirect it.
        run(*inside, "route", "add", SERVICES, "dev", "up0")
        for other in every:
            if other.number != self.number:
                run(*inside, "route", "add", other.pods, "via", other.address)
        # The second setting: answers between pods of one node must pass the same rules as the
        # requests.
        run("nsenter", f"--net=/run/netns/{self.name}", "sysctl", "-qw", "net.ipv4.ip_forward=1", "net.bridge.bridge-nf-call-iptables=1")
        settings = pathlib.Path("/etc/netns") / self.name
        settings.mkdir(parents=True, exist_ok=True)
        (settings / "resolv.conf").write_text(f"nameserver {DNS_SERVICE}\nsearch svc.cluster.local cluster.local\noptions ndots:5\n")

    def unplug(self):
        if pathlib.Path(f"/run/netns/{self.name}").exists():
            # Processes of an earlier run that was killed, and whose folder was removed.
            for pid in self.inside():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            eventually(f"nothing is left in the network of {self.name}", START_SECONDS, lambda: not self.inside())
            run("ip", "netns", "delete", self.name)
        shutil.rmtree(pathlib.Path("/etc/netns") / self.name, ignore_errors=True)

        def empty(folder):
            with contextlib.suppress(OSError):
                for path, _, _ in os.walk(folder, topdown=False):
                    os.rmdir(path)
            return not folder.exists()

        for controller in self.controllers():
            eventually(f"no process is left in {controller / self.name}", START_SECONDS, lambda folder=controller / self.name: empty(folder))

    def cable(self, state):
        if self.number == 1:
            raise Failure("node 1 has no cable: it is the switch")
        run("ip", "-n", self.bed.node(1).name, "link", "set", f"cable{self.number}", state)

    @staticmethod
    def controllers():
        return [path.parent for path in pathlib.Path("/sys/fs/cgroup").glob("*/cgroup.procs") if path.parent.name != "unified"]

    def volumes(self):
        """Directories that wait for claims. They are `local` volumes, to which a pod's fsGroup
        applies as it does to a real disk."""
        for index in range(VOLUMES):
            path = self.bed.directory / "volumes" / f"{self.name}-{index}"
            # Disks of cloud providers are not empty at first, either.
            (path / "lost+found").mkdir(parents=True, mode=0o700)
            term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [self.name]}]}
            yield {
                "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": path.name},
                "spec": {
                    "storageClassName": "bed", "capacity": {"storage": "100Gi"}, "accessModes": ["ReadWriteOnce"],
                    "persistentVolumeReclaimPolicy": "Retain", "local": {"path": str(path)},
                    "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
                },
            }

    # The node from inside.

    def be(self):
        """Runs as process 1 of the node, for as long as it is on."""
        pid, started = start_of("/proc/self/stat")
        run("mount", "-t", "proc", "proc", "/proc")
        run("hostname", self.name)
        # The runtimes write to fixed places. Sockets must not outlive a power failure, so they get
        # memory; the rest gets folders of the bed.
        run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
        for place, folder in (("/var/lib/kubelet", self.directory / "kubelet"), ("/var/log", self.log)):
            for path in (pathlib.Path(place), folder):
                path.mkdir(parents=True, exist_ok=True)
            run("mount", "--bind", folder, place)
        for name, value in TUNABLES.items():
            shown = pathlib.Path("/run/tunables") / name
            shown.parent.mkdir(parents=True, exist_ok=True)
            shown.write_text(f"{value}\n")
            run("mount", "--bind", shown, f"/proc/sys/{name}")
        # The kubelet's mounts must be visible in containers.
        run("mount", "--make-rshared", "/")
        os.environ["PATH"] = f"{self.bed.programs.folder}:{os.environ['PATH']}"
        programs = {**(self.control_plane() if self.number == 1 else {}), **self.machine()}
        running = {}

        def start(name):
            process = launch(self.bed.programs, name, programs[name], self.log)
            running[process.pid] = name, process

        for name in programs:
            start(name)
        # The record is written atomically, and last: once it is visible, the node can be entered.
        new = self.record.with_suffix(".new")
        new.write_text(f"{pid} {started}\n")
        new.rename(self.record)
        while True:
            ended, status = os.wait()
            name, _ = running.pop(ended, (None, None))
            if name:
                print(f"{name} ended with {os.waitstatus_to_exitcode(status)} and is started again", flush=True)
                time.sleep(0.5)
                start(name)

    def control_plane(self):
        pki = self.bed.pki

        def controller(name, **more):
            own = pki / f"{name}.kubeconfig"
            return {name: {"kubeconfig": own, "authentication-kubeconfig": own, "authorization-kubeconfig": own,
                           "leader-elect": "false", "bind-address": "127.0.0.1", **{key.replace("_", "-"): value for key, value in more.items()}}}

        return {
            **api_server(pki, self.bed.directory / "etcd", self.address, 6443, 2379, 2380),
            # Each controller requests an account at first; at the default rate, that takes seconds.
            **controller("kube-controller-manager", use_service_account_credentials="true", kube_api_qps=200, kube_api_burst=400,
                         service_account_private_key_file=pki / "accounts.key", root_ca_file=pki / "ca.crt"),
            **controller("kube-scheduler"),
        }

    def machine(self):
        config = self.directory / "config"
        return {
            "containerd": {"config": config / "containerd.toml"},
            "kubelet": {"config": config / "kubelet.yaml", "kubeconfig": self.bed.pki / f"{self.name}.kubeconfig",
                        "hostname-override": self.name, "node-ip": self.address},
            "kube-proxy": {"config": config / "kube-proxy.yaml"},
        }


def start_of(stat):
    """A process's number, and its start time."""
    text = pathlib.Path(stat).read_text()
    return text.split()[0], text.rpartition(")")[2].split()[19]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=pathlib.Path, default=ROOT / "target" / "bed", help="the directory of the cluster's data")
    parser.add_argument("--name", default="coppice-bed", help="clusters with different names are independent")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("build")
    commands.add_parser("up").add_argument("--nodes", type=int, default=1, choices=range(1, NODES_MAX + 1))
    commands.add_parser("in").add_argument("words", nargs=argparse.REMAINDER)
    commands.add_parser("load").add_argument("archives", nargs="+")
    for name in ("off", "on", "cut", "mend", "be"):
        commands.add_parser(name).add_argument("node", type=int, choices=range(1, NODES_MAX + 1))
    commands.add_parser("down")
    options = parser.parse_args()
    bed = Bed(options.directory, name=options.name)
    match options.command:
        case "build":
            bed.programs.build()
        case "up":
            options.directory.mkdir(parents=True, exist_ok=True)
            if lacks := unusable(options.directory):
                raise Failure(f"this machine lacks {', '.join(lacks)}")
            bed.programs.build()
            bed.up(options.nodes)
        case "in":
            command = bed.command(*options.words)
            os.execvp(command[0], command)
        case "load":
            bed.load(*options.archives)
        case "down":
            bed.down()
        case "off" | "on" | "be":
            getattr(bed.node(options.node), options.command)()
        case "cut":
            bed.node(options.node).cable("down")
        case "mend":
            bed.node(options.node).cable("up")


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"bed.py: {failure}")
