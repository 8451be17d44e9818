"""A Coppice cluster of plain processes: three etcd, three shard-nodes (each with a replica of every
group), coordinators."""

import json
import os
import pathlib
import secrets
import subprocess

from .processes import Process, wait_until

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOLS = ROOT / "target" / "tools"

NODE_PORT = 4200
COORDINATOR_PORT = 4100
HTTP_PORT = 4180
HEALTH_PORT = 4190
ETCD_CLIENT_PORT = 2379
ETCD_PEER_PORT = 2380

# Only this cluster uses the network of its places, so it needs no certificates to be safe.
CLEAR = {"plaintext": True}

# Seconds from the start of all processes to a leader, on a busy machine.
READY_SECONDS = 90


class Failure(Exception):
    """The run cannot go on; the message says why."""


def build_go(name, directory, package=".", tags=""):
    """Builds a pinned Go program once; returns its path."""
    script = ROOT / "scripts" / "go-tool.sh"
    done = subprocess.run([script, name, ROOT / directory, package, tags], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise Failure(f"{name} could not be built; see above")
    return pathlib.Path(done.stdout.strip())


def output(script):
    """What one of the repository's scripts prints."""
    done = subprocess.run([ROOT / "scripts" / script], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise Failure(f"{script} failed; see above")
    return done.stdout.strip()


class Etcd:
    """Etcd members, each in its place."""

    def __init__(self, network, places, directory, binary):
        self.network, self.places = network, places
        peers = ",".join(f"{place}=http://{network.address(place)}:{ETCD_PEER_PORT}" for place in places)
        self.processes = {}
        for place in places:
            address = network.address(place)
            command = [
                binary, "--name", place, "--data-dir", pathlib.Path(directory) / place,
                "--listen-client-urls", f"http://{address}:{ETCD_CLIENT_PORT}",
                "--advertise-client-urls", f"http://{address}:{ETCD_CLIENT_PORT}",
                "--listen-peer-urls", f"http://{address}:{ETCD_PEER_PORT}",
                "--initial-advertise-peer-urls", f"http://{address}:{ETCD_PEER_PORT}",
                "--initial-cluster", peers, "--initial-cluster-state", "new", "--log-level", "warn",
            ]
            self.processes[place] = Process(place, network.command(place, command), pathlib.Path(directory) / f"{place}.log")

    def endpoints(self):
        return [f"http://{self.network.address(place)}:{ETCD_CLIENT_PORT}" for place in self.places]


def toml(value):
    """A value as TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(toml(item) for item in value) + "]"
    return json.dumps(str(value))


def write_toml(path, table):
    """Writes a table; values that are tables become sections."""
    lines = [f"{key} = {toml(value)}" for key, value in table.items() if not isinstance(value, dict)]
    for name, section in table.items():
        if isinstance(section, dict):
            lines += ["", f"[{name}]"] + [f"{key} = {toml(value)}" for key, value in section.items()]
    pathlib.Path(path).write_text("\n".join(lines) + "\n")


class Cluster:
    """Coppice in processes: nodes, coordinators, and, for more than one coordinator, etcd. Without
    coordinators, each node is a coordinator, too, in one process."""

    def __init__(self, network, directory, binaries, *, nodes, coordinators, etcd=None, clocks=None, ledger=None,
                 node_directories=None, settings=None, readers=()):
        self.network, self.directory = network, pathlib.Path(directory)
        self.binaries = pathlib.Path(binaries)
        self.nodes, self.coordinators, self.etcd = list(nodes), list(coordinators or nodes), etcd
        self.clocks, self.readers = clocks, frozenset(readers)
        self.ledger = ledger or {}
        self.settings = settings or {}
        self.node_directories = {node: self.directory / node for node in nodes} | (node_directories or {})
        self.directory.mkdir(parents=True, exist_ok=True)
        self.cluster_id, self.key, self.vkey = self._make_key()
        # The nodes' addresses in everybody's settings, which don't change.
        self.first_addresses = {node: network.address(node) for node in nodes}
        self.processes = {}
        for place in self.nodes:
            if place in self.coordinators:
                self._add(place, ["coppice", "serve"], self._serve_settings(place))
            else:
                self._add(place, ["coppice-shard-node"], self._node_settings(place))
        for place in self.coordinators:
            if place not in self.nodes:
                self._add(place, ["coppice-coordinator"], self._coordinator_settings(place))

    def _make_key(self):
        cluster = secrets.token_hex(16)
        key = self.directory / "ledger.key"
        subprocess.run([self.binaries / "coppice", "keygen", "--name", f"coppice/{cluster}", "--out", key],
                       check=True, capture_output=True)
        vkey = key.with_suffix(".vkey")
        if not vkey.exists():
            vkey = key.with_name(key.name + ".vkey")
        return cluster, key, vkey.read_text().strip()

    def _nodes_table(self, own=()):
        addresses = self.first_addresses | {place: self.network.address(place) for place in own}
        reads = {place: {"reader": True} for place in self.readers}
        return {f"nodes.{place}": {"ordinal": number, "address": f"{addresses[place]}:{NODE_PORT}", **reads.get(place, {})}
                for number, place in enumerate(self.nodes, start=1)}

    def _node_settings(self, place):
        metadata = {"metadata": {"endpoints": self.etcd.endpoints()}} if self.etcd else {}
        return {
            "node": place, "cluster_id": self.cluster_id, "data_dir": self.node_directories[place],
            "listen": f"{self.network.address(place)}:{NODE_PORT}", "bootstrap": "new",
            "health_listen": f"{self.network.address(place)}:{HEALTH_PORT}",
            "ledger": self.ledger, "access": CLEAR, **metadata, **self._nodes_table([place]),
            **self.settings.get("node", {}),
        }

    def _coordinator_settings(self, place):
        address = self.network.address(place)
        if self.etcd:
            metadata = {"endpoints": self.etcd.endpoints()}
        else:
            metadata = {"dir": self.directory / "metadata"}
        return {
            "name": place, "listen": f"{address}:{COORDINATOR_PORT}", "http_listen": f"{address}:{HTTP_PORT}",
            "health_listen": f"{address}:{HEALTH_PORT}",
            "advertise": f"{address}:{COORDINATOR_PORT}", "signing_key_file": self.key, "metadata": metadata,
            "ledger": self.ledger, "access": CLEAR, **self._nodes_table(), **self.settings.get("coordinator", {}),
        }

    def _serve_settings(self, place):
        coordinator, node = self._coordinator_settings(place), self._node_settings(place)
        return coordinator | node | {"api_listen": coordinator["listen"], "metadata": coordinator["metadata"]}

    def _add(self, place, program, settings):
        config = self.directory / f"{place}.toml"
        write_toml(config, settings)
        environment = self.clocks.environment(place) if self.clocks else {}
        # Settings in the caller's shell are for another ledger.
        environment |= {name: "" for name in os.environ if name.startswith("COPPICE_")}
        command = self.network.command(place, [self.binaries / program[0], *program[1:], "--config", config])
        self.processes[place] = Process(place, command, self.directory / f"{place}.log", environment)

    def form_no_more(self):
        """From now on a node with an empty directory joins existing groups, as an operator would
        configure it after the first start."""
        for place in self.nodes:
            self._write_joining(place)

    def _write_joining(self, place):
        write_toml(self.directory / f"{place}.toml", self._node_settings(place) | {"bootstrap": "existing"})

    def move(self, place):
        """Gives a stopped node another address. Only its own settings have it: the others find it
        by etcd."""
        self.network.move(place)
        self._write_joining(place)

    def all(self):
        """Every process by place. etcd comes first, since the others wait for it."""
        return {**(self.etcd.processes if self.etcd else {}), **self.processes}

    def endpoint(self, place):
        return f"http://{self.network.address(place)}:{COORDINATOR_PORT}"

    def endpoints(self):
        return [self.endpoint(place) for place in self.coordinators]

    def coppice(self, *arguments, place, endpoint=None, limit=20):
        """Runs the `coppice` command in a place. Returns its output, or None if it failed."""
        command = [self.binaries / "coppice", *(["--endpoint", endpoint] if endpoint else []), *arguments]
        try:
            done = subprocess.run(self.network.command(place, [str(part) for part in command]), capture_output=True,
                                  text=True, timeout=limit, check=False)
        except subprocess.TimeoutExpired:
            return None
        return done.stdout if done.returncode == 0 else None

    def status(self, place, limit=5):
        """The status from any coordinator, or None."""
        for endpoint in self.endpoints():
            text = self.coppice("status", "--json", place=place, endpoint=endpoint, limit=limit)
            if text:
                return json.loads(text)
        return None

    def start(self, place):
        """Starts everything, and waits until a coordinator leads; asks from `place`."""
        for process in self.all().values():
            process.start()

        def led():
            for name, process in self.all().items():
                code = process.ended_by_itself()
                if code is not None:
                    raise Failure(f"{name} ended with {code} at its start:\n{process.tail()}")
            status = self.status(place)
            return status if status and status.get("leader") else None

        return wait_until(led, READY_SECONDS, "a coordinator that leads")

    def stop(self):
        """Stops everything in order; returns what did not end well."""
        wrong = []
        order = [*self.coordinators, *self.nodes, *(self.etcd.places if self.etcd else [])]
        for place in dict.fromkeys(order):
            code = self.all()[place].stop()
            if code != 0 and not place.startswith("etcd"):
                wrong.append(f"{place} ended with {'SIGKILL, since it did not end' if code is None else code}")
        return wrong

    def kill(self):
        for process in self.all().values():
            process.thaw()
            process.kill()


def ills(status, replicas, readers=0):
    """Problems in a status, one line each: a group without this number of voters or without a
    leader among them, a shard with fewer readers, or no leading coordinator."""
    if not status or not status.get("leader"):
        return ["no leading coordinator reports the state of the groups"]
    wrong = []
    for group in status["groups"]:
        roles = [replica["role"] for replica in group["replicas"]]
        without = roles.count("learner") < (0 if group["group"] == "root" else readers)
        if roles.count("leader") != 1 or roles.count("follower") != replicas - 1 or without:
            wrong.append(f"{group['group']}: " + ", ".join(
                " ".join(filter(None, (replica.get("node"), replica["role"], replica.get("note")))) for replica in group["replicas"]))
    return wrong


def well(status, replicas, readers=0):
    """Whether every group of a status has this number of voters, one of which leads, every shard
    has its readers, and no replica is missing or ill."""
    return not ills(status, replicas, readers)
