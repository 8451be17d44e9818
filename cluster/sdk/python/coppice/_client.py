"""Clients of a ledger: one that verifies, and one that believes."""

import hashlib
import json
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Any, Generic, Self, TypeVar

from ._http import PAUSE_MAX_S, PAUSE_S, PROOF, TLS, Answer, Failed, Malformed, Transport, parsed
from ._trust import Shards, Trust, checkpoint_of, stamp_of
from ._types import (
    Change, Committed, Difference, Entry, Error, History, Record, Refused, Stamp, Unverified, Untrusted, Verified,
    after_prefix, as_bytes, as_key, in_url,
)

PAGE_MAX = 1000
T = TypeVar("T")
Done = TypeVar("Done")
Bytes = str | bytes


class Batch:
    """Changes of which all happen or none. Each key occurs once."""

    def __init__(self) -> None:
        self.puts: dict[bytes, bytes] = {}
        self.deletes: list[bytes] = []
        self._keys: set[bytes] = set()

    def put(self, key: Bytes, value: Bytes) -> "Batch":
        self.puts[self._new(key)] = as_bytes(value)
        return self

    def delete(self, key: Bytes) -> "Batch":
        self.deletes.append(self._new(key))
        return self

    def _new(self, key: Bytes) -> bytes:
        key = as_key(key)
        if key in self._keys:
            raise ValueError("a batch changes a key once")
        self._keys.add(key)
        return key


# What a record must be: absent, or changed last at a version.
Condition = tuple[bool, Stamp | None]
# A session's id, and the number of a write in it.
Numbered = tuple[bytes, int]
Send = Callable[[Batch, Condition, Numbered | None], Done]


