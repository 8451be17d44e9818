"""Goals of the comparison of clusters. Most are ratios of medians of one run, so that they hold on
any machine."""

import statistics

ONE, THREE = "Coppice 1 x 1", "Coppice 1 x 3"
ETCD, ETCD_THREE, IMMUDB, TESSERA = "etcd 1", "etcd 3", "immudb 1", "Tessera 1"
# Names of loads; names of reads say how they are answered.
VERIFIED, LINEARIZABLE = "verified reads", "linearizable reads"
SHARED = ", 4 connections"
TEN = " of 10 keys"
MANY = " of 2000 keys, 1 client"
RECEIPTS = "receipts 1 x 1024 B"
CROWD = ", 1024 clients"


def median(events, *path):
    def pick(event):
        for name in path:
            event = event[name]
        return event

    return statistics.median(pick(event) for event in events)


class Judge:
    """The figures of a run. A goal whose figures are missing is left out."""

    def __init__(self, cells):
        self.cells = cells
        self.rows = []

    def figure(self, system, what, *path):
        """The median of a figure; `None` if it was not measured, or nothing was done."""
        events = self.cells.get(system, {}).get(what)
        return median(events, *path) if events and median(events, "calls") else None

    def add(self, goal, reached, holds):
        self.rows.append((goal, reached, holds))

    def faster(self, left, what, least, right, other=None):
        """Records a second of one system, as a multiple of another system's."""
        other = other or what
        mine, theirs = (self.figure(*cell, "records_per_second") for cell in ((left, what), (right, other)))
        if mine is not None and theirs:
            loads = f"{left} >= {least} x {right}, {what}" if what == other else f"{left}, {what} >= {least} x {right}, {other}"
            self.add(loads, f"{mine / theirs:.2f} x", mine / theirs >= least)

    def earlier(self, left, what, most, right):
        """p99 of one system, as a part of another system's."""
        mine, theirs = (self.figure(system, what, "latency_us", "p99") for system in (left, right))
        if mine is not None and theirs:
            self.add(f"{left}, {what}: p99 <= {most} x {right}", f"{mine / theirs:.2f} x", mine / theirs <= most)

    def resumes(self, name, what, most_ms):
        events = self.cells.get(name, {}).get("killed leader")
        if events:
            gap = median(events, "gap_ms")
            self.add(f"commits resume within {most_ms / 1000:g} s after {what} is killed", f"{gap:.0f} ms", gap <= most_ms)


def goals(cells, ceiling, values, batches):
    """(goal, measured value, whether the goal holds) for each goal that was measured."""
    judge = Judge(cells)
    for value in values:
        thousand, one = f"write 1000 x {value} B", f"write 1 x {value} B"
        judge.faster(ONE, thousand, 2.5, IMMUDB)
        judge.faster(THREE, thousand, 1.2, IMMUDB)
        judge.faster(THREE, thousand, 3, ETCD_THREE)
        judge.faster(ONE, one, 1.25, ETCD)
        judge.faster(THREE, one, 1, ETCD_THREE)
    judge.faster(ONE, RECEIPTS, 3, TESSERA)
    judge.faster(ONE, RECEIPTS, 3, TESSERA, RECEIPTS + CROWD)
    for left, right in ((ONE, ETCD), (THREE, ETCD_THREE)):
        judge.faster(left, VERIFIED, 0.6, right, LINEARIZABLE)
        judge.faster(left, VERIFIED + SHARED, 0.9, right, LINEARIZABLE + SHARED)
        judge.faster(left, VERIFIED + TEN, 2, right, LINEARIZABLE)
    judge.faster(ONE, VERIFIED, 15, IMMUDB)
    for system in (ONE, THREE):
        reached = judge.figure(system, VERIFIED + MANY, "latency_us", "p50")
        if reached is not None:
            judge.add(f"{system}, {VERIFIED + MANY}: p50 <= 30 ms", f"{reached / 1000:.1f} ms", reached <= 30_000)
    latencies(judge, ceiling, max(values), batches)
    two, many = (judge.figure(f"Coppice {shards} x 1", "one shard touched, 1 client", "latency_us", "p50") for shards in (2, 64))
    if two and many:
        judge.add("a version that touches 1 of 64 shards takes as long as with 1 of 2 (within a fifth)", f"{many / two:.2f} x",
                  many / two <= 1.2)
    judge.resumes(THREE, "the leading node", 500)
    judge.resumes("Coppice 1 x 3, 3 coordinators", "the leading coordinator", 3000)
    return judge.rows


def latencies(judge, ceiling, value, batches):
    """p99 at half of each system's own rate."""
    for batch in batches:
        for left, right in ((ONE, ETCD), (THREE, ETCD_THREE)):
            judge.earlier(left, f"half load {batch} x {value} B", 0.4 if batch >= 1000 else 0.35, right)
    limit = 3 * ceiling["append_4k_fdatasync_us"]["p99"] / 1000 + 5
    for system in (ONE, THREE):
        # A batch of 1,000 is sent, hashed and logged for longer than that.
        for batch in (batch for batch in batches if batch < 1000):
            reached = judge.figure(system, f"half load {batch} x {value} B", "latency_us", "p99")
            if reached is not None:
                judge.add(f"{system}, batches of {batch}: p99 at half load <= {limit:.1f} ms (3 x fdatasync p99 + 5 ms)",
                          f"{reached / 1000:.1f} ms", reached / 1000 <= limit)
