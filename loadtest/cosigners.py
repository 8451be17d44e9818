#!/usr/bin/env python3
"""Measures how far cosigners are behind a ledger: three members with a witness and an auditor each.

`coppice dev` commits batches at a steady rate, and asks the members. The log's size and what each
member has cosigned are looked at all the time. An entry's delay is the time from the first look
that shows it in the ledger's log to the first one that shows it below a cosignature. Before and
after that, a ledger without members has the same load, so that the difference is theirs. A new
member then replays the ledger from genesis, and one without an auditor mirrors a long log, which
Tessera's own command makes. `make bench-cosigner` builds what this needs.
"""

import argparse
import functools
import http.server
import json
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
MEMBERS = ("acme", "bolt", "crane")
LOOK_S = 0.02
START_S = 60
CATCH_UP_S = 900
# Tessera's command refuses more entries at once.
ENTRIES_AT_ONCE = 4000
# A commit of one shard has about as many bytes.
ENTRY_BYTES = 200
ONESHOT = "github.com/transparency-dev/tessera/cmd/examples/posix-oneshot"


def fetch(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read()


def free_address():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{listener.getsockname()[1]}"


def resident_mib(pid):
    """Resident memory, without the mapped file of the binary."""
    text = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(text.split("RssAnon:")[1].split()[0]) / 1024


class Member:
    """A member's folder and process. Without an API of the ledger, it has no auditor."""

    def __init__(self, binary, directory, name, vkey, log, api=None):
        self.binary, self.folder, self.address = binary, directory / name, free_address()
        command = [binary, "cosigner", "init", self.folder, "--json", "--ledger-key", f"@{vkey}"]
        command += ["--log", f"http://{log}"] + (["--api", f"http://{api}"] if api else [])
        command += ["--name", f"{name}.example/ledger", "--listen", self.address]
        self.made = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        self.child = None

    def start(self):
        command = [self.binary, "cosigner", "run", self.folder]
        self.child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        if not self.child.stdout.readline().startswith("ready"):
            raise RuntimeError(f"{self.folder.name} does not serve")

    def status(self):
        return json.loads(fetch(f"http://{self.address}/status"))

    def stop(self):
        if self.child:
            self.child.terminate()
            self.child.wait(60)


class Ledger:
    """A development cluster that keeps journals."""

    def __init__(self, binary, directory):
        self.binary, self.directory = binary, directory
        self.api, self.log, self.child = free_address(), free_address(), None
        self.directory.mkdir()
        subprocess.run([binary, "keygen", "--out", self.directory / "ledger.key"], check=True, stdout=subprocess.PIPE)
        self.vkey = self.directory / "ledger.vkey"

    def start(self, policy=None):
        command = [self.binary, "dev", "--data-dir", self.directory, "--replicas", "3", "--journals"]
        command += ["--listen", self.api, "--http-listen", self.log]
        command += ["--witness-policy", policy] if policy else []
        self.child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        for line in self.child.stdout:
            if line.startswith("ready"):
                threading.Thread(target=self.child.stdout.read, daemon=True).start()
                return
        raise RuntimeError("the ledger does not serve")

    def size(self):
        """Entries of the log: genesis and one for each version, since nothing else happens here."""
        return json.loads(fetch(f"http://{self.api}/v1/head"))["version"] + 1

    def head(self):
        command = [self.binary, "--endpoint", f"http://{self.api}", "head", "--json"]
        return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)["version"]

    def stop(self):
        if self.child:
            self.child.terminate()
            self.child.wait(60)


class Watch(threading.Thread):
    """Looks at a number again and again, and notes when it grew."""

    def __init__(self, read):
        super().__init__(daemon=True)
        self.read, self.seen, self.over = read, [], False

    def run(self):
        while not self.over:
            size = self.read()
            if not self.seen or size > self.seen[-1][1]:
                self.seen.append((time.monotonic(), size))
            time.sleep(LOOK_S)

    def reached(self):
        """The time at which each size was reached first."""
        times, before = {}, 0
        for moment, size in self.seen:
            times.update(dict.fromkeys(range(before + 1, size + 1), moment))
            before = size
        return times


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))]


def policy(members):
    lines = [part["policy_line"] for member in members for part in (member.made, member.made["auditor"])]
    names = [member.made["name"] for member in members]
    auditors = [member.made["auditor"]["name"] for member in members]
    lines += [f"group members 2 {' '.join(names)}", f"group auditors 2 {' '.join(auditors)}"]
    return "\n".join([*lines, "group both all members auditors", "quorum both", ""])


def until(condition, limit_s, what):
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > limit_s:
            raise RuntimeError(f"{what}: not within {limit_s} s")
        time.sleep(0.05)
    return time.monotonic() - began