class _Base(Generic[Done]):
    """What both clients do. `Done` is what a commit gives."""

    def __init__(
        self, endpoints: str | list[str], *, tls: TLS | None = None, timeout: float = 30.0, patience: float = 5.0,
        answer_bytes_max: int = 64 << 20,
    ) -> None:
        self._transport = Transport(endpoints, tls, timeout, patience, answer_bytes_max)
        self._patience = patience

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection. A later call opens another one."""
        self._transport.close()

    # Writes.

    def put(self, key: Bytes, value: Bytes, *, if_absent: bool = False, if_changed: Stamp | None = None) -> Done:
        """Gives a key a value. With `if_absent` only if it has none; with `if_changed` only if its
        record was changed last at that version. Else the reason is PRECONDITION_FAILED.

        It is sent again only if it certainly had no effect: see `Error.outcome_unknown`, and
        `session`.
        """
        return self._send(Batch().put(key, value), (if_absent, if_changed), None)

    def delete(self, key: Bytes, *, if_changed: Stamp | None = None) -> Done:
        """Takes a key's record away; does nothing to a key without one."""
        return self._send(Batch().delete(key), (False, if_changed), None)

    def commit(self, batch: Batch) -> Done:
        """Commits a batch, as `put` does."""
        return self._send(batch, (False, None), None)

    def session(self, id: bytes | None = None) -> "Session[Done]":
        """Opens a session, or finds it again by its 16 bytes. Its writes take place once each."""
        id = secrets.token_bytes(16) if id is None else bytes(id)
        if len(id) != 16:
            raise ValueError("the id of a session has 16 bytes")
        answer = self._call("PUT", f"/v1/sessions/{id.hex()}", {"Coppice-Write": "any"})
        return Session(self._send, id, _read(lambda: int(answer.json()["highest_number"])))

    def _send(
        self, batch: Batch, condition: Condition, session: Numbered | None
    ) -> Done:
        raise NotImplementedError

    def _write(
        self, batch: Batch, condition: Condition, session: Numbered | None, accept: str
    ) -> Answer:
        if_absent, if_changed = condition
        if if_absent and if_changed:
            raise ValueError("if_absent and if_changed exclude each other")
        headers = {"Accept": accept, "Coppice-Write": "any"}
        if if_absent:
            headers["If-None-Match"] = "*"
        if if_changed:
            headers["If-Match"] = f'"{if_changed}"'
        if session:
            headers |= {"Coppice-Session": session[0].hex(), "Coppice-Number": str(session[1])}
        keys = [*batch.puts, *batch.deletes]
        if len(keys) == 1:
            path = f"/v1/records/{in_url(keys[0])}"
            method, body = ("PUT", batch.puts[keys[0]]) if batch.puts else ("DELETE", None)
        else:
            method, path = "POST", "/v1/batches"
            puts = [[key.hex(), value.hex()] for key, value in batch.puts.items()]
            line = {"encoding": "hex", "put": puts, "delete": [key.hex() for key in batch.deletes]}
            headers["Content-Type"], body = "application/json", json.dumps(line).encode()
        return self._call(method, path, headers, body, once=session is None)

    # The word of a coordinator.

    def history(self, key: Bytes, *, limit: int = 0, version: int | None = None) -> Unverified[History]:
        """The changes of a key, newest first: all, or `limit` of them."""
        path = f"/v1/records/{in_url(as_key(key))}/history?limit={limit}{_at(version)}"
        answer = self._call("GET", path)

        def read() -> History:
            *lines, end = answer.lines()
            if end["changes"] != len(lines):
                raise Malformed("a history without its end")
            changes = (Change(_stamp(line), _bytes(line["value"]) if line["found"] else None) for line in lines)
            return History(tuple(changes), bool(end["truncated"]))

        return Unverified(_read(read))

    def diff(
        self, start: int, stop: int, low: Bytes = b"", high: Bytes | None = None, *, prefix: Bytes | None = None
    ) -> Unverified[tuple[Difference, ...]]:
        """The keys whose records differ between two versions, in order."""
        at, end = _bounds(low, high, prefix)
        if min(start, stop) < 0:
            raise ValueError("a version is a number from 0 on")
        answer = self._call("GET", f"/v1/diff?from={start}&to={stop}&{_between(at, end)}")

        def read() -> tuple[Difference, ...]:
            *lines, last = answer.lines()
            if last["keys"] != len(lines):
                raise Malformed("a difference without its end")
            return tuple(_difference(line) for line in lines)

        return Unverified(_read(read))

    def log(self, start: int = 0, stop: int | None = None) -> Iterator[Unverified[Entry]]:
        """The entries of the root log from a number on, up to its end or before `stop`."""
        while stop is None or start < stop:
            limit = PAGE_MAX if stop is None else min(PAGE_MAX, stop - start)
            answer = self._call("GET", f"/v1/log?from={start}&limit={limit}")
            entries = _read(lambda: [_entry(line) for line in answer.lines()])
            if not entries:
                return
            for entry in entries:
                _in_order(entry, start)
                yield Unverified(entry)
                start += 1
            if "Link" not in answer.headers:
                return

    def watch(self, start: int | None = None, *, quiet: float | None = None) -> Iterator[Unverified[Entry]]:
        """The entries of the root log as they come, from a number on or from now on. It goes on
        where a broken connection ended, without a gap.

        Ends after `quiet` seconds without an entry. Raises `Refused` if no coordinator answers for
        as long as the client's patience.
        """
        if start is None:
            answer = self._call("GET", "/v1/head")
            start = _read(lambda: int(answer.json()["log_size"]))
        last = alive = time.monotonic()
        pause = PAUSE_S
        while quiet is None or time.monotonic() < last + quiet:
            began = time.monotonic()
            left = None if quiet is None else last + quiet - began
            broken = Refused("the watch breaks off again and again")
            try:
                for event in self._transport.events(f"/v1/watch?from={start}", left):
                    entry = _read(lambda: _entry(parsed(event["data"])))
                    _in_order(entry, start)
                    yield Unverified(entry)
                    start, last, pause = start + 1, time.monotonic(), PAUSE_S
                    alive = last
                if time.monotonic() - began > max(self._patience, 1.0):
                    # It was silent for long, and broke off.
                    alive = time.monotonic()
            except Failed as failed:
                broken, pause = failed.refused, max(pause, failed.retry_after)
                if failed.final:
                    raise broken from failed.__cause__
            now = time.monotonic()
            if now - alive > self._patience and (quiet is None or now < last + quiet):
                raise broken
            time.sleep(pause)
            pause = min(2 * pause, PAUSE_MAX_S)

    def _call(
        self, method: str, path: str, headers: dict[str, str] | None = None, body: bytes | None = None,
        once: bool = False,
    ) -> Answer:
        return self._transport.call(method, path, headers=headers, body=body, once=once)


