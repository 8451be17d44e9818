"""The client against a real ledger: answers, refusals, writes once, watches, keys, certificates."""

import json
import os
import re
import socket
import ssl
import subprocess
import sys
import time
import unittest
from pathlib import Path

import coppice
from bed import LIMIT_S, Answered, Dev, Drop, OnLedger, Relay, certificates, folder, refusal, within
from coppice import Batch, Client, Stamp


class WithLedger(OnLedger):
    def client(self, endpoint=None, **options):
        client = Client(endpoint or self.dev.endpoint, trust=self.dev.vkey, **options)
        self.addCleanup(client.close)
        return client

    def believing(self, endpoint=None, **options):
        return super().believing(endpoint or self.dev.endpoint, **options)

    def relay(self, **options):
        relay = Relay(self.dev, **options)
        self.addCleanup(relay.close)
        return relay

    def refused(self, reason, call, *arguments, **named):
        with self.assertRaises(coppice.Refused) as caught:
            call(*arguments, **named)
        self.assertEqual(caught.exception.reason, reason, caught.exception)
        return caught.exception


class Answers(WithLedger):
    def test_both_clients_write_and_read_any_bytes(self):
        believing = self.believing()
        reader = self.client()
        for client in (self.client(), believing):
            for key in (b"\0", b"\xff\xfe", b"a/b?c=d&e#%25 +", b"..", b".", "ä".encode(), b"k" * 512, b"history"):
                value = b"\0value of " + key
                client.put(key, value)
                for read in (reader, believing):
                    record = read.get(key).value
                    self.assertEqual((record.key, record.value), (key, value))
                client.delete(key)
                self.assertIsNone(client.get(key).value)
            client.put("empty", b"")
            self.assertEqual(client.get("empty").value.value, b"")

    def test_a_read_is_of_its_version_and_has_its_proof(self):
        client = self.client()
        first = client.put("read", "1")
        second = client.put("read", "2")
        self.assertEqual(client.get("read").value.last_changed, second.version)
        old = client.get("read", version=first.version.version)
        self.assertEqual((old.value.value, old.version), (b"1", first.version))
        self.assertIsNone(client.get("read", version=0).value)
        path = self.folder / "read.proof"
        path.write_bytes(old.proof)
        (self.folder / "receipt").write_bytes(second.proof)
        for name in ("read.proof", "receipt"):
            self.dev.command("verify", str(self.folder / name), "--key", f"@{self.dev.directory}/ledger.vkey")
        self.assertEqual(client.head().value, client.get("read").version)
        self.assertGreaterEqual(client.head().checkpoint.size, second.checkpoint.size)

    def test_a_batch_is_written_as_a_whole_over_all_shards(self):
        for client in (self.client(), self.believing()):
            client.put("old", "x")
            batch = Batch().put("a", "1").put("zz", b"\xff").delete("old").put("m/1", "").put("m/2", "2")
            done = client.commit(batch)
            stamp = done.value.version
            self.assertEqual(client.get("a").value.last_changed, stamp)
            self.assertEqual(client.get(b"zz").value, coppice.Record(b"zz", b"\xff", stamp))
            self.assertIsNone(client.get("old").value)
        with self.assertRaises(ValueError):
            Batch().put("a", "1").delete("a")

    def test_a_range_comes_in_pages_of_one_version(self):
        client = self.client()
        batch = Batch()
        for i in range(23):
            batch.put(f"page/{i:03}", f"value {i}")
        client.commit(batch.put("page0", "not in it"))
        expected = [f"page/{i:03}".encode() for i in range(23)]
        for reader in (client, self.believing()):
            for page in (1, 7, 23, 24, 1000):
                pages = list(reader.range(prefix="page/", page=page))
                self.assertEqual([record.key for one in pages for record in one.value], expected)
            self.assertEqual(list(reader.range("b0", "b1"))[0].value, ())
            self.assertEqual(list(reader.range("b1", "b0")), [])
            self.assertEqual(sum(len(one.value) for one in reader.range("page/005", "page/009", page=4)), 4)
            for one in reader.range(prefix=b"", page=5):
                self.assertLessEqual(len(one.value), 5)
        # A write between two pages is not seen.
        pages = client.range(prefix="page/", page=10)
        first = next(pages)
        client.put("page/0105", "later")
        rest = list(pages)
        self.assertEqual([record.key for one in (first, *rest) for record in one.value], expected)
        self.assertEqual({one.version for one in rest}, {first.version})

    def test_values_that_are_not_in_a_proof_are_fetched_and_compared(self):
        client = self.client()
        large = {f"large/{i}".encode(): bytes([i]) * (1 << 20) for i in range(5)}
        for key, value in large.items():
            client.put(key, value)
        relay = self.relay()
        reader = self.client(relay.endpoint)
        read = {record.key: record.value for one in reader.range(prefix="large/") for record in one.value}
        self.assertEqual(read, large)
        fetched = [path for _, path in relay.calls if path.startswith("/v1/records/")]
        if fetched:
            relay.lie = lambda _, path, answer: path.startswith("/v1/records/") and setattr(answer, "body", b"lie")
            with self.assertRaises(coppice.Untrusted):
                list(reader.range(prefix="large/"))

    def test_histories_logs_and_heads_are_a_coordinators_word(self):
        client = self.client()
        stamps = [client.put("story", str(i)).version for i in range(3)]
        last = client.delete("story").version
        history = client.history("story").value
        self.assertEqual([change.value for change in history.changes], [None, b"2", b"1", b"0"])
        self.assertEqual([change.version for change in history.changes], [last, *reversed(stamps)])
        self.assertFalse(history.truncated)
        self.assertEqual(client.history("story", limit=2).value.changes, history.changes[:2])
        self.assertEqual(client.get("story", stale=True).version, last)
        self.assertIsNone(self.believing().get("story", stale=True).value)
        changed, other = client.put("story", "3").version, client.put("story2", b"\xff").version
        side = {stamp: coppice.Record(b"story", value, stamp) for stamp, value in ((stamps[1], b"1"), (changed, b"3"))}
        of_story = coppice.Difference(b"story", side[stamps[1]], side[changed])
        of_other = coppice.Difference(b"story2", None, coppice.Record(b"story2", b"\xff", other))
        between = (stamps[1].version, other.version)
        self.assertEqual(client.diff(*between, prefix="story").value, (of_story, of_other))
        self.assertEqual(client.diff(*between, "story", "story2").value, (of_story,))
        gone = client.diff(stamps[1].version, last.version, prefix="story").value
        self.assertEqual(gone, (coppice.Difference(b"story", side[stamps[1]], None),))
        self.assertEqual(client.diff(last.version, last.version).value, ())
        self.refused("NOT_YET", client.diff, 1, other.version + 9)
        with self.assertRaises(ValueError):
            client.diff(-1, 2)
        last = other
        entries = [entry.value for entry in client.log()]
        self.assertEqual([entry.sequence for entry in entries], list(range(len(entries))))
        self.assertEqual((entries[0].kind, entries[-1].version), ("genesis", last))
        self.assertEqual([entry.value for entry in client.log(2, 5)], entries[2:5])
        self.assertEqual(self.believing().head().value, last)

    def test_a_connection_is_used_again_and_made_again_when_it_is_closed(self):
        client = self.believing(patience=0)
        client.head()
        kept = client._transport._connection
        client.log()
        list(client.range(page=3))
        self.refused("NOT_FOUND", client._call, "GET", "/v1/records/none")
        self.assertIs(client._transport._connection, kept)
        self.assertIsNotNone(kept.sock)
        relay = self.relay()
        client = self.believing(relay.endpoint)
        client.head()
        client._transport._connection.sock._sock.shutdown(socket.SHUT_RDWR)
        client.head()

    def test_refusals_have_their_reasons(self):
        for client in (self.client(), self.believing()):
            client.delete("refused")
            stamp = client.put("refused", "1", if_absent=True).value.version
            refused = self.refused("PRECONDITION_FAILED", client.put, "refused", "2", if_absent=True)
            self.assertEqual((refused.status, refused.outcome_unknown), (412, False))
            other = Stamp(stamp.epoch, stamp.version - 1)
            self.refused("PRECONDITION_FAILED", client.put, "refused", "2", if_changed=other)
            self.refused("PRECONDITION_FAILED", client.delete, "refused", if_changed=other)
            client.put("refused", "2", if_changed=stamp)
            self.refused("NOT_YET", client.get, "refused", version=1 << 40)
            self.refused("LIMIT_EXCEEDED", client.put, b"k" * 600, "v")
            with self.assertRaises(ValueError):
                client.get("")
            with self.assertRaises(ValueError):
                client.put("k", "v", if_absent=True, if_changed=stamp)


