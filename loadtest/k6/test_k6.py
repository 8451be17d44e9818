"""Tests of the load tests: their own logic, a few seconds of each scenario, and that they can
fail."""

import argparse
import contextlib
import hashlib
import io
import json
import os
import pathlib
import shlex
import socket
import subprocess
import sys
import tempfile
import threading
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import manifest  # noqa: E402
import load  # noqa: E402

BINARIES = load.ROOT / "target" / "debug"
# The beginning of a proof file, and the type of an HTTP/2 frame that carries an answer.
MAGIC, DATA = b"coppice-proof", 0
# Levels that hold on a busy machine: these runs check results, not speed.
SLOW = {"READ_P95": "20s", "WRITE_P95": "20s", "DURATION": "2s"}
SMALL = {"RECORDS": "500", "VALUE_BYTES": "100", "PROOF_SHARE": "20%"}
SCENARIOS = {
    **{f"ycsb-{letter}": SMALL for letter in "abcdef"},
    "payment": {"ACCOUNTS": "500", "ACTIVE": "10%", "PROOF_SHARE": "20%"},
    "blocks": SMALL | {"BLOCK_INTERVAL": "250ms", "BLOCK_RECORDS": "50", "LATE_SHARE": "100%"},
    "verified-reads": SMALL,
    "soak": SMALL | {"ACCOUNTS": "500", "ACTIVE": "10%", "RATE": "60/s", "LATE_SHARE": "100%"},
    "spike": SMALL | {"RATE": "20/s", "SPIKE_RATE": "60/s"},
    "prune-under-load": SMALL | {"PRUNE_INTERVAL": "1s", "KEEP": "20", "ADMIN_P95": "20s", "DESTRUCTIVE": "yes"},
    "rollback-drill": SMALL | {"DRILL_INTERVAL": "1s", "ADMIN_P95": "20s", "DESTRUCTIVE": "yes"},
}
# On a ledger of members, for which a cluster must be founded.
MEMBERS = {"VALUE_BYTES": "100", "CLUES": "20", "JOURNALS": "3", "JOURNAL_CLUES": "2", "PROOF_SHARE": "20%"}


def options(scenario, target, out):
    return argparse.Namespace(scenario=scenario, target=target, out=pathlib.Path(out), binaries=BINARIES, k6=None, quiet=True)


def checksum(content):
    """The checksum at the end of a proof file with this content."""
    return hashlib.sha256(b"\x1e" + content).digest()[:8]


def file_at(frame, at):
    """The proof file that begins here, if all of it lies in the frame. The varint before it has its
    length."""
    for width in range(2, 5):
        length = sum((digit & 127) << 7 * place for place, digit in enumerate(frame[at - width:at]))
        file = frame[at:at + length]
        if checksum(file[:-8]) == file[-8:]:
            return file
    return None