def load(options, ledger):
    """Commits at the rate, and returns the median and the 99th percentile of latencies in ms."""
    client = options.binaries / "examples" / "load"
    command = [client, f"http://{ledger.api}", 8, options.puts, 64, options.seconds, options.rate]
    said = subprocess.run([str(part) for part in command], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    print(said, flush=True)
    return [float(number) for number in re.search(r"p50 ([\d.]+) ms, p99 ([\d.]+) ms", said).groups()]


def without_members(options, directory, running):
    ledger = Ledger(options.binaries / "coppice", directory)
    running.append(ledger)
    ledger.start()
    latencies = load(options, ledger)
    ledger.stop()
    return latencies


def with_members(options, directory, running):
    coppice = options.binaries / "coppice"
    ledger = Ledger(coppice, directory / "ledger")
    running.append(ledger)

    def member(name):
        return Member(coppice, directory, name, ledger.vkey, ledger.log, ledger.api)

    members = [member(name) for name in MEMBERS]
    (directory / "policy").write_text(policy(members))
    ledger.start(directory / "policy")
    for one in members:
        running.append(one)
        one.start()
    until(lambda: all(one.status()["auditor"]["cosigned_entries"] for one in members), START_S, "a first cosignature")
    log = Watch(ledger.size)
    witnesses = [Watch(lambda one=one: one.status()["cosigned_entries"]) for one in members]
    auditors = [Watch(lambda one=one: one.status()["auditor"]["cosigned_entries"]) for one in members]
    watches = [log, *witnesses, *auditors]
    for watch in watches:
        watch.start()
    first = ledger.head()
    latencies = load(options, ledger)
    versions = ledger.head() - first
    time.sleep(10)
    for watch in watches:
        watch.over = True
    print(f"{versions / options.seconds:.0f} versions/s of {options.puts} puts, {options.seconds} s\n")
    show_delays(members, log.reached(), (("witness", witnesses), ("auditor", auditors)))
    late, head = member("late"), ledger.head()
    running.append(late)
    late.start()
    took = until(lambda: late.status()["auditor"]["version"] >= head, CATCH_UP_S, "the replay")
    print(f"\nfrom genesis: {head} versions in {took:.1f} s, {head / took:.0f} versions/s", flush=True)
    for process in (late, *members, ledger):
        process.stop()
    return latencies


def show_delays(members, committed, groups):
    print("| who | p50 s | p95 s | largest s |\n| --- | --- | --- | --- |")
    for what, group in groups:
        for member, watch in zip(members, group):
            delays = [moment - committed[size] for size, moment in watch.reached().items() if size in committed]
            shown = (percentile(delays, 0.5), percentile(delays, 0.95), max(delays))
            print(f"| {what} of {member.folder.name} | " + " | ".join(f"{value:.2f}" for value in shown) + " |")
    for member in members:
        print(f"\nmemory of {member.folder.name}, with an auditor: {resident_mib(member.child.pid):.0f} MiB", end="")
    print()


class Files(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def long_log(options, directory, running):
    """A member without an auditor mirrors a log of so many entries."""
    coppice, tiles, entries = options.binaries / "coppice", directory / "tiles", directory / "entries"
    key = directory / "log.key"
    command = [coppice, "keygen", "--name", "tessera.example/log", "--out", key]
    subprocess.run(command, check=True, stdout=subprocess.PIPE)
    command = [ROOT / "scripts" / "go-tool.sh", "oneshot", ROOT / "cluster" / "verify" / "interop" / "fsck", ONESHOT]
    oneshot = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    entries.mkdir()
    for first in range(0, options.entries, ENTRIES_AT_ONCE):
        count = min(ENTRIES_AT_ONCE, options.entries - first)
        for at in range(count):
            (entries / f"{at:04}").write_bytes(f"{first + at:020}".encode() * (ENTRY_BYTES // 20))
        for left in range(count, ENTRIES_AT_ONCE):
            (entries / f"{left:04}").unlink(missing_ok=True)
        command = [oneshot, f"--storage_dir={tiles}", f"--entries={entries}/*", f"--private_key={key}"]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Files, directory=tiles))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    member = Member(coppice, directory, "mirror", key.with_suffix(".vkey"), f"127.0.0.1:{server.server_port}")
    running.append(member)
    member.start()
    took = until(lambda: member.status()["log_entries"] >= options.entries, CATCH_UP_S, "the mirror")
    print(f"\nmemory of a witness after {options.entries} entries, mirrored in {took:.0f} s: ", end="")
    print(f"{resident_mib(member.child.pid):.0f} MiB")


def measure(options, directory, running):
    before = without_members(options, directory / "before", running)
    among = with_members(options, directory, running)
    after = without_members(options, directory / "after", running)
    print("\n| commits | without members, before | with members | without members, after |\n| --- | --- | --- | --- |")
    for name, row in zip(("p50 ms", "p99 ms"), zip(before, among, after)):
        print(f"| {name} | " + " | ".join(f"{number:.2f}" for number in row) + " |")
    if options.entries:
        long_log(options, directory, running)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--rate", type=int, default=100, help="batches a second")
    parser.add_argument("--puts", type=int, default=20, help="of a batch")
    parser.add_argument("--entries", type=int, default=1_000_000, help="of the long log; 0 leaves it out")
    parser.add_argument("--binaries", type=pathlib.Path, default=ROOT / "target" / "release")
    options = parser.parse_args()
    directory = pathlib.Path(tempfile.mkdtemp(prefix="cosigners-", dir=options.binaries))
    running = []
    try:
        measure(options, directory, running)
    finally:
        for process in reversed(running):
            process.stop()
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