class Session(Generic[Done]):
    """Numbers its writes, so that each takes place at most once, however often it is sent. After an
    error whose outcome is unknown, make the same write again: it keeps its number."""

    def __init__(self, send: Send[Done], id: bytes, highest: int) -> None:
        self._send, self.id, self.highest = send, id, highest

    def put(self, key: Bytes, value: Bytes, *, if_absent: bool = False, if_changed: Stamp | None = None) -> Done:
        return self._next(Batch().put(key, value), (if_absent, if_changed))

    def delete(self, key: Bytes, *, if_changed: Stamp | None = None) -> Done:
        return self._next(Batch().delete(key), (False, if_changed))

    def commit(self, batch: Batch) -> Done:
        return self._next(batch, (False, None))

    def _next(self, batch: Batch, condition: Condition) -> Done:
        try:
            done = self._send(batch, condition, (self.id, self.highest + 1))
        except Refused as refused:
            # A batch that was committed and rolled back has used up its number as well.
            if refused.reason == "ROLLED_BACK":
                self.highest += 1
            raise
        self.highest += 1
        return done


class Client(_Base[Verified[Committed]]):
    """A client that believes a commit by the receipt of exactly that batch, and a read by a proof
    of exactly what was asked. The proof is of the newest version or the one that was asked for,
    under a checkpoint no older than what the client has seen. From time to time the ledger must
    prove that its log only grew.

    `trust` is the ledger's public key, the line of `ledger.vkey`. `memory` is what `memory()` of an
    earlier client gave. Histories, differences, entries of the log and watches are a coordinator's
    word, and are `Unverified`. A client is for one thread at a time.
    """

    def __init__(
        self, endpoints: str | list[str], *, trust: str, memory: dict[str, Any] | None = None, tls: TLS | None = None,
        timeout: float = 30.0, patience: float = 5.0, answer_bytes_max: int = 64 << 20,
    ) -> None:
        super().__init__(
            endpoints, tls=tls, timeout=timeout, patience=patience, answer_bytes_max=answer_bytes_max
        )
        self._trust = Trust(trust, memory)
        self._shards: Shards | None = None

    def memory(self) -> dict[str, Any]:
        """What a later client should know: an object for JSON. Keep it where only you can write."""
        return self._trust.memory()

    def head(self) -> Verified[Stamp]:
        """The newest version."""
        end = self._trust.growth_since(self._trust.proven, self._growth)
        return Verified(end.newest, end.newest, end.checkpoint, end.proof)

    def get(self, key: Bytes, *, version: int | None = None, stale: bool = False) -> Verified[Record | None]:
        """The record of a key, or None if it is proven to have none. A stale read may be answered
        under a checkpoint that is older than what the client has seen."""
        key = as_key(key)
        seen, path = 0 if stale else self._trust.seen, f"/v1/records/{in_url(key)}?{_at(version)}{_stale(stale)}"
        proof = self._call("GET", path, {"Accept": PROOF}).body
        report = self._trust.judge(
            proof, seen, of_head=version is None, expect_keys=[key], expect_version=version
        )
        return self._believe(self._record(report, report["version"]) if report["found"] else None, report, proof)

    def range(
        self, low: Bytes = b"", high: Bytes | None = None, *, prefix: Bytes | None = None, version: int | None = None,
        page: int = 100,
    ) -> Iterator[Verified[tuple[Record, ...]]]:
        """All records from `low` on and below `high`, or those whose keys begin with `prefix`, in
        pages of one version. Each page is proven to be complete before it is given."""
        at, end = _bounds(low, high, prefix)
        while end is None or at < end:
            seen = self._trust.seen
            path = f"/v1/records?{_between(at, end)}&limit={_page(page)}{_at(version)}"
            proof = self._call("GET", path, {"Accept": PROOF}).body
            report = self._trust.judge(proof, seen, of_head=version is None, expect_version=version)
            cut = self._check_range(report, proof, at, end, page)
            version = int(report["version"])
            records = tuple(self._record(record, version) for record in report["records"])
            yield self._believe(records, report, proof)
            if cut is None:
                return
            at = cut

    def _check_range(
        self, report: dict[str, Any], proof: bytes, low: bytes, high: bytes | None, page: int
    ) -> bytes | None:
        """Where the next page begins; None if the proof covers all. A page that ends early has as
        many records as were asked for, and ends at its last one."""
        if report["kind"] != "range" or _unhex(report["low"]) != low:
            raise Untrusted("the proof answers another question", proof=proof)
        shown = None if report["high"] is None else _unhex(report["high"])
        if shown == high:
            return None
        records = report["records"]
        end = _unhex(records[-1]["key"]) + b"\0" if len(records) == page else None
        if end is None or shown != end or (high is not None and end > high):
            raise Untrusted("the range ends below its limit", proof=proof)
        return end

    def _record(self, shown: dict[str, Any], version: int) -> Record:
        """A record that was proven. A proof without its value has the value's hash."""
        key = _unhex(shown["key"])
        if "value" in shown:
            value = _unhex(shown["value"])
        else:
            value = self._call("GET", f"/v1/records/{in_url(key)}?{_at(version)}").body
            if hashlib.sha256(value).hexdigest() != shown["value_sha256"]:
                raise Untrusted("the value is not the one that is proven")
        return Record(key, value, _stamp(shown["last_changed"]))

    def _send(
        self, batch: Batch, condition: Condition, session: Numbered | None
    ) -> Verified[Committed]:
        shards = self._shards or self._genesis()
        answer = self._write(batch, condition, session, PROOF)
        entry = shards.entry_hash(batch.puts, batch.deletes, session)
        try:
            report = self._trust.judge(answer.body, 0, expect_batch=entry)
            if report["shard_map_hash"] != shards.map_hash:
                raise Untrusted("the genesis entry that was shown has other shards", proof=answer.body)
        except Error as error:
            error.outcome_unknown = True
            raise
        self._shards = shards
        return self._believe(Committed(stamp_of(report)), report, answer.body)

    def _genesis(self) -> Shards:
        """The shards of the ledger. They may come from anywhere, since each receipt has the hash of
        their map."""
        answer = self._call("GET", "/v1/log?from=0&limit=1")
        return _read(lambda: Shards.of(answer.lines()[0]["genesis"]["shards"]))

    def _growth(self, since: int) -> bytes:
        return self._call("GET", f"/v1/checkpoint?since={since}", {"Accept": PROOF}).body

    def _believe(self, value: Any, report: dict[str, Any], proof: bytes) -> Verified[Any]:
        if self._trust.growth_is_due():
            self._trust.grow(self._growth)
        return Verified(value, stamp_of(report), checkpoint_of(report), proof)


