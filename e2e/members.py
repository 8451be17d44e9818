"""Ledgers of members on Kubernetes: members append under faults, and an order takes content off
every disk."""

import concurrent.futures
import contextlib
import json
import os
import pathlib
import secrets
import threading
import time

from steps import LEDGER, NODES, ROOT, Steps, beds, expect, wait_for

GRAIN = "grain"
# The parties of the ledger, with the roles of their certificates. An audit of payloads needs both.
PARTIES = {"bank": "member,auditor", "court": "member", "mill": "member", "shop": "member"}
WRITERS = ("mill", "shop")
# Seconds between two appends of a member, which leave the machine to the cluster.
PAUSE_SECONDS = 0.15
# Seconds for which an append is repeated. Its outcome must be known in the end.
PATIENCE_SECONDS = 60
MARKER_BYTES, PIECE_BYTES = 64, 16
# Content that follows the marker. It fills a segment of the value log (1 MiB), so that the segment
# with the marker moves to the cold volume.
FILLERS, FILLER_BYTES = 4, 300_000


class Appends:
    """Members that append, each in a thread, until they are stopped. Steps use it like the process
    of a load, and like the progress of its history."""

    def __init__(self, append, members):
        # `append(member, payload)` returns the number of the journal.
        self.append = append
        self.acknowledged, self.failures, self.commits = [], [], []
        self.stopped = threading.Event()
        self.threads = [threading.Thread(target=self.go_on, args=[member], daemon=True) for member in members]

    def start(self):
        for thread in self.threads:
            thread.start()

    def go_on(self, member):
        count = 0
        while not self.stopped.wait(PAUSE_SECONDS):
            count += 1
            payload = f"{member} {count}"
            try:
                self.acknowledged.append((self.append(member, payload), payload))
            # Any failure counts: the thread must not end in silence.
            except Exception as error:
                self.failures.append(f"{payload}: {error}")
                return
            self.commits.append(time.monotonic())

    def stop(self, limit=PATIENCE_SECONDS):
        """Returns 0 if no append failed, and all came to an end."""
        self.stopped.set()
        for thread in self.threads:
            thread.join(limit)
        return int(bool(self.failures) or any(thread.is_alive() for thread in self.threads))

    def running(self):
        return not self.failures

    def tail(self):
        return "; ".join(self.failures)

    def poll(self):
        return len(self.commits)

    def commit_after(self, moment):
        return any(commit > moment for commit in self.commits)


