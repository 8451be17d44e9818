#!/usr/bin/env python3
"""`make dashboard`: runs the chart's dashboard and alerts on a real Prometheus that scrapes a real
cluster.

Three nodes, a reader with emulated memory modules, two coordinators, three etcd and Prometheus run
as processes; clients write and read. One node is killed, then a second one, then both come back.
Every alert must be evaluated without an error, use metrics that exist, and fire or not as the
faults demand. Every query of the dashboard must have data. In the end the panels are drawn as SVG
from Prometheus' answers, without Grafana.
The exit code is 0 if all of this holds.
"""

import argparse
import json
import pathlib
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

from harness.cluster import HEALTH_PORT, ROOT, Cluster, Etcd, Failure, build_go, well
from harness.network import Loopback
from harness.panels import draw, has_data, legend, queries
from harness.processes import Process, wait_until

NODES = ("node-1", "node-2", "node-3")
READER = "reader-1"
COORDINATORS = ("coordinator-1", "coordinator-2")
ETCDS = ("etcd-1", "etcd-2", "etcd-3")
JOB = "ledger"
PROMETHEUS_PORT = 9090
CHART = ROOT / "charts" / "coppice" / "files"
# The shipped alerts wait for minutes; here they wait for seconds.
WAIT_SECONDS = 3
RATE_INTERVAL = "10s"
# Seconds of load before the first fault and after the last one.
CALM_SECONDS = 30
# Seconds that a fault goes on after its alert.
FAULT_SECONDS = 8
# Seconds until an alert fires, or stops, on a busy machine.
LIMIT_SECONDS = 90
POINTS = 120
# The witness of this run never answers. Neither does its authority, but an anchor is overdue for
# minutes before that is an alert.
ALWAYS = {"CoppiceNotCosigned"}
# The speed of commits depends on the machine.
PERHAPS = {"CoppiceSlowCommits"}
# Few queries come in this run: its modules take them all.
PIM = {"library": "emulator", "dpus": 2, "records_min": 16, "batch_queries": 1, "small_batches": "dpus", "answer_wait_ms": 1000}
WITNESS = "witness.example+82bca4dd+BNdamAGCsQq31Uv+08lkBzoO4XLz2qYjJa8CGmj3B1Ea"


class Prometheus:
    """A real Prometheus, at its own address in the network."""

    def __init__(self, network, directory, targets):
        self.address = f"{network.address('prometheus')}:{PROMETHEUS_PORT}"
        directory.mkdir()
        rules = (CHART / "alerts.yaml").read_text()
        (directory / "alerts.yaml").write_text(re.sub(r"for: \d+m$", f"for: {WAIT_SECONDS}s", rules, flags=re.MULTILINE))
        settings = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": ["alerts.yaml"],
            "scrape_configs": [{"job_name": JOB, "static_configs": [
                {"targets": [target], "labels": {"instance": place}} for place, target in targets.items()]}],
        }
        # JSON is valid YAML.
        (directory / "prometheus.yaml").write_text(json.dumps(settings, indent=2))
        program = build_go("prometheus", "scripts/prometheus", "github.com/prometheus/prometheus/cmd/prometheus", "remove_all_sd")
        command = [program, f"--config.file={directory / 'prometheus.yaml'}", f"--storage.tsdb.path={directory / 'data'}",
                   f"--web.listen-address={self.address}", "--log.level=warn"]
        self.process = Process("prometheus", command, directory / "prometheus.log")

    def start(self):
        self.process.start()
        wait_until(self.is_ready, LIMIT_SECONDS, "an answer of Prometheus")

    def is_ready(self):
        if self.process.ended_by_itself() is not None:
            raise Failure(f"Prometheus ended at its start:\n{self.process.tail()}")
        try:
            with urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    def ask(self, what, **parameters):
        """The answer of Prometheus' API; an error ends the run."""
        url = f"http://{self.address}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise Failure(f"Prometheus refuses {parameters or what}: {error.read().decode(errors='replace')}") from error

    def firing(self):
        """Names of the firing alerts, without those that may fire at any time."""
        alerts = self.ask("alerts")["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"} - PERHAPS


