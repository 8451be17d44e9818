"""A private network: one namespace for each place, one that routes between them, and faults on the
routes.

Every place has a network 10.213.N.0/24 behind its own virtual cable, and an address in it, which
may change. All packets pass the hub. It can silently drop those from one place to another (a
routing rule), and limit the rate towards a place (a token bucket). Nothing is visible outside: the
namespaces have no connection to other networks, and are removed by `close`.

Where namespaces can't be made, `open_network` fails. With CHAOS_ALLOW_FEWER_FAULTS=1 it uses
addresses on the loopback interface instead. Nothing can be cut or slowed down then, and the report
lists the faults that were not injected.
"""

import os
import subprocess
import sys

# If this variable is 1, tests may run on a machine on which some faults can't be injected.
ALLOW_FEWER_FAULTS = "CHAOS_ALLOW_FEWER_FAULTS"
# The range of the last number of a place's address.
FIRST_HOST, LAST_HOST = 2, 254


def _next(host):
    return host + 1 if host < LAST_HOST else FIRST_HOST


def _run(*command):
    subprocess.run(command, check=True, capture_output=True, text=True)


class Namespaces:
    """Places in namespaces of their own."""

    can_cut = True
    description = "network namespaces, one a place, joined by a router"

    def __init__(self, places):
        self.places = {place: number for number, place in enumerate(places, start=1)}
        self.hosts = dict.fromkeys(places, FIRST_HOST)
        self.tag = f"cop{os.getpid()}"
        self.hub = f"{self.tag}-hub"
        self._made = []
        self._cuts = set()
        self._slow = set()
        _sweep()
        try:
            self._make()
        except BaseException:
            self.close()
            raise

    def _make(self):
        self._add(self.hub)
        _run("ip", "-n", self.hub, "link", "set", "lo", "up")
        _run("ip", "netns", "exec", self.hub, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        # The sender is not told about a dropped packet, as in a broken network.
        for place, number in self.places.items():
            name, cable = self._name(place), self._cable(place)
            self._add(name)
            _run("ip", "-n", self.hub, "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", name)
            _run("ip", "-n", self.hub, "addr", "add", f"10.213.{number}.1/24", "dev", cable)
            _run("ip", "-n", self.hub, "link", "set", cable, "up")
            _run("ip", "-n", name, "link", "set", "lo", "up")
            _run("ip", "-n", name, "link", "set", "eth0", "up")
            self._settle(place)

    def _add(self, name):
        _run("ip", "netns", "add", name)
        self._made.append(name)

    def _name(self, place):
        return f"{self.tag}-{place}"

    def _cable(self, place):
        return f"cable{self.places[place]}"

    def _settle(self, place):
        """Assigns a place its present address."""
        _run("ip", "-n", self._name(place), "addr", "add", f"{self.address(place)}/24", "dev", "eth0")
        _run("ip", "-n", self._name(place), "route", "add", "default", "via", f"10.213.{self.places[place]}.1")

    def address(self, place):
        """The address of a place."""
        return f"10.213.{self.places[place]}.{self.hosts[place]}"

    def move(self, place):
        """Gives a place another address. The old address is nobody's afterwards, and its routes are
        gone."""
        _run("ip", "-n", self._name(place), "addr", "del", f"{self.address(place)}/24", "dev", "eth0")
        self.hosts[place] = _next(self.hosts[place])
        self._settle(place)

    def command(self, place, command):
        """The command that runs another one in a place, under the same process id."""
        return ["ip", "netns", "exec", self._name(place), *command]

    def cut(self, source, target):
        """Drops packets from `source` to `target`."""
        if (source, target) not in self._cuts:
            self._cuts.add((source, target))
            self._rule("add", source, target)

    def heal(self):
        """Undoes all cuts and rate limits."""
        for source, target in sorted(self._cuts):
            self._rule("del", source, target)
        self._cuts.clear()
        for place in sorted(self._slow):
            _run("ip", "netns", "exec", self.hub, "tc", "qdisc", "del", "dev", self._cable(place), "root")
        self._slow.clear()

    def _rule(self, verb, source, target):
        source, target = (f"10.213.{self.places[place]}.0/24" for place in (source, target))
        _run("ip", "-n", self.hub, "rule", verb, "from", source, "to", target, "blackhole")
        _run("ip", "-n", self.hub, "route", "flush", "cache")

    def slow(self, place, kbit):
        """Limits the rate towards a place: packets queue for up to a second, then some are lost."""
        if place not in self._slow:
            bucket = ["tbf", "rate", f"{kbit}kbit", "burst", "16kb", "latency", "1000ms"]
            _run("ip", "netns", "exec", self.hub, "tc", "qdisc", "add", "dev", self._cable(place), "root", *bucket)
            self._slow.add(place)

    def close(self):
        """Removes everything."""
        for name in reversed(self._made):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        self._made.clear()


class Loopback:
    """Places on addresses of their own on the loopback interface, where nothing can be cut."""

    can_cut = False
    description = "addresses 127.1.N.2 on the loopback interface: no partitions, no slow links"

    def __init__(self, places):
        self.places = {place: number for number, place in enumerate(places, start=1)}
        self.hosts = dict.fromkeys(places, FIRST_HOST)

    def address(self, place):
        return f"127.1.{self.places[place]}.{self.hosts[place]}"

    def move(self, place):
        self.hosts[place] = _next(self.hosts[place])

    def command(self, place, command):
        del place
        return list(command)

    def heal(self):
        pass

    def close(self):
        pass


def _sweep():
    """Removes namespaces of runs that were killed."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    for line in listed.splitlines():
        name = line.split()[0] if line.split() else ""
        owner = name[3:].split("-")[0] if name.startswith("cop") else ""
        if owner.isdigit() and not os.path.exists(f"/proc/{owner}"):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def do_without(what, remedy):
    """Says loudly what this machine lacks. Fails unless ALLOW_FEWER_FAULTS permits that."""
    if os.environ.get(ALLOW_FEWER_FAULTS) != "1":
        raise OSError(f"{what}: {remedy}, or set {ALLOW_FEWER_FAULTS}=1 to do without")
    print(f"{what} ({ALLOW_FEWER_FAULTS}=1); {remedy} to have them", file=sys.stderr, flush=True)


def open_network(places):
    """Makes namespaces. Where that is impossible and permitted, uses the loopback interface."""
    try:
        return Namespaces(places)
    except (OSError, subprocess.CalledProcessError) as error:
        why = str(getattr(error, "stderr", None) or error).strip()
        do_without(f"NO PARTITIONS, NO SLOW LINKS: network namespaces can't be made here ({why})",
                   "run as root, with iproute2 (Debian: apt install iproute2)")
        return Loopback(places)
