#!/usr/bin/env python3
"""Measures what anchors cost commits: `coppice dev` with an anchor each second, against none.

Both clusters run side by side for the whole time, and the load goes to one and to the other in
turn, so that a busy machine slows both alike. The authority is OpenSSL's (`openssl ts -reply`), so
its own processor time is part of the price on one machine. Build with `make release` and `cargo
build --release --locked -p coppice-client --example load`.
"""

import argparse
import http.server
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading

ROOT = pathlib.Path(__file__).resolve().parent.parent
FIGURES = re.compile(r"([\d.]+) batches/s, p50 ([\d.]+) ms, p99 ([\d.]+) ms, .* (\d+) failed")


def authority(directory):
    """Serves OpenSSL's stamps over HTTP, and returns the address."""
    subprocess.run([ROOT / "cluster/timestamp/tests/openssl.sh", directory], check=True, capture_output=True)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            query, reply = directory / "query", directory / "reply"
            query.write_bytes(self.rfile.read(int(self.headers["content-length"])))
            command = ["openssl", "ts", "-reply", "-config", "tsa.cnf", "-section", "millis"]
            subprocess.run([*command, "-queryfile", query, "-out", reply], cwd=directory, check=True, capture_output=True)
            body = reply.read_bytes()
            self.send_response(200)
            self.send_header("content-type", "application/timestamp-reply")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}/"


class Cluster:
    """A development cluster of one process."""

    def __init__(self, binary, directory, flags):
        command = [binary, "dev", "--data-dir", directory, "--listen", "127.0.0.1:0", *flags]
        self.child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.endpoint = None
        for line in self.child.stdout:
            if line.startswith("ready "):
                self.endpoint = line.split()[1]
                return
        raise RuntimeError(f"{command} does not serve")

    def stop(self):
        self.child.terminate()
        self.child.wait(60)


def load(binary, cluster, options):
    """Commits for a while, and returns (batches a second, p50, p99)."""
    command = [binary, cluster.endpoint, options.clients, 1, 256, options.seconds, *([options.rate] if options.rate else [])]
    said = subprocess.run([str(part) for part in command], check=True, stdout=subprocess.PIPE, text=True).stdout
    rate, p50, p99, failed = FIGURES.search(said).groups()
    if failed != "0":
        raise RuntimeError(said)
    return float(rate), float(p50), float(p99)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seconds", type=int, default=20, help="of each turn")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--rate", type=int, help="batches a second, instead of as many as possible")
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--binaries", type=pathlib.Path, default=ROOT / "target" / "release")
    options = parser.parse_args()
    directory = pathlib.Path(tempfile.mkdtemp(prefix="anchors-", dir=options.binaries))
    coppice, client = options.binaries / "coppice", options.binaries / "examples" / "load"
    clusters = {}
    try:
        (directory / "tsa").mkdir()
        url = authority(directory / "tsa")
        stamped = ["--tsa", url, "--tsa-root", directory / "tsa" / "first.pem", "--anchor-every", "1s"]
        figures = {"none": [], "each second": []}
        for name, flags in (("none", []), ("each second", stamped)):
            clusters[name] = Cluster(coppice, directory / name.replace(" ", "-"), ["--replicas", str(options.replicas), *flags])
        for name, cluster in clusters.items():
            load(client, cluster, argparse.Namespace(**{**vars(options), "seconds": 3}))
        for turn in range(options.turns):
            for name in sorted(clusters, reverse=turn % 2 == 1):
                figures[name].append(load(client, clusters[name], options))
        command = [coppice, "--endpoint", clusters["each second"].endpoint, "anchor", "list"]
        made = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.count("\n")
    finally:
        for cluster in clusters.values():
            cluster.stop()
        shutil.rmtree(directory, ignore_errors=True)
    print(f"{options.clients} clients, {options.turns} turns of {options.seconds} s each, {made} anchors\n")
    print("| anchors | batches/s | p50 ms | p99 ms |\n| --- | --- | --- | --- |")
    for name, turns in figures.items():
        rate, p50, p99 = (statistics.median(column) for column in zip(*turns))
        print(f"| {name} | {rate:.0f} | {p50:.2f} | {p99:.2f} |")
    return 0 if made else 1


if __name__ == "__main__":
    sys.exit(main())
