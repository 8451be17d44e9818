"""Tests of the page of benchmarks: what it takes from reports, and what it refuses."""

import pathlib
import tempfile
import unittest

import bench
import bench_state
import page
from test_bench import CEILING, event
from test_bench_state import LINES

# As the programs write them (`measure/src/report.rs`, `structures/src/report.rs`), but shorter.
ENGINE = """# The engine beside its peers

What `make bench` measured.

A full run. 2 cores. Revision abc1234. Load averages before the jobs: 1.

Not measured:
- NOMT: Compare: given up after 60 s

| the machine itself | before | after |
| --- | --- | --- |
| sequential write, MB/s | 1,360 | 1,540 |

## Goals

| | goal | measured | met |
| --- | --- | --- | --- |
| prune of 1 | 1 ms a version | 23.0 us | yes |
| prune of 40 | 1 ms a version | 6.2 us | yes |
| get at ten times the data | falls by less than 20 % | 0.77 x | **no** |
| load | 300 MB/s | | not measured |

## Side by side

Median (least-greatest) of the repetitions.

| | Coppice | RocksDB, synced |
| --- | --- | --- |
| put, batches of 4,000, records/s | 60,000 (50,000-70,000) | 80,000 |
| - a batch, p50, ms | 1 | 2 |

## What is timed, durable and proven

| system | a put |
| --- | --- |
| Coppice | sort, raft log |

## Curves

""" + "".join(f"![Title of {name}](benchmarks/{name}.svg)\n\n" for name in page.ENGINE_PICTURES)

STRUCTURES = """A full run; 3 repetitions in turns.

### YCSB-like, Zipf 0

100000 records.

Microseconds of processor time for each key:

| | load | verify |
| --- | --- | --- |
| TPBF (the engine) | 9.12 (8.91-11.67) | 4.46 (4.46-4.57) |

Sizes:

| | newest: nodes | proof, present |
| --- | --- | --- |
| TPBF (the engine) | 16038 | 1024 B |

### Parties with histories of their own, in one store

| | records in common | deduplication | node sharing |
| --- | --- | --- | --- |
| POS-tree | 50 % | 0.001 | 0.010 |
| POS-tree | 90 % | 0.026 | 0.124 |

**Not measured:** the EIPs history.
"""


def cluster():
    """A report by the code that writes real ones."""
    cells = {"Coppice 1 x 1": {"write 1 x 1024 B": [event(5000)], "half load 1 x 1024 B": [event(2500, p50=700)]},
             "etcd 1": {"write 1 x 1024 B": [event(6000)], "linearizable reads": [event(9000)]},
             "etcd 3": {"killed leader": [{"gap_ms": 1234}]},
             "Coppice 2 x 1": {"one shard touched, 1 client": [event(77)]}}
    goals = [{"goal": goal, "reached": reached, "holds": holds} for goal, reached, holds in bench.goals(cells, CEILING)]
    return bench.readable({"conditions": {"cores": 2}, "ceiling": CEILING, "cells": cells, "goals": goals})


# As `bench_ledger.py` writes them.
LEDGERS = """# Ledgers of members

| what | median | goal | met | servers' CPU each |
| --- | --- | --- | --- | --- |
| plain batches | 6,191.0 records/s |  |  | 163 us |
| append | 3,158.0 journals/s | 3,000 journals/s | yes | 435 us |
| get | 1,400.0 journals/s | 1,500 journals/s | **no** | 900 us |
"""
PURGE = """# A purge

| step | seconds | memory, MiB | disk, MiB |
| --- | --- | --- | --- |
| settled | 15.0 | 100 | 1,234 |
"""


def state():
    """A report by the code that writes real ones."""
    return bench_state.readable({"conditions": {"cores": 2}, "lines": LINES, "goals": bench_state.Figures(LINES).all_goals()})


