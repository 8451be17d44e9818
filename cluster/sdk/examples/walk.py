"""walk.py ENDPOINT LEDGER.VKEY"""

import sys

import coppice

endpoint, vkey = sys.argv[1], open(sys.argv[2]).read()
with coppice.Client(endpoint, trust=vkey) as ledger:
    # A commit. The client has checked the receipt: it is of exactly this batch.
    done = ledger.put("python/alice", "100")
    print("committed in version", done.version.version)

    # A read of the newest version. The client has checked the proof, which is `got.proof`.
    got = ledger.get("python/alice")
    assert got.value is not None
    print("python/alice is", got.value.value.decode(), "in version", got.version.version)

    # What the ledger does, as it comes: the word of a coordinator.
    for entry in ledger.watch(1):
        print("an entry is a", entry.value.kind)
        break
