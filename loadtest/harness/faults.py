"""Faults: how they are injected and undone."""

import os
import shutil
import time

from . import schedule
from .cluster import well
from .processes import wait_until


class NotInjected(Exception):
    """The fault is not possible on this machine, or has no target now."""


class Faults:
    """Injects the faults of a plan into a cluster."""

    def __init__(self, cluster, network, clocks, observer, small_disks, say):
        self.cluster, self.network, self.clocks = cluster, network, clocks
        self.observer, self.small_disks, self.say = observer, small_disks, say
        self.inject = {
            "kill node": self._kill, "kill coordinator": self._kill, "kill etcd": self._kill,
            "freeze node": self._freeze, "freeze coordinator": self._freeze, "freeze etcd": self._freeze,
            "isolate node": self._isolate, "isolate coordinator": self._isolate,
            "node can't send": self._cannot_send, "node can't receive": self._cannot_receive,
            "coordinator without nodes": self._without_nodes, "nodes apart": self._apart, "slow link": self._slow,
            "full disk": self._full, "clock shift": self._shift, "lost disk": self._lose,
            "move node": self._move,
            "kill everything": self._kill_all, "kill all etcd": self._kill_all, "kill all coordinators": self._kill_all,
            "rolling restart": self._roll,
        }
        assert set(self.inject) == set(schedule.KINDS), "every kind of fault can be brought about"

    def bring(self, fault):
        """Injects a fault; returns its target, and a function that undoes it."""
        target = self._resolve(fault)
        undo = self.inject[fault.kind](fault, target)
        return target, undo

    def _resolve(self, fault):
        if fault.target != schedule.LEADER:
            if fault.target != "all" and fault.target not in self.cluster.all():
                raise NotInjected(f"this run has no {fault.target}")
            return fault.target
        status = self.cluster.status(self.observer)
        leader = status and status.get("leader")
        # Nobody leads now, so the first coordinator is chosen.
        return leader if leader in self.cluster.coordinators else self.cluster.coordinators[0]

    def _group(self, kind):
        every = self.cluster.all()
        names = {"kill all etcd": "etcd", "kill all coordinators": "coordinator"}
        return [process for name, process in every.items() if name.startswith(names.get(kind, ""))]

    def _kill(self, fault, target):
        process = self.cluster.all()[target]
        process.kill()
        return process.start

    def _kill_all(self, fault, target):
        del target
        processes = self._group(fault.kind)
        for process in processes:
            process.kill()

        def start():
            for process in processes:
                process.start()

        return start

    def _freeze(self, fault, target):
        process = self.cluster.all()[target]
        process.freeze()
        return process.thaw

    def _need_cuts(self):
        if not self.network.can_cut:
            raise NotInjected("no network namespaces")

    def _others(self, target):
        return [place for place in self.cluster.all() if place != target]

    def _isolate(self, fault, target):
        self._need_cuts()
        for other in self._others(target):
            self.network.cut(target, other)
            self.network.cut(other, target)
        return self.network.heal

    def _cannot_send(self, fault, target):
        self._need_cuts()
        for other in self._others(target):
            self.network.cut(target, other)
        return self.network.heal

    def _cannot_receive(self, fault, target):
        self._need_cuts()
        for other in self._others(target):
            self.network.cut(other, target)
        return self.network.heal

    def _without_nodes(self, fault, target):
        self._need_cuts()
        for node in self.cluster.nodes:
            self.network.cut(target, node)
            self.network.cut(node, target)
        return self.network.heal

    def _apart(self, fault, target):
        """The node does not reach the other nodes; coordinators reach all of them."""
        self._need_cuts()
        for other in self.cluster.nodes:
            if other != target:
                self.network.cut(target, other)
                self.network.cut(other, target)
        return self.network.heal

    def _slow(self, fault, target):
        self._need_cuts()
        self.network.slow(target, 400)
        return self.network.heal

    def _full(self, fault, target):
        directory = self.small_disks.get(target)
        if not directory:
            raise NotInjected("no small disk could be mounted")
        ballast = directory / "ballast"
        size = 1 << 20
        with open(ballast, "wb", buffering=0) as file:
            while size >= 512:
                try:
                    file.write(b"\0" * size)
                except OSError:
                    size //= 2
        return ballast.unlink

    def _shift(self, fault, target):
        self.clocks.shift(target, fault.amount)
        return lambda: self.clocks.shift(target, 0)

    def _lose(self, fault, target):
        """The node's directory is lost; the node comes back with an empty one, under new raft
        ids."""
        process = self.cluster.all()[target]
        process.kill()
        directory = self.cluster.node_directories[target]
        for entry in os.scandir(directory):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                os.unlink(entry.path)
        return process.start

    def _move(self, fault, target):
        """The node comes back under another address, which it tells only etcd."""
        if not self.cluster.etcd:
            raise NotInjected("no etcd that says where the node is")
        process = self.cluster.all()[target]
        process.kill()
        self.cluster.move(target)
        return process.start

    def _roll(self, fault, target):
        """Every process is stopped in order and started again, each when the last one is well."""
        del target
        for place in [*self.cluster.nodes, *self.cluster.coordinators]:
            process = self.cluster.all()[place]
            code = process.stop()
            if code != 0:
                self.say(f"{place} did not stop in order: {code}")
            process.start()
            time.sleep(0.2)
            wait_until(self.observer_well, 60, f"everything well after the restart of {place}")
        return lambda: None

    def observer_well(self):
        readers = len(self.cluster.readers)
        return well(self.cluster.status(self.observer), len(self.cluster.nodes) - readers, readers)
