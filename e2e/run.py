#!/usr/bin/env python3
"""`make e2e`: Coppice on a real Kubernetes of three nodes, installed by its charts, under load and
under faults.

Every step has a condition, and a time limit within which it must become true. While pods are
killed, machines fail and versions change, clients outside of the pods read and write through the
service. In the end their history is judged as that of `make chaos`: nothing acknowledged is lost,
nothing is applied twice, and every proof holds. A ledger of members comes last, on a cluster of its
own. `report.json` and `report.md` say what happened and how long it took; after a failure, logs are
in the same directory. The exit code is 0 if everything holds.
"""

import argparse
import base64
import concurrent.futures
import hashlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

from api import ApiRun
from members import MemberSteps
from steps import HEAL_SECONDS, IMAGE, K6_IMAGE, LEDGER, NAMESPACE, NODES, OPERATOR, ROOT, SYSTEM, Failure, beds, expect, wait_for

import image
import manifest
from harness.cluster import build_go, well
from harness.history import Progress
from harness.processes import Process
from load import build_k6

PROGRAMS = ("coppice", "coppice-shard-node", "coppice-coordinator", "coppice-operator", "coppice-bench")
# If this variable is 1, a machine that can't run pods is accepted: then only the API server's part
# is tested. Without it, such a machine is a failure.
ALLOW_API_ONLY = "E2E_ALLOW_API_ONLY"
# The files of a secret that a client gets.
FILES = ("ca.crt", "tls.crt", "tls.key")
VERSIONS = 300
# Service levels for a machine that hosts three virtual ones.
K6_LEVELS = ("READ_P95=5s", "WRITE_P95=10s", "ADMIN_P95=20s")
ENDPOINT = f"https://{LEDGER}.{NAMESPACE}.svc:7411"
# Shows a certificate, sends a request, and prints the answer. Only an answer tells whether the
# certificate was accepted, since the client's certificate comes last in a handshake.
TALK_TLS = """
import socket, ssl, sys
host, port, folder, request = sys.argv[1:]
context = ssl.create_default_context(cafile=f"{folder}/ca.crt")
context.load_cert_chain(f"{folder}/tls.crt", f"{folder}/tls.key")
with context.wrap_socket(socket.create_connection((host, int(port)), timeout=20), server_hostname=host) as connection:
    connection.sendall(request.encode())
    while told := connection.recv(4096):
        print(told.decode())
"""


