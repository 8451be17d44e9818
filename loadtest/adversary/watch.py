"""The effects of an attack on others: whether their calls succeed, how long these take, and how
much memory the processes use."""

import pathlib
import subprocess
import threading
import time


class Memory:
    """The resident memory of processes, by name: the present value, and the peak since `begin`."""

    def __init__(self, pids):
        self.pids = pids

    def begin(self):
        for pid in self.pids.values():
            try:
                pathlib.Path(f"/proc/{pid}/clear_refs").write_text("5")
            except OSError:
                # Without the right to reset it, the peak is that since the process started: higher,
                # never lower.
                pass

    def peak(self):
        """MiB by name; a process that has ended is missing."""
        return {name: mib for name, pid in self.pids.items() if (mib := _status(pid, "VmHWM")) is not None}

    def descriptors(self):
        return {name: len(list(pathlib.Path(f"/proc/{pid}/fd").iterdir())) for name, pid in self.pids.items()
                if pathlib.Path(f"/proc/{pid}").exists()}


def _status(pid, name):
    try:
        lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith(name + ":")]
    return int(found[0]) / 1024 if found else None


class GoodClient:
    """An honest client that continues its work during the attack: a commit, a read and a look at
    head, each by its own command."""

    # A call that takes longer has been stopped by the attack.
    LIMIT_SECONDS = 20

    def __init__(self, coppice, environment):
        self.coppice, self.environment = str(coppice), environment
        self.count = 0

    def call(self, *arguments):
        """The duration of one command in seconds, or None if it failed."""
        began = time.monotonic()
        try:
            done = subprocess.run([self.coppice, *arguments], env=self.environment, capture_output=True, text=True,
                                  timeout=self.LIMIT_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            return None, f"{arguments[0]}: no answer within {self.LIMIT_SECONDS} s"
        taken = time.monotonic() - began
        return (taken, None) if done.returncode == 0 else (None, f"{arguments[0]}: {done.stderr.strip()[:200]}")

    def round(self):
        """One command of each kind: durations by name, and the names of those that failed."""
        self.count += 1
        calls = [("commit", "--put", f"good={self.count}"), ("get", "good"), ("head",)]
        times, failures = {}, []
        for arguments in calls:
            taken, failure = self.call(*arguments)
            if failure:
                failures.append(failure)
            else:
                times[arguments[0]] = taken
        return times, failures


class During:
    """Rounds of a good client while an attack runs in a thread."""

    def __init__(self, client, attack):
        self.client, self.times, self.failures, self.error = client, [], [], None
        self.thread = threading.Thread(target=self._attack, args=(attack,), daemon=True)

    def _attack(self, attack):
        try:
            attack()
        # An attack that can't go on is a fault of this suite, and reported as one.
        except Exception as error:
            self.error = error

    def run(self):
        self.thread.start()
        while True:
            times, failures = self.client.round()
            self.times.append(times)
            self.failures += failures
            if not self.thread.is_alive():
                return self
