"""Coordinators that lie, are silent, or send without an end: nothing of it is believed, and each
call ends in time."""

import shutil
import socket
import time
import unittest
from unittest import mock

import coppice
from bed import Closing, Dev, OnLedger, Relay, Wire, certificates, folder, refusal, within
from coppice import Batch, Client, UnverifiedClient, _http, _trust

PROOF = {"Accept": "application/vnd.coppice.proof"}


class Hostile(OnLedger):
    def setUp(self):
        self.relay = Relay(self.dev)
        self.addCleanup(self.relay.close)
        self.client = self.connect(self.relay.endpoint)

    def connect(self, endpoint, dev=None, **options):
        client = Client(endpoint, trust=(dev or self.dev).vkey, **options)
        self.addCleanup(client.close)
        return client

    def distrusts(self, name, call, *arguments, **named):
        with self.assertRaises(coppice.Untrusted, msg=name) as caught:
            call(*arguments, **named)
        return caught.exception

    def shows(self, body):
        self.relay.lie = lambda _, path, answer: "/records" in path and setattr(answer, "body", body)

    def test_no_lie_about_a_read_is_believed(self):
        self.client.commit(Batch().put("lie/a", "1").put("lie/b", "9"))
        old = self.client.put("lie/a", "2").version
        ask = lambda path: self.relay.ask("GET", path, PROOF).body  # noqa: E731
        honest = ask("/v1/records/lie%2Fa")
        self.client.put("lie/a", "3")
        lies = {
            "no proof": b"",
            "the value alone": b"3",
            "a shortened proof": honest[:-1],
            "the proof of another": ask("/v1/records/lie%2Fb"),
            "the proof of an absence": ask("/v1/records/lie%2Fc"),
            "an older version": ask(f"/v1/records/lie%2Fa?version={old.version}"),
            "what was head before": honest,
            "a range": ask("/v1/records?prefix=lie/a"),
            "a standing": ask("/v1/checkpoint?since=1"),
        }
        for name, lie in lies.items():
            self.shows(lie)
            self.distrusts(name, self.client.get, "lie/a")
        # An honest proof of head is believed by a reader that has seen nothing newer.
        self.shows(honest)
        self.assertEqual(self.connect(self.relay.endpoint).get("lie/a").value.value, b"2")
        # A version is the one that was asked for, and the checkpoint no older than what was seen.
        reader = self.connect(self.relay.endpoint)
        self.distrusts("another version", reader.get, "lie/a", version=old.version - 1)
        self.distrusts("an old checkpoint", self.client.get, "lie/a", version=old.version)
        # A stale read is of what was head at some time, and of nothing else.
        self.assertEqual(self.client.get("lie/a", stale=True).value.value, b"2")
        for name in ("an older version", "the proof of another", "a shortened proof"):
            self.shows(lies[name])
            self.distrusts(name, self.client.get, "lie/a", stale=True)
        # A bit flipped anywhere is found; every tenth is tried.
        now = ask("/v1/records/lie%2Fa")
        for bit in range(0, 8 * len(now), 10 * 8 + 3):
            flipped = bytearray(now)
            flipped[bit >> 3] ^= 1 << (bit & 7)
            self.shows(bytes(flipped))
            self.distrusts(bit, self.client.get, "lie/a")
        self.shows(now)
        self.assertEqual(self.client.get("lie/a").value.value, b"3")

    def test_no_lie_about_a_range_is_believed(self):
        batch = Batch()
        for i in range(9):
            batch.put(f"r/{i}", str(i))
        self.client.commit(batch)
        ask = lambda query: self.relay.ask("GET", f"/v1/records?{query}", PROOF).body  # noqa: E731
        lies = {
            "an end that is too early": ask("low=r%2F0&high=r%2F5&limit=4"),
            "fewer records than the limit": ask("low=r%2F0&high=r0&limit=3"),
            "a complete part": ask("low=r%2F0&high=r%2F4&limit=4"),
            "a later beginning": ask("low=r%2F1&high=r0&limit=4"),
            "an earlier beginning": ask("low=r&high=r0&limit=4"),
            "a range beyond": ask("low=r%2F0&limit=4"),
            "nothing": ask("low=r%2F00&high=r%2F01"),
            "one record": self.relay.ask("GET", "/v1/records/r%2F0", PROOF).body,
        }
        read = lambda: list(self.client.range("r/0", "r0", page=4))  # noqa: E731
        for name, lie in lies.items():
            if name == "a range beyond":
                # It is the same page: it ends at the fourth record.
                continue
            self.shows(lie)
            self.distrusts(name, read)
        # A page that ends early is not believed, though what it shows is proven.
        once = [lies["fewer records than the limit"]]
        self.relay.lie = lambda _, path, answer: once and setattr(answer, "body", once.pop())
        self.distrusts("a short page", read)
        self.relay.lie = None
        self.assertEqual(sum(len(page.value) for page in read()), 9)
        # The last page must reach the end that was asked for.
        self.shows(lies["a range beyond"])
        self.distrusts("pages without an end", read)
        # All pages are of the first one's version.
        pages = self.client.range("r/0", "r0", page=4)
        self.relay.lie = None
        next(pages)
        self.client.put("r/6", "new")
        head = ask("low=r%2F3%00&high=r0&limit=4")
        self.shows(head)
        self.distrusts("another version", next, pages)

    def test_no_lie_about_a_commit_is_believed(self):
        earlier = self.client.put("c", "1").proof
        session = self.client.session()
        in_session = session.put("c", "2").proof
        two = self.client.commit(Batch().put("c", "2").put("d", "2")).proof
        flipped = bytearray(earlier)
        flipped[100] ^= 1
        read = self.relay.ask("GET", "/v1/records/c", PROOF).body
        for name, lie in {
            "another value": earlier, "of a session": in_session, "of a larger batch": two, "damaged": bytes(flipped),
            "a read": read, "none": b"", "JSON": b'{"version": 7}',
        }.items():
            self.shows(lie)
            error = self.distrusts(name, self.client.put, "c", "2")
            self.assertTrue(error.outcome_unknown, name)
        self.relay.lie = None
        # Shards are believed by the hash of their map, even where the batch does not write.
        shards = self.client._genesis()
        for wrong in (
            [{"shard": 0, "low": "0x", "high": None}],
            [{"shard": 1, "low": "0x", "high": "0x6e"}, {"shard": 0, "low": "0x6e", "high": None}],
            [{"shard": 0, "low": "0x", "high": "0x6f"}, {"shard": 1, "low": "0x6f", "high": None}],
        ):
            fresh = self.connect(self.relay.endpoint)
            fresh._shards = _trust.Shards.of(wrong)
            self.assertNotEqual(fresh._shards.map_hash, shards.map_hash)
            error = self.distrusts(wrong, fresh.put, "c", "3")
            self.assertTrue(error.outcome_unknown)
        self.relay.lie = lambda _, path, answer: "/log" in path and setattr(answer, "body", b'{"genesis": 7}\n')
        error = self.distrusts("no genesis", self.connect(self.relay.endpoint).put, "c", "3")
        self.assertFalse(error.outcome_unknown)

    def test_another_ledger_is_not_believed(self):
        other = Dev(self.folder / "other")
        self.addCleanup(other.stop)
        self.believing(other.endpoint).put("k", "theirs")
        self.assertEqual(self.distrusts("get", self.connect(other.endpoint).get, "k").step, "checkpoint")
        self.distrusts("head", self.connect(other.endpoint).head)

    def test_a_fork_is_found_and_both_proofs_are_kept(self):
        base = Dev(self.folder / "forked")
        self.believing(base.endpoint).put("f", "0")
        a, b = base.twin(self.folder / "fork")
        self.addCleanup(a.stop)
        self.addCleanup(b.stop)
        relay = Relay(a)
        self.addCleanup(relay.close)
        write = lambda dev, value: self.believing(dev.endpoint).put("f", value)  # noqa: E731
        write(a, "a")
        write(b, "b")
        client = self.connect(relay.endpoint, a)
        client.get("f")
        memory = client.memory()

        def is_fork(name, call, *arguments):
            with self.assertRaises(coppice.Forked, msg=name) as caught:
                call(*arguments)
            self.assertNotEqual(caught.exception.known, caught.exception.proof)
            for number, proof in enumerate((caught.exception.known, caught.exception.proof)):
                path = self.folder / f"fork.{number}"
                path.write_bytes(proof)
                a.command("verify", str(path), "--key", f"@{a.directory}/ledger.vkey")

        relay.dev = b
        is_fork("of one size", client.get, "f")
        write(b, "c")
        with mock.patch.object(_trust, "GROWTH_INTERVAL_S", 0):
            is_fork("of another size", self.connect(relay.endpoint, a, memory=memory).get, "f")
        is_fork("of another size, at head", self.connect(relay.endpoint, a, memory=memory).head)
        # A shorter log is older than what was seen.
        for value in "de":
            write(a, value)
        relay.dev = a
        reader = self.connect(relay.endpoint, a)
        reader.get("f")
        relay.dev = b
        self.distrusts("shorter", reader.get, "f")
        with self.assertRaises(coppice.Error):
            reader.head()

    def test_a_log_that_is_not_proven_to_grow_is_not_believed_for_long(self):
        self.client.put("g", "1")
        self.relay.before = lambda _, path: refusal(503, "UNAVAILABLE") if "/checkpoint" in path else None
        client = self.connect(self.relay.endpoint, memory=self.client.memory(), patience=0)
        self.client.put("g", "2")
        with mock.patch.object(_trust, "GROWTH_INTERVAL_S", 0):
            self.assertEqual(client.get("g").value.value, b"2")
            with mock.patch.object(_trust, "GROWTH_PATIENCE_S", 0):
                self.distrusts("growth", client.get, "g")
                self.relay.before = None
                self.assertEqual(client.get("g").value.value, b"2")
        self.assertEqual(client.memory()["size"], client.head().checkpoint.size)

    def test_a_value_that_a_proof_leaves_out_is_compared_with_its_hash(self):
        with self.assertRaises(coppice.Untrusted):
            self.relay.before = lambda *_: mock.Mock(code=200, headers={}, body=b"lie")
            self.client._record({"key": "0x6b", "value_sha256": "00" * 32, "last_changed": {}}, 1)

    def test_malformed_answers_are_errors_of_the_package(self):
        client = self.believing(self.relay.endpoint)
        for body in (b"", b"[]", b"7", b"{}", b"nonsense", b"[" * 100_000, b'{"epoch": [], "version": {}}', b"\xff"):
            self.relay.before = lambda *_: mock.Mock(code=200, headers={}, body=body)
            for call in (
                client.head, lambda: client.get("k"), lambda: client.history("k"), client.session,
                lambda: client.diff(1, 2), lambda: client.put("k", "v"), lambda: next(client.watch()),
            ):
                with self.assertRaises(coppice.Error, msg=body[:20]):
                    call()
        with self.assertRaises(coppice.Error) as caught:
            self.relay.before = lambda *_: refusal(400, "\\u001b[2J" * 10_000)
            client.head()
        self.assertNotIn("\x1b", str(caught.exception))