class MemberSteps(Steps):
    """The steps with a ledger of members. They come last, on a cluster of their own."""

    def path(self, name):
        return self.directory / "members" / name

    def act(self, party, *words, code=0):
        """Runs the `coppice` command with the certificate of a party."""
        return self.coppice(*words, code=code, shown=(self.path(f"{party}.pem"), self.path(f"{party}.key")))

    def append(self, member, *words):
        """Appends journals; returns the number of the first."""
        done = self.act(member, "ledger", "append", GRAIN, "--key", self.path(f"{member}.sign"), "--patience", PATIENCE_SECONDS, "--json", *words)
        return json.loads(done)["first_jsn"]

    def append_with_receipt(self, member, payload):
        receipt = self.path("receipts") / f"{payload.replace(' ', '-')}.proof"
        return self.append(member, "--clue", "lot-7", "--data", payload, "--receipt", receipt)

    def certify(self):
        """Makes a certificate of the ledger's authority, and a key to sign with, for each party."""
        self.path("receipts").mkdir(parents=True)
        authority = self.secret(f"{LEDGER}-authority")
        for file, part in (("ca.pem", "tls.crt"), ("ca.key", "tls.key")):
            self.path(file).touch(mode=0o600)
            self.path(file).write_text(authority[part])
        for party, role in PARTIES.items():
            beds.run(ROOT / "scripts" / "certificates.sh", self.path(""), party, role)
            beds.run(self.options.binaries / "coppice", "keygen", "--name", party, "--out", self.path(f"{party}.sign"))

    def node_volumes(self, *kinds):
        """The names of the nodes' volumes of these kinds."""
        return {self.volume(f"{kind}-{LEDGER}-node-{ordinal}") for kind in kinds for ordinal in range(NODES)}

    def holders(self, names):
        """The volumes, among these, with a file that has a piece of the marker."""
        pieces = [self.marker[at:at + PIECE_BYTES] for at in range(0, MARKER_BYTES, PIECE_BYTES)]
        found = set()
        for name in names:
            for folder, _, files in os.walk(self.bed.directory / "volumes" / name):
                for file in files:
                    # Processes may remove a file after it was listed.
                    with contextlib.suppress(FileNotFoundError):
                        content = pathlib.Path(folder, file).read_bytes()
                        if any(piece in content for piece in pieces):
                            found.add(name)
        return found

    # The steps.

    def found(self):
        """a new installation keeps ledgers of members: its authority certifies the parties, and one
        of them founds a ledger."""
        wait_for("nothing is left of the other one", lambda: not self.pods() and not self.secret(f"{LEDGER}-authority"))
        self.install_ledger("--set", "ledgers=true")
        self.become_ready()
        self.certify()
        members = [word for member in WRITERS for word in ("--member", self.path(f"{member}.vkey"))]
        self.act("bank", "ledger", "create", GRAIN, "--owner", self.path("bank.sign"), "--regulator", self.path("court.vkey"),
                 "--notice", "0s", "--retain", 10, *members)

    def mark(self):
        """a member appends content with a marker, which reaches both volumes of every node."""
        self.marker = secrets.token_bytes(MARKER_BYTES)
        self.path("short").write_bytes(self.marker)
        self.path("long").write_bytes(secrets.token_bytes(100_000) + self.marker + secrets.token_bytes(100_000))
        self.path("filler").write_bytes(secrets.token_bytes(FILLER_BYTES))
        first = self.append("mill", "--data", f"@{self.path('short')}", "--data", f"@{self.path('long')}", "--receipt", self.path("marked.receipt"))
        self.marked = [first, first + 1]
        self.unmarked = self.append("mill", *["--data", f"@{self.path('filler')}"] * FILLERS)
        for jsn in self.marked:
            self.act("mill", "ledger", "get", GRAIN, jsn, "--out", self.path("got"), "--proof", self.path(f"marked-{jsn}.proof"))
            expect(self.marker in self.path("got").read_bytes(), f"journal {jsn} has no marker")
        volumes = self.node_volumes("data", "cold")
        wait_for("the marker is on all volumes of nodes", lambda: self.holders(volumes) == volumes, 60)
        return f"{len(volumes)} volumes"

    def start_appends(self):
        """two members begin to append signed journals, each with its receipt."""
        self.load = self.progress = Appends(self.append_with_receipt, WRITERS)
        self.load.start()
        self.await_commits()

    def judge_appends(self):
        """no append failed, none that was acknowledged is lost, no journal's number is left out,
        and every receipt holds."""
        expect(self.load.stop() == 0, f"appends failed: {self.load.tail()}")
        acknowledged = self.acknowledged = dict(self.load.acknowledged)
        expect(len(acknowledged) == len(self.load.acknowledged), "two appends have the same number")
        first = self.unmarked + FILLERS
        listed = self.act("bank", "ledger", "journals", GRAIN, "--from", first, "--payloads", "--json")
        journals = [json.loads(line) for line in listed.splitlines()]
        numbers = [journal["jsn"] for journal in journals]
        expect(numbers == list(range(first, first + len(numbers))), f"the journals' numbers are {numbers}")
        there = {journal["jsn"]: journal["payload"] for journal in journals}
        expect(there == acknowledged, f"acknowledged and there differ in {sorted(set(there.items()) ^ set(acknowledged.items()))}")
        receipts = sorted(self.path("receipts").iterdir())
        expect(len(receipts) == len(acknowledged), f"{len(acknowledged)} appends have {len(receipts)} receipts")
        with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
            list(pool.map(self.verify, receipts))
        self.load = self.progress = None
        return f"{len(acknowledged)} journals"

    def occult(self):
        """an order of owner and regulator takes the marker off every disk; what was proven before
        still is, and the audits pass."""
        order, owner = self.path("order.json"), ("--key", self.path("bank.sign"))
        named = [word for jsn in self.marked for word in ("--jsn", jsn)]
        self.act("bank", "ledger", "occult", "prepare", GRAIN, *named, "--out", order)
        self.act("bank", "order", "submit", order, *owner, code=3)
        cold = self.node_volumes("cold")
        expect(self.holders(cold) == cold, "the marker is gone before the order")
        self.act("court", "order", "sign", order, "--key", self.path("court.sign"))
        done = json.loads(self.act("bank", "order", "submit", order, *owner, "--wait", "--json"))
        every = {path.name for path in (self.bed.directory / "volumes").iterdir()}
        left = self.holders(every)
        expect(not left, f"the marker is on {sorted(left)}")
        expect(done["erased"] and done["occulted"] == self.marked and len(done["replicas"]) == NODES, f"{done}")
        for jsn in self.marked:
            self.act("mill", "ledger", "get", GRAIN, jsn, code=1)
            self.verify(self.path(f"marked-{jsn}.proof"))
        self.verify(self.path("marked.receipt"))
        audited = json.loads(self.act("bank", "ledger", "audit", GRAIN, "--values", "--json"))
        expect(audited["sound"] and audited["occulted"] == len(self.marked), f"{audited}")
        self.act("bank", "audit")
        return f"{len(every)} volumes; {audited['journals']} journals, {audited['payloads']} payloads"

    def purge(self):
        """all whose journals go sign a purge: its journals are gone in all versions, those that a
        member keeps are there, what was proven before still is, and the audits pass."""
        order, owner = self.path("purge.json"), ("--key", self.path("bank.sign"))
        before = self.unmarked + FILLERS + 4
        kept = next(jsn for jsn, payload in sorted(self.acknowledged.items()) if payload.startswith("shop"))
        self.act("bank", "ledger", "purge", "prepare", GRAIN, "--before", before, "--out", order)
        self.act("bank", "order", "submit", order, *owner, code=3)
        for writer in WRITERS:
            self.act(writer, "order", "sign", order, "--key", self.path(f"{writer}.sign"))
        self.act("bank", "order", "submit", order, *owner)
        self.act("shop", "ledger", "purge", "retain", GRAIN, "--jsn", kept, "--key", self.path("shop.sign"))
        pod = f"{LEDGER}-node-1"
        self.kubectl("delete", "pod", pod, "--wait=false")
        swept = json.loads(self.act("bank", "ledger", "purge", "sweep", GRAIN, *owner, "--json"))
        status = json.loads(self.act("mill", "ledger", "purge", "status", GRAIN, "--json"))
        expect((swept["before"], status["purged"], status["state"]) == (before, before, "swept"), f"{swept}, {status}")
        gone = [jsn for jsn in self.acknowledged if jsn < before and jsn != kept]
        expect(gone, "the purge takes none of the members' appends")
        for jsn in (self.unmarked, gone[0]):
            self.act("mill", "ledger", "get", GRAIN, jsn, code=1)
        self.act("shop", "ledger", "get", GRAIN, kept, "--out", self.path("got"))
        expect(self.path("got").read_text() == self.acknowledged[kept], "what a member keeps has changed")
        for proof in (self.path("marked.receipt"), *sorted(self.path("receipts").iterdir())[:4]):
            self.verify(proof)
        audited = json.loads(self.act("bank", "ledger", "audit", GRAIN, "--values", "--json"))
        expect(audited["sound"], f"{audited}")
        self.act("bank", "audit")
        self.await_ready()
        return f"{len(gone)} members' journals of {before}"