class Once(WithLedger):
    def test_a_session_writes_once_though_answers_are_lost(self):
        relay = self.relay()
        lost = []

        def lose(method, path, _):
            if method in ("PUT", "POST") and "/sessions/" not in path and len(lost) % 2 == 0:
                lost.append(path)
                raise Drop
            lost.append(path)

        for client in (self.client(relay.endpoint), self.believing(relay.endpoint)):
            session = client.session()
            relay.lie = lose
            before = client.head().value.version
            session.put("once", "1")
            session.commit(Batch().put("once", "2").put("twice", "2"))
            relay.lie = None
            self.assertEqual(client.head().value.version, before + 2)
            again = client.session(session.id)
            self.assertEqual(again.highest, 2)
            again.highest = 1
            done = again.commit(Batch().put("once", "2").put("twice", "2"))
            self.assertIn(done.value.replayed, (True, None))
            again.highest = 1
            self.refused("SESSION_MISMATCH", again.put, "once", "3")
            self.assertEqual(again.highest, 1)
            self.assertEqual(client.head().value.version, before + 2)
            # A refusal uses up no number.
            self.refused("PRECONDITION_FAILED", session.put, "once", "4", if_absent=True)
            self.assertEqual(session.highest, 2)
            session.put("once", "5")

    def test_a_write_outside_of_a_session_is_sent_again_only_if_it_had_no_effect(self):
        relay = self.relay()
        client = self.client(relay.endpoint)
        client.put("unsafe", "0")

        def drop(*_):
            raise Drop

        relay.lie, relay.calls = drop, []
        self.assertTrue(self.refused("", client.put, "unsafe", "1").outcome_unknown)
        self.assertEqual(len(relay.calls), 1)
        for reason, code, sent_again, unknown in (
            ("RESOURCE_EXHAUSTED", 429, True, False), ("NOT_LEADER", 503, True, False),
            ("UNAVAILABLE", 503, False, True), ("DENIED", 403, False, False), ("", 502, False, True),
        ):
            relay.calls, relay.lie = [], None
            relay.before = lambda *_: refusal(code, reason)
            client = self.believing(relay.endpoint, patience=0.3)
            self.assertEqual(self.refused(reason, client.put, "unsafe", "2").outcome_unknown, unknown, reason)
            self.assertEqual(len(relay.calls) > 1, sent_again, reason)

    def test_retry_after_is_kept_to_and_no_wait_exceeds_the_patience(self):
        relay = self.relay()
        answers = [refusal(429, "RESOURCE_EXHAUSTED", **{"Retry-After": "1"})]
        relay.before = lambda *_: answers.pop() if answers else None
        began = time.monotonic()
        self.believing(relay.endpoint).head()
        self.assertGreaterEqual(time.monotonic() - began, 1)
        relay.before = lambda *_: refusal(503, "UNAVAILABLE", **{"Retry-After": "9000"})
        began = time.monotonic()
        self.refused("UNAVAILABLE", self.believing(relay.endpoint, patience=20).head)
        within(5, began)


