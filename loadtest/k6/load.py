#!/usr/bin/env python3
"""`make load SCENARIO=payment`: one load test by k6, together with a judge that verifies a sample
of the proofs meanwhile.

    loadtest/k6/load.py SCENARIO [--target dev | processes | https://HOST:PORT]

`dev` and `processes` start a ledger for the test and end it afterwards. A running ledger is named
by its endpoint, and by COPPICE_TRUST, COPPICE_CA, COPPICE_CLIENT_CERT and COPPICE_CLIENT_KEY, as
for the `coppice` command. Parameters like DURATION=1m come from the environment; `--parameters`
lists them. The exit code is 0 if all service levels and all verified proofs hold, 1 if not, and 2
for wrong parameters.
"""

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "loadtest"))

from harness.cluster import Failure  # noqa: E402
from harness.processes import Process, wait_until  # noqa: E402
from harness.systems import Coppice  # noqa: E402

CONNECTION = ("COPPICE_ENDPOINT", "COPPICE_CA", "COPPICE_CLIENT_CERT", "COPPICE_CLIENT_KEY")
DESTRUCTIVE = ("prune-under-load", "rollback-drill")
# Scenarios on a ledger of members.
OF_MEMBERS = ("ledger",)
# k6 tells nobody about its use, and looks for no other programs.
QUIET = {"K6_NO_USAGE_REPORT": "true", "K6_AUTO_EXTENSION_RESOLUTION": "false"}
# The exit code of k6 for an error in the script, its parameters for instance; and the exit code of
# this program then.
SCRIPT_ERROR, WRONG = 107, 2


def build_k6():
    done = subprocess.run([ROOT / "scripts" / "go-tool.sh", "k6", ROOT / "scripts" / "k6"], stdout=subprocess.PIPE, text=True, check=False,
                          env={**os.environ, "CGO_ENABLED": "0"})
    if done.returncode != 0:
        raise Failure("k6 could not be built; see above")
    return pathlib.Path(done.stdout.strip())


def parameters():
    """The names of the parameters, according to the scripts."""
    lines = (HERE / "lib" / "settings.js").read_text().splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith("export const PARAMETERS"))
    names = []
    for line in lines[begin + 1:]:
        if line.startswith("}"):
            return names
        names.append(line.split(":")[0].strip())
    raise Failure("settings.js has no end of PARAMETERS")


@contextlib.contextmanager
def dev(options, directory, _environment):
    """A ledger in one process."""
    command = [options.binaries / "coppice", "dev", "--data-dir", directory / "data", *(["--ledgers"] if options.scenario in OF_MEMBERS else [])]
    process = Process("coppice dev", command, directory / "dev.log", {name: "" for name in os.environ if name.startswith("COPPICE_")})
    process.start()
    try:
        def endpoint():
            code = process.ended_by_itself()
            if code is not None:
                raise Failure(f"coppice dev ended with {code}: {process.tail()}")
            return next((line.split()[1] for line in process.log.read_text().splitlines() if line.startswith("ready ")), None)

        yield {"COPPICE_ENDPOINT": wait_until(endpoint, 60, "a ledger that is ready")}, f"@{directory / 'data' / 'ledger.vkey'}"
    finally:
        process.stop()


@contextlib.contextmanager
def processes(options, directory, _environment):
    """Three nodes, two shards, two coordinators and three etcd, as processes."""
    system = Coppice(directory / "cluster", options.binaries, replicas=3, shards=2, coordinators=2, ledgers=options.scenario in OF_MEMBERS)
    try:
        system.start()
        yield {"COPPICE_ENDPOINT": ",".join(system.cluster.endpoints())}, system.cluster.vkey
    finally:
        system.stop()


@contextlib.contextmanager
def running(options, _directory, environment):
    """A ledger that already runs."""
    trust = environment.get("COPPICE_TRUST")
    if not trust:
        raise Failure("COPPICE_TRUST: the ledger's public key, or @ and a file that holds it: proofs are verified under it")
    yield {name: environment[name] for name in CONNECTION if environment.get(name)} | {"COPPICE_ENDPOINT": options.target}, trust


def judge_of(scenario, k6, bench):
    """The command of the judge of a scenario's proofs, from the paths of the two programs."""
    return [k6, "x", "judge"] if scenario in OF_MEMBERS else [bench, "judge"]