class Liar:
    """A proxy between a ledger and its clients. It changes one bit of each proof file in an answer,
    or nothing if it is honest.

    If a whole file lies in the frame, its checksum is corrected, so that only the proof itself is
    wrong.
    """

    def __init__(self, ledger, honest=False):
        self.ledger, self.honest, self.lies = ledger, honest, 0
        self.server = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self.server.getsockname()[1]}"
        self.open = True
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.server.accept()
            except OSError:
                return  # It was closed.
            ledger = socket.create_connection(self.ledger)
            threading.Thread(target=self.pass_on, args=(client, ledger, False), daemon=True).start()
            threading.Thread(target=self.pass_on, args=(ledger, client, not self.honest), daemon=True).start()

    def pass_on(self, source, sink, lie):
        with source, contextlib.suppress(OSError):
            held = b""
            while data := source.recv(1 << 16):
                held = held + data if lie else data
                while lie and len(held) >= 9 and len(held) >= (end := 9 + int.from_bytes(held[:3], "big")):
                    sink.sendall(self.twisted(held[:end]))
                    held = held[end:]
                if not lie:
                    sink.sendall(held)
            sink.shutdown(socket.SHUT_WR)

    def twisted(self, frame):
        if frame[3] != DATA or MAGIC not in frame:
            return frame
        self.lies += 1
        at = frame.index(MAGIC)
        file = file_at(frame, at)
        if file is None:
            return frame[:-1] + bytes([frame[-1] ^ 1])
        forged = bytearray(file[:-8])
        forged[len(forged) // 2] ^= 1
        return frame[:at] + forged + checksum(forged) + frame[at + len(file):]

    def close(self):
        self.server.close()


class Dev(unittest.TestCase):
    """Tests on a ledger in one process, which is made for the scenario FOUNDED_FOR."""

    FOUNDED_FOR = None

    @classmethod
    def setUpClass(cls):
        cls.k6 = load.build_k6()
        cls.work = tempfile.TemporaryDirectory(prefix="load-")
        cls.stack = contextlib.ExitStack()
        directory = pathlib.Path(cls.work.name) / "dev"
        directory.mkdir()
        connection, cls.trust = cls.stack.enter_context(load.dev(options(cls.FOUNDED_FOR, "dev", directory), directory, {}))
        cls.endpoint = connection["COPPICE_ENDPOINT"]

    @classmethod
    def tearDownClass(cls):
        cls.stack.close()
        cls.work.cleanup()

    def load(self, scenario, endpoint=None, **parameters):
        """Runs a scenario. Returns its exit code, its summary, and what it and the ledger said."""
        out = pathlib.Path(self.work.name) / scenario
        environment = {"COPPICE_TRUST": self.trust, **parameters}
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            code = load.run(options(scenario, endpoint or self.endpoint, out), environment)
        summary = out / "summary.json"
        ledger = (pathlib.Path(self.work.name) / "dev" / "dev.log").read_text()
        told = (out / "k6.log").read_text() + said.getvalue() + "the ledger said:\n" + ledger[-5000:]
        return code, json.loads(summary.read_text()) if summary.exists() else None, told

    def through(self, liar, scenario, parameters):
        try:
            return self.load(scenario, liar.address, **SLOW | parameters)
        finally:
            liar.close()

    def assert_lies_are_found(self, scenario, parameters):
        liar = Liar(self.ledger())
        code, summary, said = self.through(liar, scenario, parameters)
        self.assertGreater(liar.lies, 0)
        self.assertEqual((code, summary["holds"]), (1, False), said)
        self.assertGreater(summary["counts"]["proofs_bad"], 0)
        self.assertIn("PROOFS: ", said)
        self.assertTrue((pathlib.Path(self.work.name) / scenario / "evidence.json").exists())

    def ledger(self):
        host, _, port = self.endpoint.removeprefix("http://").partition(":")
        return host, int(port)


class Load(Dev):
    def test_the_scripts_decide_rightly(self):
        done = subprocess.run([self.k6, "run", "--quiet", "--no-usage-report", "--address", "", HERE / "tests.js"], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_every_scenario_runs_and_holds(self):
        for scenario, parameters in SCENARIOS.items():
            with self.subTest(scenario):
                code, summary, said = self.load(scenario, **SLOW, **parameters)
                self.assertEqual((code, summary["holds"]), (0, True), said)
                self.assertGreater(summary["counts"]["proofs_checked"], 0)
                self.assertIn(scenario, (pathlib.Path(self.work.name) / scenario / "summary.html").read_text())

    def test_a_level_that_is_missed_fails_the_run(self):
        code, summary, _ = self.load("ycsb-b", **SLOW | SMALL | {"READ_P95": "1ms", "DURATION": "1s"})
        self.assertEqual((code, summary["holds"]), (1, False))
        missed = [level["metric"] for level in summary["levels"] if not level["holds"]]
        self.assertEqual(missed, ["op_duration{op:read}"])

    def test_wrong_parameters_are_told(self):
        code, summary, said = self.load("payment", DURATION="30")
        self.assertEqual((code, summary), (load.WRONG, None))
        self.assertIn("DURATION=30: it is a duration such as", said)

    def test_one_flipped_bit_of_a_proof_fails_the_run(self):
        for scenario in ("verified-reads", "ycsb-a"):
            with self.subTest(scenario):
                self.assert_lies_are_found(scenario, SMALL)

    def test_the_same_way_without_a_lie_is_believed(self):
        code, _, said = self.through(Liar(self.ledger(), honest=True), "verified-reads", SMALL)
        self.assertEqual(code, 0, said)

    def test_a_cluster_without_ledgers_of_members_is_told(self):
        code, summary, said = self.load("ledger", **SLOW | MEMBERS)
        self.assertEqual((code, summary["holds"]), (1, False))
        self.assertIn("founded without ledgers of members", said)

    def test_a_judge_that_ends_fails_the_run(self):
        for counts, code in ((None, -9), ({"bad": 0, "reads": 1, "commits": 0}, 1)):
            directory = pathlib.Path(self.work.name)
            (directory / "judge.log").write_text("it broke")
            with contextlib.redirect_stdout(io.StringIO()):
                self.assertEqual(load.verdict(0, counts, code, directory), 1)


class Members(Dev):
    FOUNDED_FOR = "ledger"

    def test_it_is_founded_once_and_found_again(self):
        for spread in ("no", "yes", "no"):
            with self.subTest(spread):
                code, summary, said = self.load("ledger", **SLOW | MEMBERS | {"SPREAD": spread})
                self.assertEqual((code, summary["holds"]), (0, True), said)
                self.assertEqual({operation["op"] for operation in summary["operations"]}, {"append", "read_journals", "read_lineage"})
                appends = next(operation["count"] for operation in summary["operations"] if operation["op"] == "append")
                self.assertEqual(summary["counts"]["journals_appended"], 3 * appends)
                self.assertGreater(summary["counts"]["proofs_checked"], 0)
        command = [BINARIES / "coppice", "ledger", "list", "--endpoint", self.endpoint]
        listed = subprocess.run(command, capture_output=True, text=True, check=False)
        self.assertEqual([line.split()[0] for line in listed.stdout.splitlines()], ["k6-4", "k6-4-spread"], listed.stderr)

    def test_one_flipped_bit_of_a_proof_fails_the_run(self):
        self.assert_lies_are_found("ledger", MEMBERS)

    def test_the_same_way_without_a_lie_is_believed(self):
        code, _, said = self.through(Liar(self.ledger(), honest=True), "ledger", MEMBERS)
        self.assertEqual(code, 0, said)

    def test_two_runs_at_once_use_each_number_of_a_lane_once(self):
        codes, conflicts = [], 0
        outs = [pathlib.Path(self.work.name) / out for out in ("one", "other")]

        def run(out):
            codes.append(load.run(options("ledger", self.endpoint, out), {"COPPICE_TRUST": self.trust, **SLOW, **MEMBERS, "VUS": "2", "DURATION": "4s"}))

        runs = [threading.Thread(target=run, args=(out,)) for out in outs]
        for thread in runs:
            thread.start()
        for thread in runs:
            thread.join()
        for out in outs:
            conflicts += json.loads((out / "summary.json").read_text())["counts"]["conflicts"]
        self.assertEqual(codes, [0, 0])
        self.assertGreater(conflicts, 0)


class Processes(unittest.TestCase):
    def test_a_coordinator_that_dies_is_survived_and_counted(self):
        for scenario, parameters in (("payment", SCENARIOS["payment"]), ("ledger", MEMBERS)):
            with self.subTest(scenario):
                self.survives(scenario, parameters)

    def survives(self, scenario, parameters):
        with tempfile.TemporaryDirectory(prefix="load-") as work:
            directory = pathlib.Path(work)
            system = load.Coppice(directory / "cluster", BINARIES, replicas=3, shards=2, coordinators=2, ledgers=scenario in load.OF_MEMBERS)
            try:
                system.start()
                chosen = options(scenario, ",".join(system.cluster.endpoints()), directory / "out")
                environment = {"COPPICE_TRUST": system.cluster.vkey, **SLOW, **parameters, "DURATION": "10s"}
                codes = []
                clients = threading.Thread(target=lambda: codes.append(load.run(chosen, environment)))
                clients.start()
                # More versions than preparations take.
                while (version := self.head(system)) < 10:
                    self.assertTrue(clients.is_alive(), "nothing was written before the load ended")
                system.leading_coordinator().kill()
                clients.join()
                self.assertGreater(self.head(system), version)
                summary = json.loads((directory / "out" / "summary.json").read_text())
                self.assertEqual((codes, summary["holds"]), ([0], True), summary["levels"])
                self.assertGreater(summary["counts"]["retries"], 0)
            finally:
                system.stop()

    def head(self, system):
        """The newest version that a running coordinator knows of."""
        asked = (system.cluster.coppice("head", "--json", place="node-1", endpoint=endpoint) for endpoint in system.cluster.endpoints())
        return max((json.loads(head)["version"] for head in asked if head), default=0)


class Tls(unittest.TestCase):
    def test_a_ledger_of_processes_is_reached_by_tls(self):
        with tempfile.TemporaryDirectory(prefix="load-") as work:
            directory = pathlib.Path(work)

            def cluster(*words):
                command = [load.ROOT / "scripts" / "local-cluster.sh", *words]
                variables = {name: value for name, value in os.environ.items() if not name.startswith("COPPICE_")}
                done = subprocess.run(command, capture_output=True, text=True, check=False, env=variables | {"BIN": str(BINARIES), "PORT": str(free_ports(20))})
                self.assertEqual(done.returncode, 0, done.stderr)
                return done.stdout

            cluster("init", directory / "cluster")
            shared = directory / "cluster" / "cluster.toml"
            shared.write_text(shared.read_text().replace("[ledger]\n", "[ledger]\nledgers = true\n"))
            try:
                cluster("start", directory / "cluster")
                told = dict(word.split("=", 1) for word in shlex.split(cluster("env", directory / "cluster")) if word != "export")
                self.assertTrue(told["COPPICE_ENDPOINT"].startswith("https://"))
                chosen = options("payment", told["COPPICE_ENDPOINT"], directory / "out")
                environment = {**told, **SLOW, **SCENARIOS["payment"]}
                self.assertEqual(load.run(chosen, environment), 0, (directory / "out" / "k6.log").read_text())
                self.shared_by_members(told, directory)
            finally:
                cluster("stop", directory / "cluster")

    def shared_by_members(self, told, directory):
        """A certificate of the member k6 opens the ledger that k6 founds. Others can't read it."""
        tls = pathlib.Path(told["COPPICE_CA"]).parent
        for name, expected in (("k6", 0), ("other", 1)):
            subprocess.run([load.ROOT / "scripts" / "certificates.sh", tls, name, "member"], check=True)
            client = {"COPPICE_CLIENT_CERT": str(tls / f"{name}.pem"), "COPPICE_CLIENT_KEY": str(tls / f"{name}.key")}
            chosen = options("ledger", told["COPPICE_ENDPOINT"], directory / name)
            with self.subTest(name):
                code = load.run(chosen, {**told, **client, **SLOW, **MEMBERS})
                said = (directory / name / "k6.log").read_text()
                self.assertEqual((code, "NOT_A_MEMBER" in said), (expected, expected == 1), said)


def free_ports(count):
    """The first of this many consecutive ports that are free."""
    for first in range(17400, 32000, count):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + count):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
            return first
    raise OSError("no ports are free")


class Manifest(unittest.TestCase):
    OPTIONS = ["payment", "--endpoint", "https://ledger.bank.svc:7411", "--trust", "KEY", "--ca-secret", "ledger-writer-tls",
               "--client-secret", "ledger-writer-tls", "--judge-image", "bench:1", "--k6-image", "k6:1", "--namespace", "bank", "RATE=50/s"]

    def test_it_has_all_files_and_names_all_choices(self):
        objects = {item["kind"]: item for item in manifest.made(self.OPTIONS)["items"]}
        files = objects["ConfigMap"]["data"]
        pod = objects["Job"]["spec"]["template"]["spec"]
        paths = {item["key"]: item["path"] for item in next(volume for volume in pod["volumes"] if "configMap" in volume)["configMap"]["items"]}
        self.assertEqual(set(paths), set(files))
        for script in HERE.rglob("*.js"):
            if script.name != "tests.js":
                self.assertIn(f"loadtest/k6/{script.relative_to(HERE)}", paths.values())
        self.assertIn("proto/coppice/v1/ledger.proto", paths.values())
        environment = {entry["name"]: entry["value"] for entry in pod["containers"][0]["env"]}
        self.assertEqual((environment["SCENARIO"], environment["RATE"]), ("payment", "50/s"))
        self.assertEqual((pod["containers"][0]["image"], pod["initContainers"][0]["image"]), ("k6:1", "bench:1"))
        self.assertLess(sum(map(len, files.values())), 1 << 20)

    def test_a_ledger_of_members_takes_its_judge_from_the_image_of_k6(self):
        words = ["ledger", *self.OPTIONS[1:-1]]
        job = next(item for item in manifest.made(words)["items"] if item["kind"] == "Job")
        judge = job["spec"]["template"]["spec"]["initContainers"][0]
        self.assertEqual((judge["image"], judge["command"][:3]), ("k6:1", ["k6", "x", "judge"]))
        at = words.index("--k6-image")
        with self.assertRaises(SystemExit), contextlib.redirect_stderr(io.StringIO()) as said:
            manifest.made(words[:at] + words[at + 2:])
        self.assertIn("--k6-image", said.getvalue())

    def test_a_parameter_that_is_none_is_refused(self):
        for wrong in ("RATES=50/s", "RATE"):
            with self.assertRaises(SystemExit), contextlib.redirect_stderr(io.StringIO()):
                manifest.made([*self.OPTIONS[:-1], wrong])


if __name__ == "__main__":
    unittest.main()