class Run(MemberSteps):
    """The whole test."""

    TITLE = "End to end on Kubernetes"

    def __init__(self, options):
        super().__init__(options, beds.Bed(pathlib.Path(options.directory) / "bed", name="coppice-e2e"))
        self.history = self.directory / "history"
        self.load = None
        # The number of readers that there should be.
        self.readers = 0

    def carry_out_all(self):
        self.carry_out(
            self.start, self.give_images, self.install, self.become_ready, self.spread, self.refuse, self.take_samples, self.keep_out, self.test_release,
            self.load_data, self.cool, self.run_k6, self.start_load, self.crash, self.delete_pods, self.lose_volume, self.read_apart, self.cosign, self.lose_etcd, self.upgrade, self.bad_image, self.renew, self.drain,
            self.lose_power, self.cut_cable, self.hand_over, self.judge, self.roll_back, self.prune, self.take_away, self.reinstall, self.delete,
            self.found, self.mark, self.start_appends, self.crash, self.judge_appends, self.occult, self.purge)

    # Access to the cluster.

    def pods(self, role=None):
        labels = f"app.kubernetes.io/instance={LEDGER}" + (f",app.kubernetes.io/component={role}" if role else ",app.kubernetes.io/component")
        return self.get("pods", "-l", labels)["items"]

    def pod(self, name):
        return next((pod for pod in self.pods() if pod["metadata"]["name"] == name), None)

    def outside(self, *words):
        """A command line that runs outside of the pods."""
        return self.bed.command(*words)

    def coppice(self, *words, code=0, shown=None):
        """Runs the `coppice` command outside of the pods; it must end with this exit code. It shows
        the certificate of a writer, or the one in these two files."""
        certificate, key = shown or (self.directory / "tls.crt", self.directory / "tls.key")
        variables = [f"COPPICE_ENDPOINT={ENDPOINT}", f"COPPICE_CA={self.directory}/ca.crt", f"COPPICE_TRUST=@{self.directory}/ledger.vkey",
                     f"COPPICE_CLIENT_CERT={certificate}", f"COPPICE_CLIENT_KEY={key}"]
        command = self.outside("env", *variables, self.options.binaries / "coppice", *words)
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        expect(done.returncode == code, f"coppice {' '.join(map(str, words))} ended with {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def certificate(self):
        """The TLS options of coppice-bench."""
        options = zip(("--ca", "--client-cert", "--client-key"), FILES, strict=True)
        return [word for option, file in options for word in (option, self.directory / file)]

    def take_files(self, files):
        """Copies the files that a client outside of the cluster needs from its secret."""
        data = self.secret(f"{LEDGER}-writer-tls")
        for file in files:
            (self.directory / file).touch(mode=0o600)
            (self.directory / file).write_text(data[file])

    def status(self):
        try:
            return json.loads(self.coppice("status", "--json"))
        except Failure:
            return None

    def is_ready(self):
        """Whether the operator reports the newest specification as ready, and the ledger itself is
        well."""
        generation = self.cluster()["metadata"]["generation"]
        ready = self.conditions().get("Ready", {})
        return ready.get("status") == "True" and ready.get("observedGeneration") == generation and well(self.status(), NODES, self.readers)

    def await_ready(self):
        """Waits until all is well, and a commit was acknowledged since."""
        wait_for("every pod and group is well again", self.is_ready)
        moment = time.monotonic()
        if self.load:
            expect(self.load.running(), f"the load ended by itself: {self.load.tail()}")
            wait_for("a commit after that", lambda: self.progress.commit_after(moment), 60)

    def await_commits(self, count=20):
        """Waits for this many more commits."""
        begin = self.progress.poll()
        wait_for(f"{count} more commits", lambda: self.progress.poll() >= begin + count, 120)

    def images(self):
        """The images that pods of the ledger run, except etcd's."""
        return {pod["spec"]["containers"][0]["image"] for role in ("node", "coordinator") for pod in self.pods(role)}

    def machine(self, pod):
        """The node of the bed that a pod runs on."""
        return self.bed.node(int(pod["spec"]["nodeName"].rpartition("-")[2]))

    # The steps.

    def start(self):
        """a Kubernetes of three nodes starts."""
        self.bed.programs.build(self.say)
        self.bed.up(NODES, self.say)

    def give_images(self):
        """two images, and one of k6, are made without a container engine, and given to every
        node."""
        programs = [self.options.binaries / name for name in PROGRAMS]
        sizes = []
        for tag in ("1", "2"):
            archive = self.directory / f"coppice-{tag}.tar"
            image.write(archive, f"{IMAGE}:{tag}", programs, revision=tag, strip=True)
            sizes.append(archive.stat().st_size >> 20)
            self.bed.load(archive)
            archive.unlink()
        archive = self.directory / "k6.tar"
        image.write(archive, K6_IMAGE, [build_k6()], strip=True)
        self.bed.load(archive)
        archive.unlink()
        return f"{sizes[0]} MiB each"

    def install(self):
        """helm installs the operator, and a ledger in a namespace of restricted pods."""
        self.make_namespace()
        self.install_operator("--wait", "--timeout", "4m")
        self.install_ledger()

    def become_ready(self):
        """two shards and the root group of three replicas, two coordinators and etcd become
        ready."""
        def trust():
            self.vkey = self.cluster().get("status", {}).get("vkey")
            return self.vkey

        wait_for("the ledger's key is in its status", trust, 60)
        (self.directory / "ledger.vkey").write_text(self.vkey)
        wait_for("the certificates", lambda: self.secret(f"{LEDGER}-writer-tls"), 60)
        self.take_files(FILES)
        first = wait_for("the nodes' StatefulSet", lambda: self.get("statefulset", "-l", "app.kubernetes.io/component=node")["items"], 60)[0]
        self.await_ready()
        now = self.get("statefulset", f"{LEDGER}-node")
        sizes = [claim["spec"]["resources"]["requests"]["storage"] for claim in now["spec"]["volumeClaimTemplates"]]
        expect("1Gi" in sizes and "1024Mi" not in sizes, f"the API server writes the sizes as {sizes}")
        expect(now["metadata"]["uid"] == first["metadata"]["uid"], "the nodes' StatefulSet was made again for a size that is written in another way")
        groups = {group["name"]: group for group in self.cluster()["status"]["groups"]}
        expect(set(groups) == {"root", "shard-0", "shard-1"}, f"the groups are {sorted(groups)}")
        return f"led by {', '.join(sorted(group['leader'] for group in groups.values()))}"

    def secret(self, name):
        try:
            data = self.get("secret", name)["data"]
        except beds.Failure:
            return None
        return {key: base64.b64decode(value).decode() for key, value in data.items()}

    def spread(self):
        """the replicas of each role are on three machines."""
        for role in ("node", "etcd"):
            machines = {pod["spec"]["nodeName"] for pod in self.pods(role)}
            expect(len(machines) == NODES, f"pods of role {role} are on {sorted(machines)}")

    def keep_out(self):
        """etcd refuses certificates of clients and of nodes, and admits its own clients."""
        folder = self.directory / "shown"
        folder.mkdir()
        own = f"{LEDGER}-etcd-client-tls"
        (folder / "ca.crt").write_text(self.secret(own)["ca.crt"])

        def answer(secret, request):
            """etcd's answer to a request with the certificate in a secret."""
            for file, text in self.secret(secret).items():
                if file != "ca.crt":
                    (folder / file).write_text(text)
            command = self.outside(sys.executable, "-c", TALK_TLS, f"{LEDGER}-etcd-0.{LEDGER}-etcd.{NAMESPACE}.svc", 2379, folder, request)
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            return done.stdout + done.stderr

        # Network policies are not enforced here, so only etcd itself keeps others out.
        told = answer(own, "GET /version HTTP/1.0\r\n\r\n")
        expect("etcdserver" in told, f"etcd keeps out its own client: {told}")
        strangers = [f"{LEDGER}-{role}-tls" for role in ("reader", "operator", "node-0", "coordinator-0")]
        for secret in strangers:
            # Nothing is sent: etcd would close the connection, and its alert might get lost.
            told = answer(secret, "")
            expect("alert" in told, f"etcd lets in a client that shows {secret}: {told}")
        return f"{len(strangers)} other certificates"

    def test_release(self):
        """helm test commits, and reads with a proof."""
        self.helm("test", LEDGER, "--namespace", NAMESPACE, "--timeout", "4m")

    def load_data(self):
        """data is loaded from outside the pods, and its proofs hold offline."""
        lines = [{"note": "opening", "put": [[f"account/{number:03}", "1000"] for number in range(200)]}]
        lines += [{"note": f"transfer {number}", "put": [[f"account/{number % 200:03}", str(number)]]} for number in range(2, VERSIONS + 1)]
        file = self.directory / "accounts.jsonl"
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        self.coppice("load", file)
        proof = self.directory / "record.proof"
        self.coppice("get", "account/007", "--proof", proof)
        self.verify(proof)
        absence = self.directory / "absence.proof"
        self.coppice("get", "account/none", "--proof", absence, code=1)
        self.verify(absence)
        forged = bytearray(proof.read_bytes())[:-8]
        forged[len(forged) // 2] ^= 1
        # The checksum is correct, so that only the proof itself is wrong.
        forged += hashlib.sha256(b"\x1e" + forged).digest()[:8]
        proof.with_name("forged.proof").write_bytes(forged)
        self.coppice("verify", proof.with_name("forged.proof"), "--key", self.vkey, code=1)
        return f"{VERSIONS} versions"

    def cool(self):
        """old values move to the second volumes of all nodes, and are read and proven from
        there."""
        before = self.head()["version"]
        file = self.directory / "archive.jsonl"
        file.write_text("".join(json.dumps({"put": [[f"archive/{key}", str(number) * 100_000] for key in range(10)]}) + "\n" for number in range(1, 10)))
        self.coppice("load", file)

        def moved(ordinal):
            volume = self.bed.directory / "volumes" / self.volume(f"cold-{LEDGER}-node-{ordinal}")
            return [path for path in volume.rglob("values-*") if path.suffix != ".new"]

        counts = [len(wait_for(f"old values of node {ordinal}", lambda ordinal=ordinal: moved(ordinal), 60)) for ordinal in range(NODES)]
        proof = self.directory / "archive.proof"
        value = self.coppice("get", "archive/3", "--version", before + 1, "--proof", proof)
        expect(value.strip() == "1" * 100_000, f"a cold value reads as {value[:20]}")
        self.verify(proof)
        return f"{', '.join(map(str, counts))} segments"

    def verify(self, proof):
        self.coppice("verify", proof, "--key", self.vkey)

    def start_load(self):
        """clients begin to read and write, and their answers are recorded."""
        command = self.outside(self.options.binaries / "coppice-bench", "history", "--endpoints", ENDPOINT, *self.certificate(),
                               "--key", self.vkey, "--out", self.history, "--clients", 4, "--pause-ms", 150)
        self.load = Process("load", command, self.directory / "load.log")
        self.load.start()
        wait_for("the load's start", lambda: "started" in self.load.tail(), 60)
        self.progress = Progress(self.history / "history.jsonl", time.monotonic())
        self.await_commits()

    def run_k6(self):
        """k6 pays between accounts from a pod: its service levels hold, and so do the proofs that
        the container next to it verifies."""
        return self.k6("payment", "writer", "DURATION=15s", "ACCOUNTS=3000", *K6_LEVELS[:2])

    def take_away(self):
        """k6 prunes and rolls back under its own load, with the certificate that the operator makes
        for load tests."""
        common = ("DURATION=10s", "RECORDS=300", "DESTRUCTIVE=yes", *K6_LEVELS)
        prunes = self.k6("prune-under-load", "load", "PRUNE_INTERVAL=3s", "KEEP=20", *common)
        return "; ".join((prunes, self.k6("rollback-drill", "load", "DRILL_INTERVAL=3s", *common)))

    def k6(self, scenario, client, *parameters):
        """Runs a scenario as a Job, with the certificate of a client; returns its counts."""
        name, secret = f"load-{scenario}", f"{LEDGER}-{client}-tls"
        job = manifest.made([scenario, "--namespace", NAMESPACE, "--endpoint", ENDPOINT, "--trust", self.vkey, "--ca-secret", secret, "--client-secret", secret,
                             "--k6-image", K6_IMAGE, "--judge-image", f"{IMAGE}:1", *parameters])
        self.kubectl("apply", "-f", "-", input=json.dumps(job))

        def over():
            status = self.get("job", name).get("status", {})
            return status if status.get("succeeded") or status.get("failed") else None

        status = wait_for("the end of k6", over, 240)
        log = self.kubectl("logs", f"job/{name}", "-c", "k6")
        (self.directory / f"k6-{scenario}.log").write_text(log)
        expect(status.get("succeeded"), f"k6: {log}")
        self.kubectl("delete", f"job/{name}", f"configmap/{name}")
        return next((line.strip() for line in log.splitlines() if "proofs_checked" in line), "")

    def leaders(self):
        """The pods that lead: of the coordinators, of the root group, of a shard."""
        status = wait_for("a status with leaders", lambda: (found := self.status()) and well(found, NODES) and found)
        led = {group["group"]: next(replica["node"] for replica in group["replicas"] if replica["role"] == "leader") for group in status["groups"]}
        return [status["leader"], led["root"], next(node for group, node in sorted(led.items()) if group != "root")]

    def crash(self):
        """processes of leaders are killed: a coordinator's, the root group's, a shard's."""
        killed = []
        for index in range(3):
            name = self.leaders()[index]
            pod = self.pod(name)
            container = pod["status"]["containerStatuses"][0]
            task = container["containerID"].removeprefix("containerd://")
            beds.run(*self.bed.command("ctr", "--namespace", "k8s.io", "task", "kill", "--signal", "SIGKILL", task, node=self.machine(pod)))

            def again(name=name, before=container["restartCount"]):
                return self.pod(name)["status"]["containerStatuses"][0]["restartCount"] > before

            wait_for(f"{name} is started again", again)
            self.await_ready()
            killed.append(name)
        return ", ".join(killed)

    def delete_pods(self):
        """pods are deleted: of the leading coordinator and node, and of etcd."""
        deleted = []
        for name in (self.leaders()[0], self.leaders()[1], f"{LEDGER}-etcd-0"):
            self.replace(name)
            self.await_ready()
            deleted.append(name)
        return ", ".join(deleted)

    def replace(self, name, *more):
        """Deletes a pod together with other objects, and waits for the next pod of its name."""
        before = self.pod(name)["metadata"]["uid"]
        self.kubectl("delete", f"pod/{name}", *more, "--wait=false")
        wait_for(f"another {name}", lambda: (pod := self.pod(name)) and pod["metadata"]["uid"] != before)

    def lose_volume(self):
        """a node's first volume is lost, and refilled from the other nodes although the second one
        is older."""
        name = f"{LEDGER}-node-1"
        claim = f"data-{name}"
        before = self.get("pvc", claim)["spec"]["volumeName"]
        self.replace(name, f"pvc/{claim}")
        wait_for("another volume", lambda: self.volume(claim) not in (None, before))
        self.await_ready()
        return f"{before} became {self.volume(claim)}"

    def read_apart(self):
        """a reader comes and serves reads, is killed, loses its volume and is refilled, and goes;
        voters do not notice that it is away."""
        name = f"{LEDGER}-reader-0"
        self.set_readers(1)
        wait_for("reads by the reader", lambda: self.reads_by_readers() > 0, 60)
        container = self.pod(name)["status"]["containerStatuses"][0]
        task = container["containerID"].removeprefix("containerd://")
        beds.run(*self.bed.command("ctr", "--namespace", "k8s.io", "task", "kill", "--signal", "SIGKILL", task, node=self.machine(self.pod(name))))
        wait_for("the reader is started again", lambda: self.pod(name)["status"]["containerStatuses"][0]["restartCount"] > container["restartCount"])
        self.await_readers()
        self.await_ready()
        before = self.volume(f"data-{name}")
        self.replace(name, f"pvc/data-{name}")
        self.await_commits()
        voters = self.conditions()["Available"]
        expect(voters["status"] == "True", f"without the reader: {voters}")
        wait_for("another volume", lambda: self.volume(f"data-{name}") not in (None, before))
        self.await_readers()
        self.await_ready()
        served = self.reads_by_readers()
        self.set_readers(0)
        wait_for("nothing of readers but the volume", lambda: not [item for kind in ("statefulset", "service", "pdb", "networkpolicy", "pod")
                                                                  for item in self.get(kind, "-l", "app.kubernetes.io/component=reader")["items"]])
        expect(self.secret(f"{name}-tls") is None, "the certificate of a reader that is gone is still there")
        self.kubectl("delete", "pvc", f"data-{name}")
        return f"{served} reads by the reader"

    def set_readers(self, count):
        """Changes the number of readers, and waits until everybody knows."""
        self.helm("upgrade", LEDGER, ROOT / "charts/coppice", "--namespace", NAMESPACE, "--reuse-values",
                  "--set", f"readers.count={count},readers.storage.size=1Gi")
        self.readers = count
        if count:
            self.await_readers()
        self.await_ready()

    def await_readers(self):
        """Waits until the operator reports all readers as ready."""
        def ready():
            status = self.cluster().get("status", {})
            is_so = self.conditions().get("ReadersReady", {}).get("status") == "True"
            return is_so and status.get("readers") == f"{self.readers}/{self.readers}"

        wait_for("the readers serve", ready, 2 * HEAL_SECONDS)

    def reads_by_readers(self):
        """The number of reads that coordinators had from readers."""
        total = 0
        for pod in self.pods("coordinator"):
            path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['metadata']['name']}:7431/proxy/metrics"
            for line in self.bed.kubectl("get", "--raw", path).splitlines():
                if line.startswith("coppice_read_calls_total{") and 'replica="reader"' in line:
                    total += int(float(line.split()[-1]))
        return total

    def cosign(self):
        """two cosigners of the chart cosign what the ledger commits, by a policy in the resource,
        also after one has lost its volume."""
        keys, names = {}, ("acme", "bolt")
        for name in names:
            file = self.directory / f"{name}.key"
            keys[name] = self.coppice("keygen", "--witness", "--name", f"{name}.example/w", "--out", file).strip()
            self.kubectl("create", "secret", "generic", f"{name}-key", f"--from-file=witness.key={file}")
        for name in names:
            values = {
                "image": {"repository": IMAGE, "tag": "1"}, "ledgerKey": self.vkey, "logs": [f"https://{LEDGER}.{NAMESPACE}.svc:7421"],
                "keySecret": f"{name}-key", "ca": {"secret": f"{LEDGER}-reader-tls"}, "gossipSeconds": 2, "storage": {"size": "1Gi"},
                "peers": [{"url": f"http://{other}.{NAMESPACE}.svc:7600", "vkey": keys[other]} for other in names if other != name],
            }
            self.helm("install", name, ROOT / "charts/coppice-cosigner", "--namespace", NAMESPACE, "--values", self.values(values))
        lines = [f"witness {name} {keys[name]} http://{name}.{NAMESPACE}.svc:7600/w" for name in names]
        text = "\n".join([*lines, "group both 2 acme bolt", "quorum both"]) + "\n"
        self.set_policy(text)
        (self.directory / "policy").write_text(f"log {self.vkey}\n{text}")

        def cosigned():
            """The number of entries that both have cosigned, checked by the policy."""
            proof = self.directory / "cosigned.proof"
            try:
                self.coppice("get", "account/007", "--proof", proof, "--cosigned")
                self.coppice("verify", proof, "--policy", self.directory / "policy")
                return int(self.coppice("checkpoint", "--cosigned").splitlines()[1])
            except Failure:
                return None

        size = wait_for("a read that both have cosigned", cosigned)
        before = self.get("pvc", "data-bolt-0")["metadata"]["uid"]
        self.kubectl("delete", "pod/bolt-0", "pvc/data-bolt-0", "--wait=false")
        wait_for("another volume", lambda: self.get("pvc", "data-bolt-0")["metadata"]["uid"] != before)
        self.kubectl("rollout", "status", "statefulset/bolt", f"--timeout={HEAL_SECONDS}s")
        size = cosigned() or size
        wait_for("another checkpoint of both", lambda: (now := cosigned()) and now > size)
        self.set_policy(None)
        for name in names:
            self.helm("uninstall", name, "--namespace", NAMESPACE, "--wait")
            self.kubectl("delete", f"pvc/data-{name}-0", f"secret/{name}-key")
        return f"{size} entries at first"

    def values(self, values):
        """A file with values for helm, for texts of several lines."""
        file = self.directory / "values.json"
        file.write_text(json.dumps(values))
        return file

    def set_policy(self, policy):
        """Changes the policy of witnesses, and waits until all coordinators have it."""
        self.helm("upgrade", LEDGER, ROOT / "charts/coppice", "--namespace", NAMESPACE, "--reuse-values",
                  "--values", self.values({"spec": {"witnesses": {"policy": policy}}}))
        self.await_ready()

    def lose_etcd(self):
        """etcd loses all its data, and is restored by the runbook's commands: it starts empty, and
        commits go on."""
        claims = [f"data-{pod['metadata']['name']}" for pod in self.pods("etcd")]
        before = {self.volume(claim) for claim in claims}
        labels = f"app.kubernetes.io/instance={LEDGER},app.kubernetes.io/component=etcd"
        self.pause(True)
        self.kubectl("wait", "ledgercluster", LEDGER, '--for=jsonpath={.status.conditions[?(@.type=="Progressing")].reason}=Paused', "--timeout=120s")
        self.kubectl("scale", "statefulset", f"{LEDGER}-etcd", "--replicas=0")
        self.kubectl("wait", "pods", "-l", labels, "--for=delete", f"--timeout={HEAL_SECONDS}s")
        self.kubectl("delete", "pvc", "-l", labels)
        self.pause(False)
        wait_for("other volumes", lambda: None not in (now := {self.volume(claim) for claim in claims}) and not now & before)
        self.await_ready()
        return f"{len(before)} members"

    def pause(self, paused):
        self.kubectl("patch", "ledgercluster", LEDGER, "--type=merge", "--patch", json.dumps({"spec": {"paused": paused}}))

    def volume(self, claim):
        try:
            return self.get("pvc", claim)["spec"].get("volumeName")
        except beds.Failure:
            return None

    def set_tag(self, tag):
        self.helm("upgrade", LEDGER, ROOT / "charts/coppice", "--namespace", NAMESPACE, "--reuse-values", "--set-string", f"image.tag={tag}")

    def upgrade(self):
        """a rolling upgrade, in the middle of which the operator's pod is deleted; no commit
        fails."""
        lines = self.unknown_writes()
        self.set_tag("2")
        wait_for("the first pod of the new image", lambda: f"{IMAGE}:2" in self.images())
        expect(self.images() != {f"{IMAGE}:2"}, "all pods were replaced at once")
        self.bed.kubectl("-n", SYSTEM, "delete", "pod", "-l", f"app.kubernetes.io/instance={OPERATOR}", "--wait=false")
        wait_for("all pods of the new image", lambda: self.images() == {f"{IMAGE}:2"})
        self.await_ready()
        failed = self.unknown_writes() - lines
        expect(failed == 0, f"{failed} commits failed, though their clients tried again")

    def unknown_writes(self):
        """Unconditional writes in a session whose outcome stayed unknown, however often they were
        sent."""
        lines = (json.loads(line) for line in (self.history / "history.jsonl").read_text().splitlines(keepends=True) if line.endswith("\n"))
        return sum(line["kind"] == "write" and line["outcome"] == "unknown" and "condition" not in line and line["client"] % 4 != 3 for line in lines)

    def bad_image(self):
        """an image that doesn't exist is rolled out: one pod stops, commits go on; the old image
        heals it."""
        self.set_tag("none")

        def stuck():
            waiting = [pod["metadata"]["name"] for pod in self.pods() if any(
                container.get("state", {}).get("waiting", {}).get("reason") in ("ErrImagePull", "ImagePullBackOff")
                for container in pod["status"].get("containerStatuses", []))]
            return waiting

        def replaced():
            return [pod["metadata"]["name"] for pod in self.pods() if pod["spec"]["containers"][0]["image"] == f"{IMAGE}:none"]

        first = wait_for("a pod without its image", stuck)
        self.await_commits()
        expect(replaced() == first and len(first) == 1, f"{first} has no image, and these pods were replaced: {replaced()}")
        wait_for("the condition Progressing names that pod", lambda: first[0] in self.conditions()["Progressing"]["message"], 60)
        self.set_tag("2")
        wait_for("the old image everywhere", lambda: self.images() == {f"{IMAGE}:2"} and not stuck())
        self.await_ready()
        return first[0]

    def renew(self):
        """the authorities of the ledger and of etcd are replaced, and all certificates with them;
        clients get their files in between."""
        before, names = self.certificates(), (f"{LEDGER}-authority", f"{LEDGER}-etcd-authority")
        former = {self.secret(name)["tls.crt"] for name in names}
        self.kubectl("delete", "secret", *names)
        for stage, files in (("believed", ("ca.crt",)), ("shown", FILES)):
            # One or two rollouts of all pods.
            wait_for(f"clients are waited for: {stage}", lambda told=f"={stage}": self.conditions()["Progressing"]["message"].endswith(told), 3 * HEAL_SECONDS)
            self.take_files(files)
            self.await_commits()
            self.kubectl("annotate", "--overwrite", "secret", names[0], f"coppice.dev/clients={stage}")

        def believed():
            """The authorities in each secret: two of each kind at first."""
            return {self.secret(f"{LEDGER}-{name}")["ca.crt"] for name in ("node-0-tls", "coordinator-0-tls", "writer-tls", "etcd-server-tls", "etcd-client-tls")}

        wait_for("only the other authorities are trusted", lambda: len(now := believed()) == 2 and now == {self.secret(name)["tls.crt"] for name in names}, 3 * HEAL_SECONDS)
        wait_for("pods of other certificates", lambda: len(now := self.certificates()) == len(before) and not now & before)
        expect(not believed() & former, "a former authority is trusted")
        self.await_ready()

    def certificates(self):
        """The names of the certificates that pods were made with."""
        return {pod["metadata"]["annotations"]["coppice.dev/certificate"] for pod in self.pods()}

    def drain(self):
        """one machine is drained; a second one can't be, since budgets keep the majorities."""
        first, second = (self.bed.node(number).name for number in (3, 2))
        self.bed.kubectl("drain", first, "--ignore-daemonsets", "--delete-emptydir-data", "--force", f"--timeout={HEAL_SECONDS}s")
        self.await_commits()
        # `kubectl drain` would request these evictions again and again.
        there = [pod["metadata"]["name"] for role in ("node", "etcd") for pod in self.pods(role) if pod["spec"].get("nodeName") == second]
        expect(len(there) == 2, f"on {second} are {there}")
        for name in there:
            eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": NAMESPACE}}
            command = self.bed.command("kubectl", "create", "--raw", f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/eviction", "-f", "-")
            done = subprocess.run(command, input=json.dumps(eviction), capture_output=True, text=True, check=False)
            expect(done.returncode != 0 and "disruption budget" in done.stderr, f"{name} was evicted, too: {done.stdout}{done.stderr}")
        self.await_commits()
        self.bed.kubectl("uncordon", first)
        self.await_ready()

    def lose_power(self):
        """a machine loses its power, which is noticed and survived; it comes back with its disk."""
        node = self.bed.node(3)
        node.off()
        self.await_commits()
        self.bed.kubectl("wait", "--for=condition=Ready=Unknown", f"node/{node.name}", f"--timeout={HEAL_SECONDS}s")
        self.await_commits()
        node.on()
        self.bed.kubectl("wait", "--for=condition=Ready", f"node/{node.name}", f"--timeout={HEAL_SECONDS}s")
        self.await_ready()

    def cut_cable(self):
        """a machine loses its network, which is survived; it heals when its cable is back."""
        node = self.bed.node(2)
        node.cable("down")
        self.await_commits()
        self.bed.kubectl("wait", "--for=condition=Ready=Unknown", f"node/{node.name}", f"--timeout={HEAL_SECONDS}s")
        self.await_commits()
        node.cable("up")
        self.bed.kubectl("wait", "--for=condition=Ready", f"node/{node.name}", f"--timeout={HEAL_SECONDS}s")
        self.await_ready()

    def hand_over(self):
        """the leadership of the root group moves to a pod that a resource names."""
        before = self.leaders()[1]
        pod = next(name for name in (f"{LEDGER}-node-{number}" for number in range(NODES)) if name != before)
        done = self.operate("hand-over", transfer={"group": "root", "node": pod})
        expect(done["phase"] == "Succeeded" and self.leaders()[1] == pod, f"{done}")
        self.await_ready()
        return f"{before} handed over to {pod}"

    def judge(self):
        """nothing that was acknowledged is lost, nothing was applied twice, every proof holds."""
        code = self.load.stop(limit=90)
        self.progress.poll()
        told = self.load.tail(1)
        expect(code == 0, f"the clients ended with {code}: {self.load.tail()}")
        findings = (self.history / "findings.jsonl").read_text()
        expect(not findings, f"clients got impossible answers: {findings}")
        command = self.outside(self.options.binaries / "coppice-bench", "collect", "--endpoint", ENDPOINT, *self.certificate(),
                               "--key", self.vkey, "--out", self.history)
        beds.run(*command)
        checker = build_go("checker", "loadtest/checker")
        done = subprocess.run([checker, "-dump", self.history / "changes.jsonl", self.history / "history.jsonl"],
                              capture_output=True, text=True, check=False)
        expect(done.returncode in (0, 1), f"the checker failed: {done.stderr}")
        checked = json.loads(done.stdout)
        faults = [f"{part['name']}: {fault}" for part in checked["verdicts"] for fault in part.get("faults", [])]
        expect(not faults and done.returncode == 0, f"the history does not hold: {faults[:5]}")
        proofs = sorted((self.history / "proofs").glob("*.proof"))
        expect(proofs, "no proof was kept")
        with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
            list(pool.map(self.verify, proofs))
        self.load = self.progress = None
        return f"{checked['operations']} operations, {len(proofs)} proofs; {told}"

    def operate(self, name, **what):
        """Applies an operation, and waits for its end."""
        self.kubectl("apply", "-f", "-", input=json.dumps({
            "apiVersion": "coppice.dev/v1alpha1", "kind": "LedgerOperation", "metadata": {"name": name}, "spec": {"cluster": LEDGER, **what},
        }))

        def over():
            status = self.get("ledgeroperation", name).get("status", {})
            return status if status.get("phase") in ("Succeeded", "Failed") else None

        return wait_for(f"the end of {name}", over, 120)

    def head(self):
        return json.loads(self.coppice("head", "--json"))

    def roll_back(self):
        """a rollback by resource is done once: applying it again does nothing."""
        epoch, version = (self.head()[name] for name in ("epoch", "version"))
        rollback = {"to": version - 3, "expectedHead": {"epoch": epoch, "version": version}, "reason": "e2e",
                    "confirm": f"roll back {LEDGER} to {version - 3}"}
        done = self.operate("undo", rollback=rollback)
        expect(done["phase"] == "Succeeded", f"{done}")
        head = self.head()
        expect((head["epoch"], head["version"]) == (epoch + 1, version - 3), f"head is {head}")
        again = self.operate("undo-again", rollback=rollback)
        expect(again["phase"] == "Failed" and "nothing was done" in again["message"], f"{again}")
        expect(self.head()["version"] == version - 3, "it was done twice")
        return done["message"]

    def prune(self):
        """a prune by resource."""
        done = self.operate("tidy", prune={"before": 100, "reason": "e2e"})
        expect(done["phase"] == "Succeeded", f"{done}")
        self.coppice("get", "account/007", "--version", 99, code=3)
        self.coppice("get", "account/007", "--version", 100)
        return done["message"]

    def reinstall(self):
        """uninstalling leaves volumes and key; an installation of the same name has the same
        root."""
        before = self.head()
        self.helm("uninstall", LEDGER, "--namespace", NAMESPACE, "--wait", "--timeout", "4m")
        wait_for("all pods are gone", lambda: not self.pods())
        claims = {claim["metadata"]["name"] for claim in self.get("pvc")["items"]}
        kinds = ("data", "node"), ("cold", "node"), ("data", "etcd")
        expected = {f"{kind}-{LEDGER}-{role}-{number}" for kind, role in kinds for number in range(3)}
        expect(claims == expected, f"the claims that are left are {sorted(claims)}")
        expect(self.secret(f"{LEDGER}-signing-key"), "the signing key is gone")
        self.install_ledger()
        self.become_ready()
        after = self.head()
        keys = ("epoch", "version", "state_root")
        expect([after[key] for key in keys] == [before[key] for key in keys], f"{before} became {after}")
        self.verify(self.directory / "record.proof")
        return f"version {after['version']} of epoch {after['epoch']}"

    def delete(self):
        """volumes and key are deleted with the resource, if it says so."""
        self.helm("upgrade", LEDGER, ROOT / "charts/coppice", "--namespace", NAMESPACE, "--reuse-values", "--set", "volumePolicy=Delete")
        self.helm("uninstall", LEDGER, "--namespace", NAMESPACE, "--wait", "--timeout", "4m")
        wait_for("volumes and key are gone", lambda: not self.get("pvc")["items"] and not self.secret(f"{LEDGER}-signing-key"))

    # The end.

    def collect(self):
        """Collects what is needed to understand a failure."""
        folder = self.directory / "failure"
        folder.mkdir(exist_ok=True)

        def keep(name, *words):
            done = subprocess.run(self.bed.command("kubectl", *words), capture_output=True, text=True, check=False)
            (folder / name).write_text(done.stdout + done.stderr)
            return done.stdout

        if not self.bed.node(1).pid():
            return
        keep("objects.yaml", "get", "all,pvc,pv,ledgerclusters,ledgeroperations", "--all-namespaces", "-o", "yaml")
        keep("events.txt", "get", "events", "--all-namespaces", "--sort-by=.lastTimestamp")
        for namespace in (NAMESPACE, SYSTEM, "kube-system"):
            for pod in keep(f"{namespace}.txt", "-n", namespace, "get", "pods", "-o", "name").split():
                for option in ("", "--previous"):
                    keep(f"{namespace}-{pod.partition('/')[2]}{option}.log", "-n", namespace, "logs", pod, "--tail=2000", *filter(None, [option]))
        self.say(f"logs and objects are in {folder}")

    def close(self):
        if self.load:
            self.load.stop(limit=30)
        if not self.options.keep:
            self.bed.down()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binaries", type=pathlib.Path, default=ROOT / "target" / "debug")
    parser.add_argument("--directory", type=pathlib.Path, default=ROOT / "target" / "e2e", help="the results; replaced by the next run")
    parser.add_argument("--keep", action="store_true", help="don't end the cluster; e2e/bed/bed.py does that")
    parser.add_argument("--api", action="store_true", help=f"test only an API server, which runs no pods; {ALLOW_API_ONLY}=1 does so where a machine can't run them")
    options = parser.parse_args()
    options.binaries = options.binaries.resolve()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    options.directory.mkdir(parents=True, exist_ok=True)
    lacks = [] if options.api else beds.unusable(options.directory)
    untested = f"NO KUBERNETES CAN RUN HERE: this machine lacks {', '.join(lacks)}." if lacks else ""
    if untested and os.environ.get(ALLOW_API_ONLY) != "1":
        print(f"{untested}\nRun this as root on a machine that has them (docs/testing.md, On Kubernetes), "
              f"or set {ALLOW_API_ONLY}=1 to test only the API server's part.", file=sys.stderr, flush=True)
        return 2
    if untested:
        print(f"{untested} {ALLOW_API_ONLY}=1: only the API server's part is tested.", flush=True)
    run = ApiRun(options) if lacks or options.api else Run(options)
    run.bed.down()
    shutil.rmtree(run.directory, ignore_errors=True)
    run.directory.mkdir(parents=True)
    try:
        run.carry_out_all()
    finally:
        run.close()
    ok = run.report()
    if untested:
        print(f"{untested} No pod ran, and none of the steps with pods was tested.", flush=True)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