class Page(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.root = pathlib.Path(directory.name)
        (self.root / "benchmarks").mkdir()
        self.files = {"engine": self.root / "bench-report.md", "cluster": self.root / "report.md",
                      "structures": self.root / "structures.md", "ledgers": self.root / "ledgers.md",
                      "state": self.root / "state.md"}
        for name, text in (("engine", ENGINE), ("cluster", cluster()), ("structures", STRUCTURES), ("ledgers", LEDGERS),
                           ("state", state())):
            self.files[name].write_text(text)
        (self.root / "purge.md").write_text(PURGE)
        for path in (*(f"benchmarks/{name}" for name in page.ENGINE_PICTURES), *page.CLUSTER_PICTURES):
            (self.root / f"{path}.svg").write_text(f"<svg>{path}</svg>")
        self.docs = self.root / "docs"

    def write(self, *more):
        arguments = [f"--{name}={path}" for name, path in self.files.items()]
        page.write(page.parse([*arguments, f"--docs={self.docs}", *more]))
        return (self.docs / "benchmarks.md").read_text()

    def test_tables_of_all_reports_are_on_the_page(self):
        text, cpu = self.write(), "3 us (node 1, coordinator 2, driver 4)"
        for part in ("### Goals", "| prune of 1 / 40 | 1 ms a version | 23.0 us / 6.2 us | yes |",
                     "| the machine itself | sequential write, MB/s |", "| before | 1,360 |", "- NOMT: Compare: given up",
                     "| put, batches of 4,000, records/s | 60,000 (50,000-70,000) | 80,000 |",
                     "| Coppice | sort, raft log |", "![Title of get-by-history](benchmarks/get-by-history.svg)",
                     "### Cluster goals", "Brackets divide the processor time", "| 0.83 x | **no** |", "| etcd 3 | 1234 |",
                     "|  | Coppice 1 x 1 | etcd 1 |",
                     f"| write 1 x 1024 B | 5,000/s; 1.00 / 2.00 ms; {cpu}; 1 B | 6,000/s; 1.00 / 2.00 ms; {cpu}; 1 B |",
                     "| half load 1 x 1024 B | 0.70 / 2.00 ms |  |",
                     f"| linearizable reads |  | 9,000/s; 1.00 / 2.00 ms; {cpu} |",
                     "### What an answer stands for", "| etcd | a put; larger batches",
                     "| TPBF (the engine) | 9.12 | 4.46 | 16038 | 1024 B |",
                     "| POS-tree | 0.001 / 0.010 | 0.026 / 0.124 |", "**Not measured:** the EIPs history.",
                     "| append | 3,158.0 journals/s | 3,000 journals/s | yes | 435 us |", "| settled | 15.0 | 100 | 1,234 |",
                     "| [Ledgers of members](#ledgers-of-members) | `make bench-ledger` |",
                     "### State goals", "| E, cache alone, 0.0 / 0.5 ms away: a block, as a multiple of go-ethereum on Pebble "
                     "| <= 2.00 x / <= 3.00 x | 5.00 x / 6.00 x | **no** |",
                     "| E | ledger, cache and access list | 12.0 ms, 1.20 x |"):
            self.assertIn(part, text)
        for part in ("a batch, p50", "one shard touched", "What `make bench` measured"):
            self.assertNotIn(part, text)

    def test_each_part_has_its_revision_day_and_verdicts(self):
        text = self.write("--cluster-measured=dead123, 2026-01-02")
        self.assertRegex(text, r"\| `make bench` \| abc1234, \d{4}-\d\d-\d\d \| 2 met, 1 missed, 1 not measured \|")
        self.assertIn("| `make bench-cluster` | dead123, 2026-01-02 |", text)

    def test_lines_of_text_fit(self):
        lines = [line for line in self.write().splitlines() if not line.startswith(("|", "!"))]
        self.assertEqual([line for line in lines if len(line) > page.COLUMNS], [])

    def test_pictures_of_the_page_replace_those_of_the_last(self):
        old = self.docs / "benchmarks" / "old.svg"
        old.parent.mkdir(parents=True)
        old.write_text("")
        self.write()
        names = {f"{name}.svg" for name in page.ENGINE_PICTURES} | {f"cluster-{name}.svg" for name in page.CLUSTER_PICTURES}
        self.assertEqual({path.name for path in old.parent.iterdir()}, names)

    def test_a_part_that_is_kept_needs_no_report(self):
        whole = self.write("--engine-measured=abc1234, 2026-01-02", "--cluster-measured=dead123, 2026-01-02")
        pictures = sorted(path.name for path in (self.docs / "benchmarks").iterdir())
        self.files["engine"].unlink()
        again = self.write("--keep=engine", "--cluster-measured=beef456, 2026-01-03")
        self.assertEqual(again, whole.replace("dead123, 2026-01-02", "beef456, 2026-01-03"))
        self.assertEqual(sorted(path.name for path in (self.docs / "benchmarks").iterdir()), pictures)
        (self.docs / "benchmarks.md").write_text("# Benchmarks\n")
        with self.assertRaises(page.PageError):
            self.write("--keep=engine")

    def test_what_is_missing_is_named_with_its_target_and_nothing_is_written(self):
        picture = self.root / "benchmarks" / f"{page.ENGINE_PICTURES[0]}.svg"
        for path, find, make in ((self.files["engine"], None, "make bench`"), (self.files["cluster"], None, "make bench-cluster`"),
                                 (self.files["structures"], None, "make bench-structures`"),
                                 (self.files["structures"], "Zipf 0", "make bench-structures`"),
                                 (self.root / "purge.md", None, "make bench-purge`"),
                                 (self.files["state"], "| what |", "make bench-state`"),
                                 (self.files["cluster"], "| goal |", "make bench-cluster`"), (picture, None, "make bench`")):
            kept = path.read_text()
            if find:
                path.write_text(kept.replace(find, "| other |"))
            else:
                path.unlink()
            with self.subTest(path=path.name, find=find), self.assertRaises(page.PageError) as caught:
                self.write()
            self.assertIn(str(path), str(caught.exception))
            self.assertIn(make, str(caught.exception))
            self.assertFalse(self.docs.exists())
            path.write_text(kept)


class Folding(unittest.TestCase):
    def test_names_that_differ_in_one_number_share_a_row(self):
        rows = [["get, 10 of 4", "1.1 x", "0.9 x", "yes"], ["get, 1,000 of 4", "1.1 x", "1.0 x", "yes"],
                ["get, 10 of 5", "1.1 x", "0.9 x", "yes"], ["get, 20 of 4", "1.1 x", "2.0 x", "**no**"]]
        self.assertEqual(page.numbered(rows), [["get, 10 / 1,000 of 4", "1.1 x", "0.9 x / 1.0 x", "yes"], rows[2], rows[3]])

    def test_goals_that_are_alike_share_a_row_and_name_their_subject_once(self):
        rows = [["updates: disk comes to rest", "1.1 x", "rests", "yes"], ["updates: trees comes to rest", "1.1 x", "rests", "yes"],
                ["more: disk", "1.1 x", "rests", "yes"], ["load", "1.1 x", "rests", "yes"]]
        self.assertEqual(page.folded(rows), [["updates: disk, trees comes to rest; more: disk; load", "1.1 x", "rests", "yes"]])

    def test_a_missed_goal_stays_apart(self):
        rows = [["a: b", "2 x", "1 x", "**no**"], ["a: c", "2 x", "3 x", "yes"]]
        self.assertEqual(page.folded(rows), rows)


class Notes(unittest.TestCase):
    def test_a_sign_between_words_does_not_begin_a_line(self):
        self.assertIn("\naa + b", page.wrapped(f"{'x' * 97} aa + b"))

    def test_links_are_relative_to_docs(self):
        with tempfile.TemporaryDirectory(dir=page.NOTES) as directory:
            path = pathlib.Path(directory)
            (path / "some.md").write_text("[a](../../../docs/a.md#b) [c](#d)\n\n## Goals\n\n[e](../../README.md)\n")
            self.assertEqual(page.notes("some", path), {"": "[a](a.md#b) [c](#d)", "Goals": "[e](../loadtest/README.md)"})

    def test_the_page_in_docs_has_todays_notes(self):
        text = (page.ROOT / "docs" / "benchmarks.md").read_text()
        for path in page.NOTES.glob("*.md"):
            for title, body in page.notes(path.stem).items():
                self.assertIn(body, text, f"{path.name}, {title!r}: change docs/benchmarks.md, too")


if __name__ == "__main__":
    unittest.main()