class Watches(WithLedger):
    def test_a_watch_goes_on_where_a_connection_broke(self):
        client = self.client()
        start = client.head().checkpoint.size
        for i in range(6):
            client.put("watched", str(i))
        relay = self.relay()
        watching = self.believing(relay.endpoint).watch(start)
        seen = [next(watching).value.sequence for _ in range(6)]
        self.assertEqual(seen, list(range(start, start + 6)))
        self.assertGreaterEqual(len(relay.calls), 3)

    def test_a_watch_shows_new_entries_and_ends_when_it_is_quiet(self):
        client = self.client()
        watching = client.watch(quiet=30)
        size = client.head().checkpoint.size
        started = client.watch(size - 1, quiet=30)
        next(started)
        done = client.put("new", "1")
        entry = next(started).value
        self.assertEqual((entry.version, entry.sequence, entry.kind), (done.version, size, "commit"))
        self.assertEqual(entry.fields["version"], done.version.version)
        began = time.monotonic()
        self.assertEqual(list(client.watch(quiet=0.5)), [])
        self.assertGreaterEqual(time.monotonic() - began, 0.5)
        within(10, began)
        watching.close()

    def test_a_watch_with_a_gap_or_without_an_answer_fails(self):
        relay = self.relay()
        client = self.believing(relay.endpoint, patience=0.5)
        relay.lie = lambda _, path, answer: setattr(answer, "body", answer.body.replace(b'"sequence":0', b'"sequence":7'))
        line = relay.ask("GET", "/v1/log?from=0&limit=1", {}).body
        event = b"id: 0\ndata: " + line.replace(b'"sequence":0', b'"sequence":7') + b"\n"
        relay.before = lambda *_: Answered(200, {}, event)
        with self.assertRaises(coppice.Untrusted):
            next(client.watch(0))
        with self.assertRaises(coppice.Untrusted):
            relay.before = None
            list(client.log())
        for answer in (Answered(200, {}, b""), refusal(503, "UNAVAILABLE"), Answered(200, {}, b"nothing\n\n")):
            relay.before = lambda *_: answer
            began = time.monotonic()
            with self.assertRaises(coppice.Refused):
                next(client.watch(0))
            within(10, began)


