"""The times in a recorded history: when commits were acknowledged, and how long there were none."""

import json


class Progress:
    """Follows a history while it is written."""

    def __init__(self, path, begin):
        # `begin` is the monotonic time at which the recorder's clock began.
        self.path, self.begin = path, begin
        self.commits = []
        self._offset, self._rest = 0, b""

    def poll(self):
        """Reads what was appended; returns the number of commits so far."""
        with open(self.path, "rb") as file:
            file.seek(self._offset)
            data = self._rest + file.read()
            self._offset = file.tell()
        *lines, self._rest = data.split(b"\n")
        for line in lines:
            operation = json.loads(line)
            if operation["kind"] == "write" and operation["outcome"] == "ok":
                self.commits.append(self.begin + operation["return"] / 1e9)
        return len(self.commits)

    def commit_after(self, moment):
        """Whether a commit was acknowledged after a monotonic time."""
        self.poll()
        return any(commit > moment for commit in reversed(self.commits[-200:]))


def longest_gap(commits, begin, end):
    """The longest time in seconds between consecutive commits, among the gaps that touch a span.

    If no commit follows the span, the last gap counts to the span's end.
    """
    inside = sorted(commits)
    before = [commit for commit in inside if commit <= begin]
    after = [commit for commit in inside if commit >= end]
    points = [before[-1] if before else begin]
    points += [commit for commit in inside if begin < commit < end]
    points.append(after[0] if after else end)
    return max(later - sooner for sooner, later in zip(points, points[1:]))
