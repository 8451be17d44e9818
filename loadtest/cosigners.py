#!/usr/bin/env python3
"""Measures how far cosigners are behind a ledger: three members with a witness and an auditor each.

`coppice dev` commits batches at a steady rate, and asks the members. The log's size and what each
member has cosigned are looked at all the time. An entry's delay is the time from the first look
that shows it in the ledger's log to the first one that shows it below a cosignature. At the end, a
new member replays the ledger from genesis. Build with `make release` and `cargo build --release
--locked -p coppice-client --example load`.
"""

import argparse
import json
import pathlib
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
    """A member's folder and process."""

    def __init__(self, binary, directory, name, ledger):
        self.binary, self.folder, self.address = binary, directory / name, free_address()
        command = [binary, "cosigner", "init", self.folder, "--json", "--ledger-key", f"@{ledger.vkey}"]
        command += ["--log", f"http://{ledger.log}", "--api", f"http://{ledger.api}"]
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
        self.binary, self.directory = binary, directory / "ledger"
        self.api, self.log, self.child = free_address(), free_address(), None
        self.directory.mkdir()
        subprocess.run([binary, "keygen", "--out", self.directory / "ledger.key"], check=True, stdout=subprocess.PIPE)
        self.vkey = self.directory / "ledger.vkey"

    def start(self, policy):
        command = [self.binary, "dev", "--data-dir", self.directory, "--replicas", "3", "--journals"]
        command += ["--listen", self.api, "--http-listen", self.log, "--witness-policy", policy]
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


def measure(options, directory, running):
    coppice, client = options.binaries / "coppice", options.binaries / "examples" / "load"
    ledger = Ledger(coppice, directory)
    running.append(ledger)
    members = [Member(coppice, directory, name, ledger) for name in MEMBERS]
    (directory / "policy").write_text(policy(members))
    ledger.start(directory / "policy")
    for member in members:
        running.append(member)
        member.start()
    until(lambda: all(member.status()["auditor"]["cosigned_entries"] for member in members), START_S, "a first cosignature")
    log = Watch(ledger.size)
    witnesses = [Watch(lambda member=member: member.status()["cosigned_entries"]) for member in members]
    auditors = [Watch(lambda member=member: member.status()["auditor"]["cosigned_entries"]) for member in members]
    watches = [log, *witnesses, *auditors]
    for watch in watches:
        watch.start()
    first = ledger.head()
    command = [client, f"http://{ledger.api}", 8, options.puts, 64, options.seconds, options.rate]
    print(subprocess.run([str(part) for part in command], check=True, stdout=subprocess.PIPE, text=True).stdout.strip())
    versions = ledger.head() - first
    time.sleep(10)
    for watch in watches:
        watch.over = True
    committed = log.reached()
    print(f"{versions / options.seconds:.0f} versions/s of {options.puts} puts, {options.seconds} s\n")
    print("| who | p50 s | p95 s | largest s |\n| --- | --- | --- | --- |")
    for what, group in (("witness", witnesses), ("auditor", auditors)):
        for member, watch in zip(members, group):
            delays = [moment - committed[size] for size, moment in watch.reached().items() if size in committed]
            shown = " | ".join(f"{value:.2f}" for value in (percentile(delays, 0.5), percentile(delays, 0.95), max(delays)))
            print(f"| {what} of {member.folder.name} | {shown} |")
    for member in members:
        print(f"\nmemory of {member.folder.name}: {resident_mib(member.child.pid):.0f} MiB", end="")
    late, head = Member(coppice, directory, "late", ledger), ledger.head()
    running.append(late)
    late.start()
    took = until(lambda: late.status()["auditor"]["version"] >= head, CATCH_UP_S, "the replay")
    print(f"\n\nfrom genesis: {head} versions in {took:.1f} s, {head / took:.0f} versions/s")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--rate", type=int, default=100, help="batches a second")
    parser.add_argument("--puts", type=int, default=20, help="of a batch")
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