class Keys(WithLedger):
    def of(self, dev, endpoint=None, **options):
        client = Client(endpoint or dev.endpoint, **{"trust": dev.vkey, **options})
        self.addCleanup(client.close)
        return client

    def test_a_client_follows_the_ledgers_key_and_finds_who_does_not(self):
        directory = self.folder / "rotated"
        dev = Dev(directory)
        old = self.of(dev)
        old.put("k", "1")
        before = json.loads(json.dumps(old.memory()))
        # The next key must be there when the ledger starts; its thief goes on with the old one.
        dev.command("keygen", "--out", str(directory / "next.key"), "--name", dev.vkey.split("+")[0])
        dev, thief = dev.twin(self.folder / "thief")
        self.addCleanup(dev.stop)
        self.addCleanup(thief.stop)
        client = self.of(dev, memory=before)
        dev.command("rotate-key", f"@{directory}/next.vkey", "--reason", "rehearsal")
        client.put("k", "2")
        self.assertEqual(client.get("k").value.value, b"2")
        after = json.loads(json.dumps(client.memory()))
        new = (directory / "next.vkey").read_text()
        for key, memory in ((dev.vkey, None), (new, None), (dev.vkey, before), (dev.vkey, after), (new, after)):
            reader = self.of(dev, trust=key, memory=memory)
            self.assertEqual(reader.get("k").value.value, b"2")
        # Checkpoints of the old key are not believed, though they are larger.
        for i in range(5):
            self.of(thief, memory=before).put("k", f"stolen {i}")
        relay = Relay(dev)
        self.addCleanup(relay.close)
        victim = self.of(dev, relay.endpoint)
        victim.get("k")
        relay.dev = thief
        with self.assertRaises(coppice.Untrusted):
            victim.get("k")
        with self.assertRaises(ValueError):
            Client(dev.endpoint, trust=self.dev.vkey, memory=after)