class Bounds(Closing):
    def serve(self, send):
        wire = Wire(send)
        self.addCleanup(wire.close)
        return wire

    def test_dead_and_silent_coordinators_are_gone_around(self):
        directory = folder()
        self.addCleanup(shutil.rmtree, directory)
        dev = Dev(directory / "ledger")
        self.addCleanup(dev.stop)
        listener = socket.create_server(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.close()
        silent = self.serve(lambda connection: connection.recv(1))
        client = Client([dead, silent.endpoint, dev.endpoint], trust=dev.vkey, timeout=1)
        self.addCleanup(client.close)
        began = time.monotonic()
        self.assertIsNone(client.get("k").value)
        # The one that answered is asked first from now on.
        client.put("k", "1")
        self.assertEqual(client.get("k").value.value, b"1")
        within(5, began)
        self.assertEqual(silent.count, 1)

    @mock.patch.object(_http, "SILENCE_S", 0.4)
    def test_each_answer_has_a_limit_in_time_and_size(self):
        def drip(part, *, first=b""):
            def send(connection):
                connection.sendall(first)
                while True:
                    connection.sendall(part)
                    time.sleep(0.05)
            return send

        def flood(first, part):
            def send(connection):
                connection.sendall(first)
                while True:
                    connection.sendall(part)
            return send

        ok = b"HTTP/1.1 200 OK\r\n"
        servers = {
            "a head in drops": drip(b"x", first=ok + b"X-A: "),
            "a body in drops": drip(b"x", first=ok + b"Content-Length: 100000\r\n\r\n"),
            "chunks in drops": drip(b"1\r\nx\r\n", first=ok + b"Transfer-Encoding: chunked\r\n\r\n"),
            "heads without end": flood(ok, b"X-A: b\r\n" * 1000),
            "a line without end": flood(ok + b"X-A: ", b"x" * 10_000),
            "interim answers without end": flood(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
            "chunks without end": flood(ok + b"Transfer-Encoding: chunked\r\n\r\n", b"1000\r\n" + b"x" * 4096 + b"\r\n"),
            "a body without end": flood(ok + b"\r\n", b"x" * 10_000),
            "a length that is too large": flood(ok + b"Content-Length: 99999999999\r\n\r\n", b"x" * 10_000),
            "a cut body": lambda connection: connection.sendall(ok + b"Content-Length: 5\r\n\r\n{}"),
            "a cut chunk": lambda connection: connection.sendall(ok + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{}"),
            "another protocol": lambda connection: connection.sendall(b"SSH-2.0-x\r\n"),
            "elsewhere": lambda connection: connection.sendall(
                b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"
            ),
        }
        for name, send in servers.items():
            server = self.serve(send)
            client = self.believing(server.endpoint, timeout=0.4, patience=0, answer_bytes_max=1 << 20)
            for call in (client.head, lambda: client.put("k", "v"), lambda: next(client.watch(0))):
                began = time.monotonic()
                with self.assertRaises(coppice.Refused, msg=name) as caught:
                    call()
                within(4, began)
                if name in ("chunks without end", "a length that is too large") and call == client.head:
                    self.assertIn("more than 1048576 bytes", str(caught.exception), name)

    def test_events_without_end_or_in_drops_end(self):
        head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"

        def line(connection):
            connection.sendall(head)
            while True:
                connection.sendall(b"10000\r\n" + b"x" * (1 << 16) + b"\r\n")

        def comments(connection):
            connection.sendall(head)
            while True:
                connection.sendall(b"3\r\n:\n\n\r\n")
                time.sleep(0.05)

        for send in (line, comments):
            client = self.believing(self.serve(send).endpoint, timeout=1)
            began = time.monotonic()
            self.assertEqual(list(client.watch(0, quiet=2)), [])
            within(6, began)

    def test_a_handshake_of_tls_that_does_not_end_ends(self):
        server = self.serve(lambda connection: connection.recv(1))
        authorities = folder()
        self.addCleanup(shutil.rmtree, authorities)
        certificates(authorities, "nobody", "reader")
        endpoint, tls = server.endpoint.replace("http", "https"), coppice.TLS(str(authorities / "ca.pem"))
        client = self.believing(endpoint, timeout=1, patience=0, tls=tls)
        began = time.monotonic()
        with self.assertRaises(coppice.Refused):
            client.head()
        within(4, began)

    def test_arguments_are_judged_before_the_first_call(self):
        for endpoint in ("127.0.0.1:1", "http://", "http://u:p@h:1", "http://h:1/v1", "ftp://h:1", "https://h:1", "http://h:x"):
            with self.assertRaises(ValueError, msg=endpoint):
                UnverifiedClient(endpoint)
        for wrong in ({"timeout": 0}, {"patience": -1}, {"answer_bytes_max": 0}):
            with self.assertRaises(ValueError):
                UnverifiedClient("http://h:1", **wrong)
        with self.assertRaises(ValueError):
            UnverifiedClient([])
        with self.assertRaises(ValueError):
            UnverifiedClient(["http://h:1"] * 17)


if __name__ == "__main__":
    unittest.main()
