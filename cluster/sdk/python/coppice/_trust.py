"""What a client believes: the rules of the client for Rust, by the verifier for all languages.

A proof alone shows that something was so. Here it must answer the question that was asked, and be
no older than what was seen before; and all that is seen must be beginnings of one log.
"""

import hashlib
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from ._types import Checkpoint, Error, Forked, Stamp, Untrusted

# Time between proofs that the log only grew, and the longest time for which they may be missing.
GROWTH_INTERVAL_S, GROWTH_PATIENCE_S = 10.0, 60.0
GROWTH_TRIES = 5
NO_PARENT = 0xFFFF_FFFF


@dataclass(frozen=True)
class Seen:
    """A checkpoint that was proven with its newest version, and the file that proved it."""

    checkpoint: Checkpoint
    newest: Stamp
    proof: bytes

    @staticmethod
    def of(report: dict[str, Any], proof: bytes) -> "Seen":
        newest = Stamp(report["newest"]["epoch"], report["newest"]["version"])
        return Seen(checkpoint_of(report), newest, proof)


class Trust:
    """The ledger's key, and the newest checkpoints under it."""

    def __init__(self, vkey: str, memory: dict[str, Any] | None) -> None:
        try:
            from coppice_verify import Verifier
        except ImportError as error:
            raise ImportError(
                "proofs are checked by wasmtime: pip install 'coppice[verify]', or take an UnverifiedClient"
            ) from error
        self._verifier = Verifier()
        self.key = vkey.strip()
        self.changes: list[tuple[int, str]] = []
        self.newest: Seen | None = None
        self.proven: Seen | None = None
        self._asked_at = 0.0
        self._missing_since: float | None = None
        if memory:
            self._remember(memory)

    def _remember(self, memory: dict[str, Any]) -> None:
        """Takes what a client knew. It is believed as it is."""
        self.changes = [(int(at), str(key)) for at, key in memory["changes"]]
        if self.key not in (memory["trusted"], *(key for _, key in self.changes)):
            raise ValueError("the memory is of a ledger with other keys")
        checkpoint = Checkpoint(int(memory["size"]), str(memory["root"]))
        newest = Stamp(int(memory["epoch"]), int(memory["version"]))
        self.newest = self.proven = Seen(checkpoint, newest, bytes.fromhex(memory["proof"]))

    def memory(self) -> dict[str, Any]:
        """What a later client of the same ledger should know, as an object for JSON."""
        if not self.proven:
            return {}
        at, newest = self.proven.checkpoint, self.proven.newest
        known = {"trusted": self.key, "changes": self.changes, "proof": self.proven.proof.hex()}
        return known | {"size": at.size, "root": at.root, "epoch": newest.epoch, "version": newest.version}

    @property
    def seen(self) -> int:
        """The size of the newest checkpoint that was seen, in entries."""
        return self.newest.checkpoint.size if self.newest else 0

    def judge(self, proof: bytes, seen: int, *, of_head: bool = False, **expected: Any) -> dict[str, Any]:
        """Judges a proof file, which must answer what is expected, and learns from it. `seen` is
        what was known before the question."""
        keys = [self.changes[-1][1] if self.changes else self.key]
        try:
            report: dict[str, Any] = self._verifier.verify(proof, keys=keys, encoding="hex", **expected)
        except RuntimeError as error:
            raise Untrusted(str(error), proof=proof) from error
        if not report["valid"]:
            raise Untrusted(report["error"], step=report["failed_step"], proof=proof)
        if of_head and report["newest"]["version"] != report["version"]:
            raise Untrusted("the version that was read is not the newest one", proof=proof)
        if report["checkpoint"]["size"] < seen:
            raise Untrusted("it is older than what this client had seen before it asked", proof=proof)
        self._learn(report, proof)
        return report

    def _learn(self, report: dict[str, Any], proof: bytes) -> None:
        at = checkpoint_of(report)
        shown = [(change["sequence"], change["vkey"]) for change in report["key_changes"]]
        common = min(len(shown), len(self.changes))
        joined = max(shown, self.changes, key=len)
        # A proof has all changes below its checkpoint's size. One that lacks a known change there
        # is signed by a key that the ledger had replaced before.
        if shown[:common] != self.changes[:common] or shown != [change for change in joined if change[0] < at.size]:
            self._forked("the changes of the ledger's key differ from the known ones", proof)
        for old in (self.newest, self.proven):
            if old and old.checkpoint.size == at.size and old.checkpoint.root != at.root:
                self._forked("the log has two roots of the same size", proof, old)
        self.changes = joined
        now = Seen.of(report, proof)
        self.proven = self.proven or now
        if self.seen < at.size:
            self.newest = now

    def _forked(self, why: str, proof: bytes, old: Seen | None = None) -> NoReturn:
        known = old or self.newest
        raise Forked(why, known.proof if known else b"", proof)

    def growth_is_due(self) -> bool:
        """Whether a proof that the log only grew should be asked for now."""
        if not self.proven or self.seen <= self.proven.checkpoint.size:
            return False
        now = time.monotonic()
        if now - self._asked_at < GROWTH_INTERVAL_S and not self._is_overdue(now):
            return False
        self._asked_at = now
        if self._missing_since is None:
            self._missing_since = now
        return True

    def _is_overdue(self, now: float) -> bool:
        return self._missing_since is not None and now - self._missing_since >= GROWTH_PATIENCE_S

    def grow(self, ask: Callable[[int], bytes]) -> None:
        """Demands that one log extends the checkpoint that was proven last and the newest one that
        was seen. `ask` gets the proof of growth since a size."""
        try:
            if any(self._tie(ask) for _ in range(GROWTH_TRIES)):
                self._missing_since = None
                return
        except Untrusted:
            raise
        except Error:
            # Nobody answered. The answer at hand is proven all the same.
            pass
        if self._is_overdue(time.monotonic()):
            raise Untrusted("the ledger does not prove that its log extends the one that was proven last")

    def _tie(self, ask: Callable[[int], bytes]) -> bool:
        """Gets both proofs. They show one log only if they end in one checkpoint."""
        proven, newest = self.proven, self.newest
        if not proven or not newest:
            return True
        end, other = self.growth_since(proven, ask), self.growth_since(newest, ask)
        if end.checkpoint.size != other.checkpoint.size:
            return False
        # Two roots of this size were refused when the second one was learned.
        self.proven = end
        return True

    def growth_since(self, old: Seen | None, ask: Callable[[int], bytes]) -> Seen:
        """The end of a proof that the log grew from an older checkpoint, or its first entry."""
        seen, size = self.seen, old.checkpoint.size if old else 1
        proof = ask(size)
        report = self.judge(proof, seen)
        if report["kind"] != "standing" or report["old_size"] != size:
            raise Untrusted("the proof answers another question", proof=proof)
        if old and report["old_root"] != old.checkpoint.root:
            self._forked(f"the log had another root at {size} entries", proof, old)
        return Seen.of(report, proof)