class Run:
    """One run, from an empty directory to its picture."""

    def __init__(self, options):
        self.directory = pathlib.Path(options.directory).resolve()
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True)
        self.began = time.time()
        self.marks = []
        network = Loopback([*NODES, READER, *COORDINATORS, *ETCDS, "prometheus"])
        members = Etcd(network, ETCDS, self.directory / "etcd", build_go("etcd", "scripts/etcd"))
        self.cluster = Cluster(network, self.directory / "cluster", options.binaries.resolve(), nodes=[*NODES, READER], readers=[READER],
                               coordinators=COORDINATORS, etcd=members, ledger={"splits": ["m"]})
        self.name_more()
        targets = {place: f"{network.address(place)}:{HEALTH_PORT}" for place in (*NODES, READER, *COORDINATORS)}
        self.prometheus = Prometheus(network, self.directory / "prometheus", targets)
        command = [self.cluster.binaries / "coppice-bench", "history", "--endpoints", ",".join(self.cluster.endpoints()),
                   "--key", self.cluster.vkey, "--out", self.directory / "history", "--clients", 6]
        self.load = Process("load", command, self.directory / "load.log")

    def name_more(self):
        """Adds a witness, an authority that stamps time, and memory modules to the settings."""
        root = self.directory / "authority.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1",
                        "-subj", "/CN=nobody", "-keyout", root.with_suffix(".key"), "-out", root], check=True, capture_output=True)
        nowhere = "http://127.0.0.1:1"
        named = f'\n[[witnesses]]\nurl = "{nowhere}"\nvkey = "{WITNESS}"\n\n[[anchor.tsa]]\nurl = "{nowhere}"\nroot = "{root}"\n'
        modules = "\n[pim]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in PIM.items())
        for place, more in [*((place, named) for place in COORDINATORS), (READER, modules)]:
            with open(self.cluster.directory / f"{place}.toml", "a", encoding="utf-8") as settings:
                settings.write(more)

    def say(self, text):
        print(f"[{time.time() - self.began:6.1f}] {text}", flush=True)

    def mark(self, text):
        self.marks.append((time.time(), text))
        self.say(text)

    def start(self):
        self.cluster.start(NODES[0])
        self.cluster.form_no_more()
        wait_until(lambda: well(self.cluster.status(NODES[0]), len(NODES), readers=1), LIMIT_SECONDS, "all replicas")
        self.prometheus.start()
        self.load.start()
        self.say("a cluster, its clients and Prometheus run")

    def expect(self, alerts, what):
        """Waits until these alerts fire, and no others."""
        wanted = set(alerts) | ALWAYS
        try:
            wait_until(lambda: self.prometheus.firing() == wanted, LIMIT_SECONDS, what)
        except TimeoutError as error:
            raise Failure(f"{what}: {sorted(self.prometheus.firing())} fire, not {sorted(wanted)}") from error
        self.say(f"{what}; alerts: {', '.join(sorted(wanted))}")

    def suffer(self):
        time.sleep(CALM_SECONDS)
        self.expect([], "all is well")
        processes = self.cluster.processes
        self.mark("node-1 is killed")
        processes["node-1"].kill()
        self.expect(["CoppiceReplicaMissing"], "one of three nodes is gone")
        time.sleep(FAULT_SECONDS)
        self.mark("node-2 is killed")
        processes["node-2"].kill()
        self.expect(["CoppiceReplicaMissing", "CoppiceGroupWithoutLeader", "CoppiceNoCoordinatorReady"], "two of three nodes are gone")
        time.sleep(FAULT_SECONDS)
        self.mark("both come back")
        processes["node-1"].start()
        processes["node-2"].start()
        self.expect([], "all is well again")
        time.sleep(CALM_SECONDS)
        for name, process in {**self.cluster.all(), "load": self.load, "prometheus": self.prometheus.process}.items():
            if not process.running():
                raise Failure(f"{name} ended by itself:\n{process.tail()}")

    def judge_alerts(self):
        """Checks that every rule is evaluated without an error, and that each of its metrics
        exists."""
        wrong = []
        rules = [rule for group in self.prometheus.ask("rules", type="alert")["groups"] for rule in group["rules"]]
        names = set(re.findall(r"- alert: (\w+)", (CHART / "alerts.yaml").read_text()))
        if {rule["name"] for rule in rules} != names:
            wrong.append(f"Prometheus knows {sorted(rule['name'] for rule in rules)} of the alerts {sorted(names)}")
        for rule in rules:
            if rule["health"] != "ok" or rule.get("lastError"):
                wrong.append(f"{rule['name']}: {rule['health']}: {rule.get('lastError')}")
            for metric in sorted(set(re.findall(r"\bcoppice_\w+", rule["query"]))):
                if not self.prometheus.ask("query", query=f"count({metric})")["result"]:
                    wrong.append(f"{rule['name']}: there is no {metric}")
        self.say(f"{len(rules)} alerts were evaluated")
        return wrong

    def judge_panels(self, dashboard):
        """Returns what each panel shows, and what is wrong with it."""
        wrong, answers, asked = [], {}, 0
        if JOB not in self.prometheus.ask("label/job/values", **{"match[]": "coppice_raft_term"}):
            wrong.append("the dashboard's list of ledgers lacks this one")
        self.span = (self.marks[0][0] - CALM_SECONDS / 2, time.time())
        self.step = max(1, round((self.span[1] - self.span[0]) / POINTS))
        for panel, target, query in queries(dashboard, JOB, RATE_INTERVAL):
            found = self.prometheus.ask("query_range", query=query, start=self.span[0], end=self.span[1], step=self.step)["result"]
            series = [(legend(target, one["metric"]), [(at, float(value)) for at, value in one["values"]]) for one in found]
            if not has_data(series):
                wrong.append(f"{panel['title']}: no data: {query}")
            answers.setdefault(panel["id"], []).extend(series)
            asked += 1
        self.say(f"{asked} queries of {len(answers)} panels were asked")
        return wrong, answers

    def close(self):
        for process in (self.load, self.prometheus.process):
            process.kill()
        self.cluster.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binaries", type=pathlib.Path, default=ROOT / "target" / "debug")
    parser.add_argument("--directory", default=ROOT / "target" / "dashboard", help="the results; replaced by the next run")
    parser.add_argument("--picture", type=pathlib.Path, help="the file for the drawing [dashboard.svg in the directory]")
    options = parser.parse_args()
    run = None
    try:
        run = Run(options)
        run.start()
        run.suffer()
        dashboard = json.loads((CHART / "dashboard.json").read_text())
        wrong, answers = run.judge_panels(dashboard)
        wrong += run.judge_alerts()
        happened = ", ".join(f"{at - run.span[0]:.0f} s: {text}" for at, text in run.marks)
        caption = f"The panels' data, drawn without Grafana. Three nodes, a reader, two coordinators; {happened}."
        picture = options.picture or run.directory / "dashboard.svg"
        picture.write_text(draw(dashboard, answers, run.span, run.step, run.marks, caption))
        run.say(f"{picture} shows it")
    except (Failure, TimeoutError, subprocess.SubprocessError, OSError) as error:
        wrong = [f"{type(error).__name__}: {error}"]
    finally:
        if run:
            run.close()
    print("\n".join(wrong) or "every query of the dashboard has data, every alert fires as it should")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
