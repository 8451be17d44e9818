"""The part of the tests on Kubernetes that needs no machine with pods."""

import json
import pathlib

from steps import LEDGER, NAMESPACE, OPERATOR, SYSTEM, Steps, beds, expect, wait_for

from harness.processes import Process


class ApiRun(Steps):
    """Tests with an API server, and with the operator as a process that has the rights of its
    chart."""

    TITLE = "The API server's part alone: no pod ran"

    def __init__(self, options):
        super().__init__(options, beds.Api(pathlib.Path(options.directory) / "api"))
        self.operator = None

    def carry_out_all(self):
        self.carry_out(self.start, self.install, self.work, self.come_and_go, self.refuse, self.take_samples, self.clean_up)

    def start(self):
        """an API server starts."""
        self.bed.programs.build(self.say, only=self.bed.PROGRAMS)
        self.bed.up()

    def install(self):
        """helm installs the operator and a ledger: the API server accepts definitions and
        objects."""
        self.make_namespace()
        self.install_operator()
        self.install_ledger()

    def work(self):
        """the operator makes all objects, with no more rights than its chart gives."""
        token = self.bed.kubectl("-n", SYSTEM, "create", "token", OPERATOR).strip()
        config = json.loads((self.bed.pki / "admin.kubeconfig").read_text())
        config["users"][0]["user"] = {"token": token}
        (self.directory / "operator.kubeconfig").write_text(json.dumps(config))
        environment = {"KUBECONFIG": str(self.directory / "operator.kubeconfig"), "POD_NAME": "operator-1", "POD_NAMESPACE": SYSTEM}
        self.operator = Process("operator", [self.options.binaries / "coppice-operator", "run"], self.directory / "operator.log", environment)
        self.operator.start()
        sets = {f"{LEDGER}-{role}" for role in ("etcd", "node", "coordinator")}

        def made():
            expect(self.operator.running(), f"the operator ended: {self.operator.tail()}")
            return {item["metadata"]["name"] for item in self.get("statefulsets")["items"]} == sets

        wait_for("all StatefulSets", made)
        wait_for("a status", lambda: self.conditions().get("Valid", {}).get("status") == "True")
        expect(self.conditions()["Ready"]["status"] == "False", "it is ready without a pod")
        refused = [line for line in self.operator.log.read_text().splitlines() if "orbidden" in line]
        expect(not refused, f"the operator lacks rights: {refused[:3]}")
        return ", ".join(sorted(sets))

    def come_and_go(self):
        """objects of readers come and go with their number, with no more rights."""
        name, kinds = f"{LEDGER}-reader", ("statefulset", "service", "pdb", "networkpolicy")

        def there():
            return [kind for kind in kinds for item in self.get(kind)["items"] if item["metadata"]["name"] == name]

        for count, wanted in ((2, list(kinds)), (0, [])):
            self.kubectl("patch", "ledgercluster", LEDGER, "--type=merge", "--patch", json.dumps({"spec": {"readers": {"count": count}}}))
            wait_for(f"the objects of {count} readers", lambda wanted=wanted: there() == wanted)
        secrets = {item["metadata"]["name"] for item in self.get("secrets")["items"]}
        expect(not {f"{name}-0-tls", f"{name}-1-tls"} & secrets, "certificates of readers that are gone are still there")
        connection = self.get("secret", f"{LEDGER}-writer-tls")["data"]
        expect({"endpoint", "http-endpoint", "ledger.vkey", "ca.crt", "tls.crt", "tls.key"} <= set(connection), f"an application is given {sorted(connection)}")
        refused = [line for line in self.operator.log.read_text().splitlines() if "orbidden" in line]
        expect(not refused, f"the operator lacks rights: {refused[:3]}")

    def clean_up(self):
        """a ledger that is deleted leaves its signing key."""
        self.helm("uninstall", LEDGER, "--namespace", NAMESPACE)
        wait_for("the resource is gone", lambda: not self.get("ledgerclusters")["items"])
        self.get("secret", f"{LEDGER}-signing-key")

    def collect(self):
        if self.operator:
            self.say(self.operator.tail(20))

    def close(self):
        if self.operator:
            self.operator.stop()
        self.bed.down()
