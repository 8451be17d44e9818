"""Tests of the comparison's conclusions from its measurements."""

import unittest

import bench


def event(rate, p50=1000, p99=2000, calls=100, **more):
    latency = {"p50": p50, "p90": p99, "p99": p99, "p999": p99, "max": p99}
    return {"records_per_second": rate, "latency_us": latency, "calls": calls, "errors": 0, "cpu_us_per_record": 1,
            "io_bytes_per_record": 1, "disk_bytes_per_record": 1, **more}


CEILING = {"append_4k_fdatasync_us": {"p50": 200, "p99": 1000, "p999": 2000}, "sequential_write_mb_per_second": 1000,
           "sha256_1k_mb_per_second": 1500, "sha256_64_mb_per_second": 500}


class Goals(unittest.TestCase):
    def test_a_ratio_is_of_medians_and_holds_from_its_limit_on(self):
        cells = {"Coppice 1 x 1": {"write 1000 x 1024 B": [event(10), event(299), event(900)]},
                 "immudb 1": {"write 1000 x 1024 B": [event(100)]}}
        self.assertEqual(bench.goals(cells, CEILING),
                         [("Coppice 1 x 1 >= 3 x immudb 1, write 1000 x 1024 B", "2.99 x", False)])
        cells["immudb 1"]["write 1000 x 1024 B"] = [event(99)]
        self.assertTrue(bench.goals(cells, CEILING)[0][2])

    def test_latency_is_held_to_what_the_disk_allows(self):
        half = "half load 1 x 1024 B"
        for p99, holds in ((8000, True), (8001, False)):
            cells = {"Coppice 1 x 3": {half: [event(1, p99=p99)]}}
            self.assertEqual([row[2] for row in bench.goals(cells, CEILING)], [holds])

    def test_what_was_not_measured_is_no_goal(self):
        half, one = "half load 1 x 1024 B", "one shard touched, 1 client"
        cells = {"Coppice 1 x 1": {half: [event(0, calls=0)]}, "Coppice 2 x 1": {one: [event(0, p50=0, calls=0)]},
                 "Coppice 64 x 1": {one: [event(5)]}}
        self.assertEqual(bench.goals(cells, CEILING), [])

    def test_many_shards_cost_what_two_do(self):
        one = "one shard touched, 1 client"
        for p50, holds in ((1200, True), (1201, False)):
            cells = {"Coppice 2 x 1": {one: [event(5)]}, "Coppice 64 x 1": {one: [event(5, p50=p50)]}}
            self.assertEqual([row[2] for row in bench.goals(cells, CEILING)], [holds])


class Report(unittest.TestCase):
    def test_every_figure_and_verdict_is_in_the_table(self):
        cells = {"Coppice 1 x 1": {"write 1 x 1024 B": [event(5000)]},
                 "etcd 1": {"write 1 x 1024 B": [event(6000)], "killed leader": [{"gap_ms": 1234}]}}
        goals = [{"goal": goal, "reached": reached, "holds": holds} for goal, reached, holds in bench.goals(cells, CEILING)]
        text = bench.readable({"conditions": {"cores": 2}, "ceiling": CEILING, "cells": cells, "goals": goals})
        for part in ("cores 2", "| Coppice 1 x 1 | write 1 x 1024 B | 5,000 |", "| etcd 1 | 1234 |", "| 0.83 x | **no** |"):
            self.assertIn(part, text)


if __name__ == "__main__":
    unittest.main()
