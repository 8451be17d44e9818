"""Tests of the chaos test's own logic: its plan, its times, its processes."""

import json
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest
import xml.etree.ElementTree

from . import panels, schedule
from .clocks import Clocks
from .cluster import ROOT, TOOLS, ills, well, write_toml
from .history import Progress, longest_gap
from .processes import Process, wait_until


class Plan(unittest.TestCase):
    def test_the_same_seed_gives_the_same_plan(self):
        for seed in range(20):
            self.assertEqual(schedule.plan(seed, 600), schedule.plan(seed, 600))
        self.assertNotEqual(schedule.plan(1, 600), schedule.plan(2, 600))

    def test_ten_minutes_have_every_kind_of_fault(self):
        for seed in range(20):
            kinds = {fault.kind for fault in schedule.plan(seed, 600)}
            self.assertEqual(kinds, set(schedule.KINDS))

    def test_a_short_run_begins_with_the_essential_ones(self):
        for seed in range(20):
            kinds = [fault.kind for fault in schedule.plan(seed, 60)]
            self.assertGreaterEqual(len(kinds), 6)
            self.assertLessEqual(set(kinds[: len(schedule.ESSENTIAL)]), set(schedule.ESSENTIAL))

    def test_a_minority_of_nodes_is_hurt_at_a_time(self):
        for seed in range(50):
            for fault in schedule.plan(seed, 1200):
                hurt = [part for part in (fault, fault.also) if part and part.target in schedule.NODES]
                self.assertLessEqual(len(hurt), 1, str(fault))


class Gaps(unittest.TestCase):
    def test_the_longest_time_without_commits(self):
        commits = [1.0, 2.0, 3.0, 7.0, 8.0]
        self.assertEqual(longest_gap(commits, 2.5, 7.5), 4.0)
        self.assertEqual(longest_gap(commits, 1.5, 2.5), 1.0)
        # Nothing was committed after the span.
        self.assertEqual(longest_gap(commits, 7.5, 20.0), 12.0)
        self.assertEqual(longest_gap([], 1.0, 3.0), 2.0)

    def test_a_history_is_followed_while_it_grows(self):
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / "history"
            path.write_bytes(b'{"kind":"write","outcome":"ok","return":1000000000}\n{"kind":"wri')
            progress = Progress(path, 100.0)
            self.assertEqual(progress.poll(), 1)
            with open(path, "ab") as file:
                file.write(b'te","outcome":"ok","return":2000000000}\n{"kind":"read","outcome":"ok","return":3}\n')
            self.assertEqual(progress.poll(), 2)
            self.assertEqual(progress.commits, [101.0, 102.0])
            self.assertTrue(progress.commit_after(101.5))
            self.assertFalse(progress.commit_after(102.5))


class Tools(unittest.TestCase):
    def test_the_clock_of_one_process_jumps_while_it_runs(self):
        with tempfile.TemporaryDirectory() as directory:
            clocks = Clocks(TOOLS, directory)
            log = pathlib.Path(directory) / "log"
            script = "import time\nwhile True: print(int(time.time()), int(time.monotonic()), flush=True); time.sleep(0.02)"
            process = Process("clock", [sys.executable, "-c", script], log, clocks.environment("place"))
            process.start()
            last = lambda: log.read_text().split("\n")[-2].split()
            try:
                wait_until(lambda: len(log.read_text().split("\n")) > 3, 20, "a first line")
                self.assertLess(abs(int(last()[0]) - time.time()), 60)
                clocks.shift("place", -86400)
                wait_until(lambda: abs(int(last()[0]) - time.time() + 86400) < 60, 20, "a day behind")
                self.assertLess(abs(int(last()[1]) - time.monotonic()), 60)
                clocks.shift("place", 0)
                wait_until(lambda: abs(int(last()[0]) - time.time()) < 60, 20, "the right time again")
            finally:
                process.kill()

    def test_a_process_that_ends_by_itself_is_noticed_once(self):
        with tempfile.TemporaryDirectory() as directory:
            process = Process("end", [sys.executable, "-c", "raise SystemExit(3)"], pathlib.Path(directory) / "log")
            process.start()
            self.assertEqual(wait_until(process.ended_by_itself, 20, "its end"), 3)
            self.assertIsNone(process.ended_by_itself())

    def test_settings_are_written_as_toml(self):
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / "x.toml"
            write_toml(path, {"b": {"c": ["x"], "d": True}, "a": 1, "e.f": {"g": "h"}})
            self.assertEqual(path.read_text(), 'a = 1\n\n[b]\nc = ["x"]\nd = true\n\n[e.f]\ng = "h"\n')

    def test_a_group_without_a_voter_is_not_well(self):
        group = lambda *roles: {"group": "root", "replicas": [{"role": role} for role in roles]}
        sound = {"leader": "c", "groups": [group("leader", "follower", "follower")] * 2}
        self.assertTrue(well(sound, 3))
        for bad in (("leader", "follower"), ("leader", "follower", "learner"), ("follower",) * 3, ("leader", "leader", "follower")):
            self.assertFalse(well({"leader": "c", "groups": [group(*bad)]}, 3), bad)
        self.assertFalse(well({"leader": "", "groups": []}, 3))
        shard = {**group("leader", "follower", "follower", "learner"), "group": "shard-0"}
        self.assertTrue(well({"leader": "c", "groups": [sound["groups"][0], shard]}, 3, 1))
        self.assertFalse(well({"leader": "c", "groups": [sound["groups"][0], shard]}, 3, 2), "a reader is missing")
        self.assertFalse(well(None, 3))

    def test_what_is_wrong_names_the_replica_and_its_note(self):
        replicas = [{"node": f"node-{number}", "role": role, "note": note}
                    for number, role, note in ((1, "leader", ""), (2, "follower", ""), (3, "learner", "the disk is full"))]
        status = {"leader": "c", "groups": [{"group": "root", "replicas": replicas}]}
        self.assertEqual(ills(status, 3), ["root: node-1 leader, node-2 follower, node-3 learner the disk is full"])


