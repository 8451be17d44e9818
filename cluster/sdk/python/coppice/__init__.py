"""A client of a Coppice ledger over HTTP, which checks every proof.

    with coppice.Client("http://127.0.0.1:7401", trust=vkey) as ledger:
        ledger.put("alice", "100", if_absent=True)
        got = ledger.get("alice")
        print(got.value.value, got.version)

`docs/http.md` in the repository describes the API below it.
"""

from ._client import Batch, Client, Session, UnverifiedClient
from ._http import TLS
from ._types import (
    Change, Checkpoint, Committed, Difference, Entry, Error, Forked, History, Record, Refused, Stamp, Unverified,
    Untrusted, Verified,
)

__all__ = [
    "TLS", "Batch", "Change", "Checkpoint", "Client", "Committed", "Difference", "Entry", "Error", "Forked", "History",
    "Record", "Refused", "Session", "Stamp", "Unverified", "UnverifiedClient", "Untrusted", "Verified",
]