@contextlib.contextmanager
def judged(options, directory, trust, k6):
    """Starts the judge of proofs. Returns its address, and a function that ends it and returns its
    counts and exit code."""
    command = [*judge_of(options.scenario, k6, options.binaries / "coppice-bench"), "--key", trust, "--evidence", directory / "evidence.json"]
    with open(directory / "judge.log", "wb") as log:
        child = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, stderr=log, text=True, env={**os.environ, **QUIET})
    try:
        first = child.stdout.readline()
        if not first:
            raise Failure(f"the judge did not start: {(directory / 'judge.log').read_text().strip()}")

        def end():
            child.send_signal(signal.SIGTERM)
            rest, _ = child.communicate(timeout=60)
            return json.loads(rest.splitlines()[-1]) if rest.strip() else None, child.returncode

        yield f"http://{json.loads(first)['address']}", end
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()


def run(options, environment=os.environ):
    """Runs a scenario; returns the exit code."""
    directory = options.out.resolve()
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    k6 = options.k6 or build_k6()
    start = {"dev": dev, "processes": processes}.get(options.target, running)
    given = {name: environment[name] for name in parameters() if environment.get(name)}
    if start is not running:
        # The ledger was started for this test.
        if options.scenario in DESTRUCTIVE:
            given.setdefault("DESTRUCTIVE", "yes")
    with start(options, directory, environment) as (connection, trust), judged(options, directory, trust, k6) as (judge, end):
        variables = {"SCENARIO": options.scenario, "JUDGE": judge, "OUT": str(directory), **given, **connection}
        command = [k6, "run", "--quiet", "--include-system-env-vars=false", "--address", ""]
        for name, value in variables.items():
            command += ["--env", f"{name}={value}"]
        shell = {"PATH": os.environ.get("PATH", ""), "HOME": str(directory), **QUIET}
        with open(directory / "k6.log", "wb") as log:
            output = {"stdout": log, "stderr": log} if options.quiet else {}
            code = subprocess.run([*map(str, command), str(HERE / "main.js")], env=shell, check=False, **output).returncode
        counts, judge_code = end()
    return verdict(code, counts, judge_code, directory)


def verdict(code, counts, judge_code, directory):
    """The exit code of a run, from those of k6 and of the judge."""
    if counts is None or judge_code != 0:
        bad = counts and counts["bad"]
        print(f"PROOFS: {bad} answers are not to be believed: {counts['first_bad']} ({directory}/evidence.json)" if bad else
              f"PROOFS: the judge ended with {judge_code}: {(directory / 'judge.log').read_text().strip()}", flush=True)
        return 1
    unproven = f", {counts['unproven']} commits came without a receipt" if counts.get("unproven") else ""
    print(f"proofs: {counts['reads']} reads and {counts['commits']} receipts verified{unproven}; {directory}/summary.html", flush=True)
    if code == SCRIPT_ERROR and not (directory / "summary.json").exists():
        return WRONG
    return 0 if code == 0 else 1


def parser():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", nargs="?")
    parser.add_argument("--target", default="dev", help="dev, processes, or the endpoint of a running ledger [dev]")
    parser.add_argument("--out", type=pathlib.Path, help="the directory of the results; replaced by the next run [target/load/SCENARIO]")
    parser.add_argument("--binaries", type=pathlib.Path, default=ROOT / "target" / "debug")
    parser.add_argument("--k6", type=pathlib.Path, help="an existing k6 [built from its pinned module]")
    parser.add_argument("--quiet", action="store_true", help="write the output of k6 to k6.log")
    parser.add_argument("--parameters", action="store_true", help="list the parameters")
    return parser


def main():
    options = parser().parse_args()
    if options.parameters:
        print("\n".join(parameters()))
        return 0
    if not options.scenario:
        print("load.py: no SCENARIO; docs/load-testing.md lists them", file=sys.stderr)
        return WRONG
    options.out = options.out or ROOT / "target" / "load" / options.scenario
    options.binaries = options.binaries.resolve()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        return run(options)
    except (Failure, TimeoutError) as error:
        print(f"load.py: {error}", file=sys.stderr)
        return WRONG


if __name__ == "__main__":
    sys.exit(main())