class Networks(unittest.TestCase):
    def test_a_cut_drops_one_direction_and_healing_brings_it_back(self):
        from .network import open_network

        network = open_network(["a", "b"])
        if not network.can_cut:
            self.skipTest("CHAOS_ALLOW_FEWER_FAULTS=1, and no network namespaces here")
        with tempfile.TemporaryDirectory() as directory:
            serve = [sys.executable, "-m", "http.server", "8000", "--bind", network.address("b"), "--directory", directory]
            server = Process("server", network.command("b", serve), pathlib.Path(directory) / "log")
            ask = "import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=float(sys.argv[2])).read()"

            def asked(limit="0.5"):
                command = [sys.executable, "-c", ask, f"http://{network.address('b')}:8000/", limit]
                return subprocess.run(network.command("a", command), capture_output=True, check=False).returncode == 0

            try:
                server.start()
                wait_until(lambda: asked("5"), 20, "an answer")
                for source, target in (("a", "b"), ("b", "a")):
                    network.cut(source, target)
                    self.assertFalse(asked())
                    network.heal()
                    wait_until(lambda: asked("5"), 20, "an answer after the cut")
                network.slow("b", 400)
                self.assertTrue(asked("20"))
                network.heal()
                server.kill()
                old = network.address("b")
                network.move("b")
                self.assertNotEqual(network.address("b"), old)
                server.command[server.command.index(old)] = network.address("b")
                server.start()
                wait_until(lambda: asked("5"), 20, "an answer from the other address")
                network.cut("a", "b")
                self.assertFalse(asked())
            finally:
                server.kill()
                network.close()


class Panels(unittest.TestCase):
    dashboard = json.loads((ROOT / "charts/coppice/files/dashboard.json").read_text())

    def test_every_variable_of_a_query_is_filled_in(self):
        asked = [query for _, _, query in panels.queries(self.dashboard, "ledger", "10s")]
        self.assertGreater(len(asked), 20)
        self.assertIn('max(coppice_ledger_version{job="ledger"})', asked)
        panel = {"title": "strange", "targets": [{"expr": "sum(rate(up[$window]))"}]}
        with self.assertRaises(AssertionError):
            list(panels.queries({"panels": [panel]}, "ledger", "10s"))

    def test_a_series_without_a_number_is_no_data(self):
        self.assertFalse(panels.has_data([]))
        self.assertFalse(panels.has_data([("a", [(1, float("nan"))])]))
        self.assertTrue(panels.has_data([("a", [(1, float("nan")), (2, 0.0)])]))

    def test_values_are_shown_in_the_units_of_their_panels(self):
        cases = [(0.25, "percentunit", "25 %"), (0.0125, "s", "12.5 ms"), (2.0, "s", "2 s"), (3 << 20, "bytes", "3 MiB"),
                 (512, "Bps", "512 B/s"), (1234567, "short", "1,234,567"), (0, "ops", "0 /s")]
        for value, unit, text in cases:
            self.assertEqual(panels.shown(value, unit), text)

    def test_a_drawing_has_every_panel_and_breaks_lines_where_nothing_was_seen(self):
        series = [("one & two", [(0, 1.0), (1, 2.0), (4, float("nan")), (5, 3.0)])]
        answers = {panel["id"]: series for panel in self.dashboard["panels"]}
        text = panels.draw(self.dashboard, answers, (0, 5), 1, [(2, "a fault")], "caption")
        said = {element.text for element in xml.etree.ElementTree.fromstring(text).iter() if element.text}
        self.assertLessEqual({panel["title"] for panel in self.dashboard["panels"]} | {"caption", "one & two"}, said)
        lines = [part for part in text.split("\n") if 'stroke-width="1.5"' in part]
        self.assertTrue(lines and all(line.count("M") == 2 for line in lines), lines[:1])


if __name__ == "__main__":
    unittest.main()
