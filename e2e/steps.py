"""Steps that are carried out in order on an API server, and what the tests of `make e2e` have in
common."""

import json
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
for folder in ("loadtest", "loadtest/k6", "scripts", "e2e/bed"):
    sys.path.insert(0, str(ROOT / folder))

import bed as beds  # noqa: E402
from harness.history import longest_gap  # noqa: E402

NAMESPACE, LEDGER = "bank", "ledger"
NODES = 3
SYSTEM, OPERATOR = "coppice-system", "coppice-operator"
IMAGE, K6_IMAGE = "coppice.local/coppice", "coppice.local/k6:1"
# Longest time from a fault's end until every replica votes and every pod is ready. About 30 s were
# measured; every limit here is at least 4 times the measured time, since a machine may
# be busy with other work.
HEAL_SECONDS = 240


class Failure(Exception):
    """A condition that did not become true."""


def wait_for(what, condition, limit=HEAL_SECONDS):
    """Waits until `condition()` returns something true, and returns that. A failed query is
    repeated."""
    end = time.monotonic() + limit
    while True:
        problem = None
        try:
            if result := condition():
                return result
        except (beds.Failure, subprocess.TimeoutExpired) as error:
            problem = error
        if time.monotonic() > end:
            raise Failure(f"{what}: not within {limit} s" + (f": {problem}" if problem else ""))
        time.sleep(0.4)


def expect(holds, what):
    if not holds:
        raise Failure(what)


