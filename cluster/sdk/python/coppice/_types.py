"""What calls take and give, and how they fail."""

import urllib.parse
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

T = TypeVar("T", covariant=True)

# Reasons after which the same request may succeed later. The first ones had no effect.
EXHAUSTED = frozenset({"RESOURCE_EXHAUSTED", "DISK_FULL"})
UNAVAILABLE = frozenset(
    "NOT_LEADER UNAVAILABLE STATE_MISSING FENCED_FOR_ROLLBACK MISSED_ADMIN STALE_TERM BASE_MISMATCH".split()
)


@dataclass(frozen=True, order=True)
class Stamp:
    """A version, and the epoch in which it was made. Each rollback begins an epoch."""

    epoch: int
    version: int

    def __str__(self) -> str:
        return f"{self.epoch}.{self.version}"


@dataclass(frozen=True)
class Checkpoint:
    """A size of the root log in entries, and the hash of its tree in hex."""

    size: int
    root: str


@dataclass(frozen=True)
class Record:
    """A key with its value, and the version of its last change."""

    key: bytes
    value: bytes
    last_changed: Stamp


@dataclass(frozen=True)
class Committed:
    """The version that has a batch. `replayed` tells that the batch was sent before; it is None
    where a receipt does not say."""

    version: Stamp
    replayed: bool | None = None


@dataclass(frozen=True)
class Change:
    """A change of a key. `value` is None for a deletion."""

    version: Stamp
    value: bytes | None


@dataclass(frozen=True)
class History:
    """Changes of a key, newest first. `truncated` tells that older ones are not shown."""

    changes: tuple[Change, ...]
    truncated: bool


@dataclass(frozen=True)
class Difference:
    """A key whose record differs between two versions. A side is None where it has none."""

    key: bytes
    before: Record | None
    after: Record | None


@dataclass(frozen=True)
class Entry:
    """An entry of the root log. `fields` has all of it, as `coppice log --json` prints it."""

    sequence: int
    kind: str
    version: Stamp
    timestamp_ms: int
    fields: dict[str, Any] = field(repr=False)


@dataclass(frozen=True)
class Unverified(Generic[T]):
    """The word of a coordinator, which nobody has checked."""

    value: T


@dataclass(frozen=True)
class Verified(Generic[T]):
    """An answer that is proven at `version`, under a checkpoint that the ledger has signed.

    `proof` is the file that proves it, for others: `coppice verify` takes it.
    """

    value: T
    version: Stamp
    checkpoint: Checkpoint
    proof: bytes = field(repr=False)


class Error(Exception):
    """A call that failed. `outcome_unknown` tells that a write may have been written all the same,
    or may still be."""

    def __init__(self, message: str, *, outcome_unknown: bool = False) -> None:
        super().__init__(printable(message))
        self.outcome_unknown = outcome_unknown


class Refused(Error):
    """The ledger refused, or nobody answered in time.

    `reason` is a name of docs/http.md, or empty if no coordinator gave one. `status` is the code of
    HTTP, or 0 without an answer.
    """

    def __init__(self, message: str, reason: str = "", status: int = 0, *, outcome_unknown: bool = False) -> None:
        super().__init__(f"{message} ({reason})" if reason else message, outcome_unknown=outcome_unknown)
        self.reason = reason
        self.status = status


class Untrusted(Error):
    """An answer that is not proven, or whose proof is of something else. `step` is the step of
    docs/verification.md that failed, if one did; and `proof` is the file."""

    def __init__(self, message: str, *, step: str = "", proof: bytes = b"", outcome_unknown: bool = False) -> None:
        super().__init__(message, outcome_unknown=outcome_unknown)
        self.step = step
        self.proof = proof


class Forked(Untrusted):
    """The ledger has shown two logs. Keep `known` and `proof`: both are signed evidence."""

    def __init__(self, message: str, known: bytes, proof: bytes) -> None:
        super().__init__(f"the log was forked, keep both proofs: {message}", proof=proof)
        self.known = known


def printable(text: str) -> str:
    """The beginning of a text without characters that a terminal would obey."""
    return "".join(c if c.isprintable() else "\ufffd" for c in text[:2048])


def as_bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else bytes(text)


def as_key(key: str | bytes) -> bytes:
    key = as_bytes(key)
    if not key:
        raise ValueError("a key must have at least one byte")
    return key


def in_url(data: bytes) -> str:
    """Bytes for a path or a query. A dot is encoded, too, because `..` is a step up in a path."""
    return urllib.parse.quote(data, safe="").replace(".", "%2E")


def after_prefix(prefix: bytes) -> bytes | None:
    """The lowest key above all keys with this prefix; None if there is none."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else None
