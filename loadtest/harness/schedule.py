"""The plan of faults: a function of only the seed and the length of the run."""

import dataclasses
import random

NODES = ("node-1", "node-2", "node-3")
# A node that hosts readers alone.
READERS = ("node-4",)
COORDINATORS = ("coordinator-1", "coordinator-2", "coordinator-3")
ETCDS = ("etcd-1", "etcd-2", "etcd-3")
# Stands for the coordinator that leads when the fault begins.
LEADER = "leader"

# Kind: (possible targets, shortest and longest time in seconds). A short run takes these first.
ESSENTIAL = {
    "kill node": (NODES + READERS, (1, 4)),
    "kill coordinator": ((LEADER,), (1, 4)),
    "freeze node": (NODES, (2, 5)),
    "freeze coordinator": ((LEADER,), (4, 8)),
    "isolate node": (NODES + READERS, (2, 6)),
    "isolate coordinator": ((LEADER,), (3, 6)),
    "node can't send": (NODES, (2, 6)),
    "slow link": (NODES, (3, 6)),
    "full disk": (("node-3",), (3, 6)),
    "clock shift": (NODES + COORDINATORS, (2, 5)),
    "lost disk": (NODES + READERS, (1, 2)),
    "move node": (NODES, (1, 3)),
    "kill everything": (("all",), (1, 2)),
}
FURTHER = {
    "kill etcd": (ETCDS, (2, 6)),
    "freeze etcd": (ETCDS, (2, 6)),
    "kill all etcd": (("all",), (2, 8)),
    "kill all coordinators": (("all",), (1, 3)),
    "node can't receive": (NODES, (2, 6)),
    "coordinator without nodes": ((LEADER,), (3, 8)),
    "nodes apart": (NODES, (2, 6)),
    "rolling restart": (("all",), (0, 0)),
}
KINDS = {**ESSENTIAL, **FURTHER}

# Pairs of faults at the same time, in different tiers; the first of a pair decides how long.
_TOGETHER = {
    "kill node": ("kill coordinator", "kill etcd", "freeze coordinator"),
    "isolate node": ("kill coordinator", "freeze etcd"),
    "freeze node": ("kill coordinator", "isolate coordinator"),
    "slow link": ("kill coordinator",),
}
# Seconds between two faults, once the ledger is well again.
CALM_SECONDS = (1, 3)
# Seconds that a plan assumes for healing after a fault; a run takes as many faults as then fit.
_HEALING_SECONDS = 4


@dataclasses.dataclass(frozen=True)
class Fault:
    """One fault: kind, target, duration; for a shift of a clock also its amount, in seconds."""

    kind: str
    target: str
    seconds: float
    calm: float
    amount: float = 0.0
    also: "Fault | None" = None

    def __str__(self):
        shift = f" by {self.amount:+.0f} s" if self.amount else ""
        also = f", and {self.also.kind}: {self.also.target}" if self.also else ""
        return f"{self.kind}: {self.target}{shift} for {self.seconds:.1f} s{also}"


def _draw(rng, kind):
    targets, (low, high) = KINDS[kind]
    amount = rng.choice((-86400, -3600, -5, 5, 3600, 86400)) if kind == "clock shift" else 0.0
    return Fault(kind, rng.choice(targets), round(rng.uniform(low, high), 1), round(rng.uniform(*CALM_SECONDS), 1), amount)


def plan(seed, seconds, only=None):
    """The faults of a run, in order; only of some kinds, if any are named."""
    rng = random.Random(seed)
    faults, used, bag = [], 0.0, []
    while used < seconds:
        if not bag:
            first, then = ([kind for kind in kinds if not only or kind in only] for kinds in (ESSENTIAL, FURTHER))
            rng.shuffle(first)
            rng.shuffle(then)
            bag = first + then
        fault = _draw(rng, bag.pop(0))
        if len(faults) >= len(KINDS) and fault.kind in _TOGETHER and rng.random() < 0.5:
            fault = dataclasses.replace(fault, also=_draw(rng, rng.choice(_TOGETHER[fault.kind])))
        faults.append(fault)
        used += fault.seconds + fault.calm + _HEALING_SECONDS
    return faults
