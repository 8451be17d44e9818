"""Tests of what the comparison of states concludes from its measurements."""

import unittest

import bench_state
from bench_state import Figures
from harness.cluster import Failure


def line(workload, side, times, mode="", delay=0, **more):
    return {"workload": workload, "side": side, "mode": mode, "delay_ms": delay, "block_ms": times, **more}


LINES = [
    line("E", "geth", [9, 10, 30], "state on disk", reads=2000.0, writes=800.0),
    line("E", "geth", [5], "block on disk"),
    line("E", "coppice", [12], "prefetch", reads=2000.0, writes=800.0, hit_ratio=0.75),
    line("E", "coppice", [50], "cache"),
    line("E", "geth", [20], "state on disk", 0.5),
    line("E", "coppice", [120], "cache", 0.5),
]


def verdicts(lines):
    return {f"{row['name']} {row['goal']}": (row["measured"], row["holds"]) for row in Figures(lines).all_goals()}


class Goals(unittest.TestCase):
    def test_a_block_is_compared_with_the_store_as_it_was_along_with_its_distance(self):
        of = "a block, as a multiple of go-ethereum on Pebble"
        self.assertEqual(verdicts(LINES), {
            f"E, cache and access list, 0.0 ms away: {of} <= 1.50 x": ("1.20 x", True),
            f"E, cache alone, 0.0 ms away: {of} <= 2.00 x": ("5.00 x", False),
            f"E, cache alone, 0.5 ms away: {of} <= 3.00 x": ("6.00 x", False)})

    def test_a_goal_holds_up_to_its_limit(self):
        for time, holds in ((16.0, True), (16.1, False)):
            lines = [line("F", "goleveldb", [10]), line("F", "coppice", [time], delay=0.5)]
            self.assertEqual([holds for _, holds in verdicts(lines).values()], [holds])

    def test_a_store_that_was_measured_once_is_compared_with_all_distances(self):
        lines = [line("R", "rocksdb", [10], "none"), *(line("R", "coppice", [20], "prefetch", delay) for delay in bench_state.DELAYS)]
        self.assertEqual([holds for _, holds in verdicts(lines).values()], [False, False, True])

    def test_old_blocks_are_compared_with_head(self):
        lines = [{"workload": "H", "side": "old", "versions": 10_000, "read_ms": [1.0, 1.12, 9]},
                 {"workload": "H", "side": "head", "read_ms": [1.0]}]
        self.assertEqual(verdicts(lines), {
            "H: an account and 4 slots with a proof, 10,000 blocks back, as a multiple of head <= 1.10 x": ("1.12 x", False)})

    def test_the_check_of_a_version_has_a_goal_of_its_own_and_one_beside_proofs(self):
        lines = [line("V", "by_its_journal", [2.1]), line("V", "key_by_key", [21.0])]
        self.assertEqual([holds for _, holds in verdicts(lines).values()], [True, False])

    def test_the_cache_is_judged_by_hits_drops_and_the_time_to_be_back(self):
        lines = [line("E", "coppice", [1], "prefetch", 1, served_ratio=0.9, known_ratio=0.8),
                 line("E", "coppice", [1], "cache", 1, hit_ratio=0.79, known_ratio=0.8),
                 {"workload": "C", "side": "coppice", "mode": "drops", "delay_ms": 1, "seconds": 60, "drops": 1},
                 {"workload": "C", "side": "coppice", "mode": "cut", "seconds": 5, "back_ms": 1000, "drops": 0}]
        after = "C: after 60 s of E, 1.0 ms away:"
        self.assertEqual(verdicts(lines), {
            f"{after} reads of the EVM that the cache answers, cache and access list >= 90 %": ("90%", True),
            f"{after} accounts and slots of a block that are in the cache >= 90 %":
                ("79%, of 80% that an earlier block has read", False),
            f"{after} everything dropped <= 0 times": ("1 times", False),
            "C: back after a cut of 5 s <= 1.00 s": ("1.00 s", True)})

    def test_what_was_not_measured_is_no_goal(self):
        self.assertEqual(verdicts([line("E", "coppice", [5], "prefetch"), line("V", "by_its_journal", [1])]), {})


class GoLines(unittest.TestCase):
    def test_medians_come_before_means_and_names_tell_the_distance(self):
        text = """goos: linux
BenchmarkBlocks/goleveldb-2         \t      10\t 104000000 ns/op\t       101.5 ms/median
BenchmarkBlocks/ledger_at_0s-2      \t      10\t 204000000 ns/op\t       150.0 ms/median
BenchmarkBlocks/ledger_at_500\u00b5s-2   \t      10\t 204000000 ns/op\t       151.0 ms/median
BenchmarkVersion/key_by_key \t      10\t 4000000 ns/op
PASS
"""
        lines = bench_state.go_lines("F", text)
        self.assertEqual([(one["side"], one.get("delay_ms"), one["block_ms"]) for one in lines],
                         [("goleveldb", None, [101.5]), ("coppice", 0, [150.0]), ("coppice", 0.5, [151.0]), ("key_by_key", None, [4.0])])

    def test_an_output_without_results_is_a_failure(self):
        with self.assertRaises(Failure):
            bench_state.go_lines("V", "PASS\nok")


class Report(unittest.TestCase):
    def test_each_kind_of_blocks_has_a_row_with_its_ratio(self):
        text = bench_state.readable({"conditions": {"cores": 2}, "lines": LINES, "goals": Figures(LINES).all_goals()})
        for part in ("cores 2", "| E | go-ethereum on Pebble, state on disk | 10.0 ms | 20.0 ms | 10.0 ms | 2,000 / 800 |  |",
                     "| E | go-ethereum on Pebble, block on disk | 5.0 ms | 5.0 ms | 5.0 ms |  |  |",
                     "| E | ledger, cache and access list | 12.0 ms, 1.20 x |  |  | 2,000 / 800 | 75% |",
                     "| E | ledger, cache alone | 50.0 ms, 5.00 x | 120.0 ms, 6.00 x |  |  |  |"):
            self.assertIn(part, text)
        self.assertNotIn("revm", text)


if __name__ == "__main__":
    unittest.main()