class UnverifiedClient(_Base[Unverified[Committed]]):
    """A client that believes what a coordinator says, and says so in the type of each answer. It
    needs no wasmtime."""

    def head(self) -> Unverified[Stamp]:
        answer = self._call("GET", "/v1/head")
        return Unverified(_read(lambda: _stamp(answer.json())))

    def get(self, key: Bytes, *, version: int | None = None, stale: bool = False) -> Unverified[Record | None]:
        key = as_key(key)
        try:
            answer = self._call("GET", f"/v1/records/{in_url(key)}?{_at(version)}{_stale(stale)}")
        except Refused as refused:
            if refused.reason == "NOT_FOUND":
                return Unverified(None)
            raise
        return Unverified(_read(lambda: Record(key, answer.body, _parse_tag(answer.headers["ETag"]))))

    def range(
        self, low: Bytes = b"", high: Bytes | None = None, *, prefix: Bytes | None = None, version: int | None = None,
        page: int = 100,
    ) -> Iterator[Unverified[tuple[Record, ...]]]:
        at, end = _bounds(low, high, prefix)
        while end is None or at < end:
            answer = self._call("GET", f"/v1/records?{_between(at, end)}&limit={_page(page)}{_at(version)}")
            records = _read(lambda: tuple(_line_record(line) for line in answer.lines()))
            version = _read(lambda: int(answer.headers["Coppice-Version"].split(".")[1]))
            yield Unverified(records)
            if "Link" not in answer.headers or not records or records[-1].key < at:
                return
            at = records[-1].key + b"\0"

    def _send(
        self, batch: Batch, condition: Condition, session: Numbered | None
    ) -> Unverified[Committed]:
        answer = self._write(batch, condition, session, "application/json")
        return Unverified(_read(lambda: Committed(_stamp(answer.json()), answer.json()["replayed"]), written=True))