def checkpoint_of(report: dict[str, Any]) -> Checkpoint:
    return Checkpoint(report["checkpoint"]["size"], report["checkpoint"]["root"])


def stamp_of(report: dict[str, Any]) -> Stamp:
    return Stamp(report["epoch"], report["version"])


@dataclass(frozen=True)
class Shards:
    """The shards of a ledger by their lowest keys, and the hash of their map, which each header of
    the log carries."""

    lows: list[tuple[int, bytes]]
    map_hash: str

    @staticmethod
    def of(shards: list[dict[str, Any]]) -> "Shards":
        """Reads them from the genesis entry as JSON."""
        lows: list[tuple[int, bytes]] = []
        encoded = [struct.pack("<BI", 1, len(shards))]
        for shard in shards:
            low, high = _hex(shard["low"]), None if shard["high"] is None else _hex(shard["high"])
            lows.append((int(shard["shard"]), low))
            encoded.append(struct.pack("<II", shard["shard"], NO_PARENT) + _str16(low))
            encoded.append(b"\0" if high is None else b"\1" + _str16(high))
        return Shards(lows, _hash(0x17, *encoded).hex())

    def entry_hash(
        self, puts: dict[bytes, bytes], deletes: list[bytes], session: tuple[bytes, int] | None
    ) -> str:
        """The hash that names a batch in its receipt (docs/verification.md, section 8)."""
        lists: dict[int, list[bytes]] = {}
        for key, value in puts.items():
            put = struct.pack("<I", len(value)) + hashlib.sha256(value).digest()
            lists.setdefault(self._of(key), []).append(b"\0" + _str16(key) + put)
        for key in deletes:
            lists.setdefault(self._of(key), []).append(b"\1" + _str16(key))
        touched = [
            struct.pack("<I", shard) + _hash(0x1A, struct.pack("<I", len(listed)), *listed)
            for shard, listed in sorted(lists.items())
        ]
        by = b"\0" if session is None else b"\1" + session[0] + struct.pack("<Q", session[1])
        no_metadata = _hash(0x1B, struct.pack("<I", 0))
        head = b"\0" + by + no_metadata + b"\0\0" + struct.pack("<I", len(touched))
        return _hash(0x19, head, *touched).hex()

    def _of(self, key: bytes) -> int:
        return [shard for shard, low in self.lows if low <= key][-1]


def _hash(tag: int, *parts: bytes) -> bytes:
    return hashlib.sha256(bytes([tag]) + b"".join(parts)).digest()


def _str16(data: bytes) -> bytes:
    return struct.pack("<H", len(data)) + data


def _hex(text: str) -> bytes:
    return bytes.fromhex(text.removeprefix("0x"))
