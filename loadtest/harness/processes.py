"""Processes that are started, killed, paused and watched."""

import ctypes
import os
import pathlib
import signal
import subprocess
import time

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def _die_with_parent():
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Process:
    """A program with its command line, which may be started many times. All its output goes to one
    log."""

    def __init__(self, name, command, log, environment=None):
        self.name = name
        self.command = [str(part) for part in command]
        self.log = pathlib.Path(log)
        self.environment = {**os.environ, **(environment or {})}
        self.child = None
        self.starts = 0

    def start(self):
        assert not self.running(), f"{self.name} runs"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with open(self.log, "ab") as log:
            log.write(f"--- start {self.starts + 1}\n".encode())
            log.flush()
            self.child = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                          env=self.environment, start_new_session=True, preexec_fn=_die_with_parent)
        self.starts += 1

    def running(self):
        return self.child is not None and self.child.poll() is None

    def ended_by_itself(self):
        """The exit code of a process that ended although it should run, once; otherwise None."""
        if self.child is None or self.child.poll() is None:
            return None
        code, self.child = self.child.returncode, None
        return code

    def signal(self, number):
        if self.running():
            self.child.send_signal(number)

    def kill(self):
        """Kills it at once. This is like a power failure, except that unsynced writes are not
        lost."""
        if self.child is not None:
            if self.child.poll() is None:
                self.child.kill()
            self.child.wait()
            self.child = None

    def stop(self, limit=30):
        """Asks it to end; returns its exit code, or None if it had to be killed."""
        if self.child is None:
            return 0
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        try:
            code = self.child.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            self.kill()
            return None
        self.child = None
        return code

    def freeze(self):
        self.signal(signal.SIGSTOP)

    def thaw(self):
        self.signal(signal.SIGCONT)

    def tail(self, lines=15):
        """The end of its log."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def usage(self):
        """CPU seconds and written bytes from /proc; zeros if it does not run."""
        if not self.running():
            return 0.0, 0
        pid = self.child.pid
        io = dict(line.split(": ") for line in pathlib.Path(f"/proc/{pid}/io").read_text().splitlines())
        return cpu_seconds(pid), int(io["write_bytes"])


def cpu_seconds(pid):
    """The CPU time that a running process has used, of users and of the kernel together."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def device_bytes_written(path):
    """Bytes that all programs have written to the device of a path since the machine's start; None
    if unknown.

    /proc/PID/io counts a whole folio of the page cache, up to a MiB, for every write into it,
    however few bytes reach the disk.
    """
    device = os.stat(path).st_dev
    stat = pathlib.Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat")
    return int(stat.read_text().split()[6]) * 512 if stat.exists() else None


def wait_until(condition, limit, what):
    """Waits until `condition()` returns something true, and returns that."""
    end = time.monotonic() + limit
    while True:
        result = condition()
        if result:
            return result
        if time.monotonic() >= end:
            raise TimeoutError(f"{what}: not within {limit} s")
        time.sleep(0.05)