def _read(read: Callable[[], T], written: bool = False) -> T:
    """What `read` makes of an answer, whose form nobody has checked."""
    try:
        return read()
    except (Malformed, ValueError, LookupError, TypeError, AttributeError) as error:
        raise Untrusted(f"the answer is malformed: {error}", outcome_unknown=written) from error


def _at(version: int | None) -> str:
    if version is None:
        return ""
    if version < 0:
        raise ValueError("a version is a number from 0 on")
    return f"&version={version}"


def _between(low: bytes, high: bytes | None) -> str:
    return f"low={in_url(low)}" + ("" if high is None else f"&high={in_url(high)}")


def _stale(stale: bool) -> str:
    return "&stale=true" if stale else ""


def _page(page: int) -> int:
    if not 1 <= page <= PAGE_MAX:
        raise ValueError(f"a page has from 1 to {PAGE_MAX} records")
    return page


def _bounds(low: Bytes, high: Bytes | None, prefix: Bytes | None) -> tuple[bytes, bytes | None]:
    if prefix is None:
        return as_bytes(low), None if high is None else as_bytes(high)
    if low or high is not None:
        raise ValueError("prefix stands in place of low and high")
    return as_bytes(prefix), after_prefix(as_bytes(prefix))


def _stamp(fields: dict[str, Any]) -> Stamp:
    return Stamp(int(fields["epoch"]), int(fields["version"]))


def _parse_tag(tag: str) -> Stamp:
    epoch, version = tag.strip('"').split(".")
    return Stamp(int(epoch), int(version))


def _bytes(value: str | dict[str, str]) -> bytes:
    return bytes.fromhex(value["hex"]) if isinstance(value, dict) else value.encode()


def _unhex(text: str) -> bytes:
    return bytes.fromhex(text.removeprefix("0x"))


def _line_record(line: dict[str, Any]) -> Record:
    return Record(_bytes(line["key"]), _bytes(line["value"]), _stamp(line["last_changed"]))


def _difference(line: dict[str, Any]) -> Difference:
    key = _bytes(line["key"])

    def side(shown: dict[str, Any] | None) -> Record | None:
        return None if shown is None else Record(key, _bytes(shown["value"]), _stamp(shown["last_changed"]))

    return Difference(key, side(line["before"]), side(line["after"]))


def _entry(line: dict[str, Any]) -> Entry:
    return Entry(int(line["sequence"]), str(line["kind"]), _stamp(line), int(line["timestamp_ms"]), line)


def _in_order(entry: Entry, expected: int) -> None:
    if entry.sequence != expected:
        raise Untrusted(f"the log goes on with entry {entry.sequence}, and not with {expected}")