class Certificates(WithLedger):
    def test_both_ends_show_certificates(self):
        server = certificates(self.folder, "c1", "coordinator", "127.0.0.1")
        writer = certificates(self.folder, "writer", "writer")
        wrong_role = certificates(self.folder, "n1", "node", "127.0.0.1")
        elsewhere = certificates(self.folder, "c2", "coordinator", "127.0.0.2")
        foreign = certificates(self.folder / "foreign", "writer", "writer")
        ca = str(self.folder / "ca.pem")

        def serve(pair):
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*pair)
            context.load_verify_locations(ca)
            context.verify_mode = ssl.CERT_REQUIRED
            return self.relay(context=context).endpoint

        good = serve(server)
        client = self.client(good, tls=coppice.TLS(ca, *writer))
        client.put("tls", "1")
        self.assertEqual(client.get("tls").value.value, b"1")
        next(client.watch(0))
        self.client(serve(wrong_role), tls=coppice.TLS(ca, *writer, any_server=True)).get("tls")
        for endpoint, tls in (
            (good, coppice.TLS(ca)), (good, coppice.TLS(ca, *foreign)),
            (good, coppice.TLS(str(self.folder / "foreign/ca.pem"), *writer)),
            (serve(wrong_role), coppice.TLS(ca, *writer)), (serve(elsewhere), coppice.TLS(ca, *writer)),
        ):
            client = self.client(endpoint, tls=tls, patience=0)
            self.refused("", client.get, "tls")
        for wrong in (coppice.TLS(ca, writer[0]), coppice.TLS(ca, writer[0], server[1]), coppice.TLS("nowhere")):
            with self.assertRaises((ValueError, OSError)):
                self.client(good, tls=wrong)
        with self.assertRaises(ValueError):
            self.client(good)
        with self.assertRaises(ValueError):
            self.client(self.dev.endpoint, tls=coppice.TLS(ca))


class Page(WithLedger):
    def test_the_examples_of_the_readme_run(self):
        dev = Dev(self.folder / "my-ledger")
        self.addCleanup(dev.stop)
        text = (Path(coppice.__file__).parents[1] / "README.md").read_text()
        blocks = [block for block in re.findall("```python\n(.*?)```", text, re.S) if "coppice.Client(" in block]
        script = "".join(blocks).replace("http://127.0.0.1:7401", dev.endpoint)
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        shown = subprocess.run(
            [sys.executable, "-c", script], cwd=self.folder, env=environment, check=True, stdout=subprocess.PIPE,
            text=True, timeout=LIMIT_S,
        )
        self.assertEqual(shown.stdout, "b'100' 0.1 2\n0 genesis\n1 commit\n2 commit\n3 commit\n")
        self.assertEqual(len(blocks), 2)


class WithoutWasmtime(WithLedger):
    def test_only_the_client_that_says_unverified_works(self):
        script = f"""
import sys
sys.modules["wasmtime"] = None
import coppice
client = coppice.UnverifiedClient({self.dev.endpoint!r})
client.put("without", "1")
assert type(client.get("without")) is coppice.Unverified
try:
    coppice.Client({self.dev.endpoint!r}, trust={self.dev.vkey!r})
except ImportError as error:
    assert "UnverifiedClient" in str(error)
else:
    sys.exit("it has started without a verifier")
"""
        package = Path(coppice.__file__).parents[1]
        subprocess.run([sys.executable, "-c", script], cwd=package, check=True, timeout=LIMIT_S)


if __name__ == "__main__":
    unittest.main()