class Steps:
    """Steps that are carried out in order, and their results."""

    TITLE = None

    def __init__(self, options, bed):
        self.options, self.bed = options, bed
        self.directory = pathlib.Path(options.directory).resolve()
        self.began = time.monotonic()
        self.steps = []
        self.progress = None

    def say(self, text):
        print(f"[{time.monotonic() - self.began:6.1f}] {text}", flush=True)

    def carry_out(self, *steps):
        """Carries out steps; ends at the first that fails."""
        for step in steps:
            name = " ".join(step.__doc__.split()).rstrip(".")
            began = time.monotonic()
            entry = {"step": name}
            self.steps.append(entry)
            try:
                entry["facts"] = step() or ""
                entry["ok"] = True
            # Any exception is recorded: the report of a failure must still be written.
            except Exception as error:
                entry["facts"], entry["ok"] = f"{type(error).__name__}: {error}", False
            ended = time.monotonic()
            entry["seconds"] = round(ended - began, 1)
            if self.progress:
                self.progress.poll()
                entry["longest_without_commits"] = round(longest_gap(self.progress.commits, began, ended), 1)
            self.say(f"{'ok  ' if entry['ok'] else 'FAIL'} {name} ({entry['seconds']} s) {entry['facts']}")
            if not entry["ok"]:
                try:
                    self.collect()
                # The report must still be written.
                except Exception as error:
                    self.say(f"logs could not be collected: {error}")
                return

    def kubectl(self, *words, **options):
        return self.bed.kubectl("-n", NAMESPACE, *words, **options)

    def get(self, *words):
        return json.loads(self.kubectl("get", *words, "-o", "json"))

    def helm(self, *words):
        return beds.run(*self.bed.command("helm", *words))

    def cluster(self):
        return self.get("ledgercluster", LEDGER)

    def conditions(self):
        return {condition["type"]: condition for condition in self.cluster().get("status", {}).get("conditions", [])}

    def make_namespace(self):
        self.bed.kubectl("create", "namespace", NAMESPACE)
        self.bed.kubectl("label", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce=restricted")

    def install_operator(self, *more):
        self.helm("install", OPERATOR, ROOT / "charts/coppice-operator", "--namespace", SYSTEM, "--create-namespace",
                  "--set-string", f"image.repository={IMAGE},image.tag=1", *more)

    def install_ledger(self, *more):
        values = f"image.repository={IMAGE},image.tag=1,spec.etcd.managed.image={beds.IMAGES['etcd']}"
        # The API server writes this size as 1Gi.
        self.helm("install", LEDGER, ROOT / "charts/coppice", "--namespace", NAMESPACE, "--set-string", values,
                  "--set", "nodes.coldStorage.size=1024Mi,nodes.coldStorage.hotValueBytes=0", *more)

    def refuse(self):
        """the API server refuses invalid specifications, with an explanation."""
        refused = [
            ({"shards": {"count": 3, "splits": ["a"]}}, "splits"),
            ({"nodes": {"count": 2}, "shards": {"replicas": 3}}, "shards.replicas must be at most nodes.count"),
            ({"nodes": {"storage": {"size": "much"}}}, "size must be a quantity such as 20Gi"),
            ({"etcd": {"managed": {}, "external": {"endpoints": ["http://a:1"]}}}, "etcd must be either managed or external"),
            ({"retention": {"versions": 1, "hours": 1}}, "retention must be by versions or by hours"),
        ]
        for spec, words in refused:
            self.is_refused({"kind": "LedgerCluster", "metadata": {"name": "other"}, "spec": spec}, words)
        for patch, words in (({"journals": True}, "journals can't change"), ({"nodes": {"storage": {"size": "1Gi"}}}, "a volume can't shrink")):
            done = subprocess.run(self.bed.command("kubectl", "-n", NAMESPACE, "patch", "ledgercluster", LEDGER, "--type=merge", "--patch",
                                                   json.dumps({"spec": patch})), capture_output=True, text=True, check=False)
            expect(done.returncode != 0 and words in done.stderr, f"{patch} is not refused with the words {words}: {done.stderr or done.stdout}")
        rollback = {"to": 1, "expectedHead": {"epoch": 0, "version": 2}, "reason": "e2e", "confirm": "yes"}
        self.is_refused({"kind": "LedgerOperation", "metadata": {"name": "other"}, "spec": {"cluster": LEDGER, "rollback": rollback}}, "confirm")
        return f"{len(refused) + 3} manifests"

    def take_samples(self):
        """the API server takes every sample of charts/examples."""
        self.bed.kubectl("create", "namespace", "samples")
        files = sorted((ROOT / "charts/examples").glob("*.yaml"))
        for file in files:
            self.bed.kubectl("-n", "samples", "apply", "--dry-run=server", "--validate=strict", "-f", file)
        expect(files, "there are no samples")
        self.bed.kubectl("delete", "namespace", "samples", "--wait=false")
        return f"{len(files)} files"

    def is_refused(self, manifest, words):
        manifest = json.dumps({"apiVersion": "coppice.dev/v1alpha1", **manifest})
        done = subprocess.run(self.bed.command("kubectl", "-n", NAMESPACE, "create", "-f", "-"), input=manifest, capture_output=True, text=True,
                              check=False)
        expect(done.returncode != 0 and words in done.stderr, f"{manifest} is not refused with the words {words}: {done.stderr or done.stdout}")

    def collect(self):
        """Collects what is needed to understand a failure."""

    def report(self):
        ok = bool(self.steps) and all(step["ok"] for step in self.steps)
        seconds = round(time.monotonic() - self.began)
        (self.directory / "report.json").write_text(json.dumps({"ok": ok, "seconds": seconds, "steps": self.steps}, indent=2) + "\n")
        lines = [f"# {self.TITLE}: {'all holds' if ok else 'FAILED'}", "", f"{seconds} s in all.", "",
                 "| step | holds | s | longest without commits, s | |", "| --- | --- | --- | --- | --- |"]
        for step in self.steps:
            facts = step["facts"].replace("\n", " ").replace("|", "/")[:400]
            lines.append(f"| {step['step']} | {'yes' if step['ok'] else '**NO**'} | {step['seconds']} | {step.get('longest_without_commits', '')} | {facts} |")
        (self.directory / "report.md").write_text("\n".join(lines) + "\n")
        print((self.directory / "report.md").read_text())
        return ok
