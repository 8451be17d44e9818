"""Certificates, and an API server with its etcd: the part of Kubernetes that runs on any
machine."""

import base64
import contextlib
import json
import os
import pathlib
import shutil
import socket
import subprocess

from programs import Programs, default_cache, eventually, run

# The network of the cluster's services; its first address is the API server's.
SERVICES, API_SERVICE = "10.73.0.0/16", "10.73.0.1"


class Authority:
    """Makes the certificates of a cluster, in one folder."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir(parents=True)
        # The system's own configuration would make every certificate an authority.
        (folder / "openssl.cnf").write_text("[req]\ndistinguished_name = name\n[name]\n")

    def make(self, name, subject, *extensions, by=None):
        options = [word for extension in extensions for word in ("-addext", extension)]
        signer = ["-CA", f"{by}.crt", "-CAkey", f"{by}.key"] if by else []
        run("openssl", "req", "-x509", "-config", "openssl.cnf", "-days", "30", "-nodes", "-newkey", "ec", "-pkeyopt",
            "ec_paramgen_curve:prime256v1", "-keyout", f"{name}.key", "-out", f"{name}.crt", "-subj", subject, *signer, *options,
            cwd=self.folder)

    def root(self, name):
        self.make(name, f"/CN={name}", "basicConstraints=critical,CA:true", "keyUsage=critical,keyCertSign,cRLSign")

    def leaf(self, name, subject, *hosts, by="ca"):
        names = [f"subjectAltName={','.join(hosts)}"] if hosts else []
        self.make(name, subject, "basicConstraints=critical,CA:false", "keyUsage=critical,digitalSignature",
                  "extendedKeyUsage=serverAuth,clientAuth", *names, by=by)

    def kubeconfig(self, name, server):
        def data(file):
            return base64.b64encode((self.folder / file).read_bytes()).decode()

        config = {
            "apiVersion": "v1", "kind": "Config", "current-context": "bed",
            "clusters": [{"name": "bed", "cluster": {"server": server, "certificate-authority-data": data("ca.crt")}}],
            "users": [{"name": name, "user": {"client-certificate-data": data(f"{name}.crt"), "client-key-data": data(f"{name}.key")}}],
            "contexts": [{"name": "bed", "context": {"cluster": "bed", "user": name}}],
        }
        (self.folder / f"{name}.kubeconfig").write_text(json.dumps(config))


def certify_api(made, address, server):
    """The certificates of an API server, its etcd, and an administrator."""
    for name in ("ca", "etcd-ca", "front-ca"):
        made.root(name)
    kubernetes = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"]
    made.leaf("apiserver", "/CN=kube-apiserver", *(f"DNS:{name}" for name in kubernetes), f"IP:{address}", f"IP:{API_SERVICE}")
    made.leaf("etcd", "/CN=etcd", "IP:127.0.0.1", by="etcd-ca")
    made.leaf("etcd-client", "/CN=kube-apiserver", by="etcd-ca")
    made.leaf("front", "/CN=front", by="front-ca")
    made.leaf("apiserver-kubelet", "/O=system:masters/CN=apiserver-kubelet")
    made.leaf("admin", "/O=system:masters/CN=admin")
    made.kubeconfig("admin", server)
    run("openssl", "genpkey", "-algorithm", "RSA", "-out", "accounts.key", cwd=made.folder)
    run("openssl", "pkey", "-in", "accounts.key", "-pubout", "-out", "accounts.pub", cwd=made.folder)


def api_server(pki, data, address, port, client_port, peer_port):
    """The arguments of an API server and its etcd."""
    client, peer = f"https://127.0.0.1:{client_port}", f"http://127.0.0.1:{peer_port}"
    return {
        # A bed doesn't outlive the machine, so etcd need not sync; the disk is left to the
        # processes under test.
        "etcd": {
            "name": "bed", "data-dir": data, "unsafe-no-fsync": "true", "log-level": "warn",
            "listen-client-urls": client, "advertise-client-urls": client, "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer, "initial-cluster": f"bed={peer}",
            "client-cert-auth": "true", "trusted-ca-file": pki / "etcd-ca.crt", "cert-file": pki / "etcd.crt", "key-file": pki / "etcd.key",
        },
        "kube-apiserver": {
            "advertise-address": address, "secure-port": port, "allow-privileged": "true", "authorization-mode": "Node,RBAC",
            "enable-admission-plugins": "NodeRestriction", "service-cluster-ip-range": SERVICES,
            "etcd-servers": client, "etcd-cafile": pki / "etcd-ca.crt", "etcd-certfile": pki / "etcd-client.crt",
            "etcd-keyfile": pki / "etcd-client.key",
            "client-ca-file": pki / "ca.crt", "tls-cert-file": pki / "apiserver.crt", "tls-private-key-file": pki / "apiserver.key",
            "kubelet-preferred-address-types": "InternalIP", "kubelet-certificate-authority": pki / "ca.crt",
            "kubelet-client-certificate": pki / "apiserver-kubelet.crt", "kubelet-client-key": pki / "apiserver-kubelet.key",
            "requestheader-client-ca-file": pki / "front-ca.crt", "requestheader-allowed-names": "front",
            "requestheader-username-headers": "X-Remote-User", "requestheader-group-headers": "X-Remote-Group",
            "requestheader-extra-headers-prefix": "X-Remote-Extra-",
            "proxy-client-cert-file": pki / "front.crt", "proxy-client-key-file": pki / "front.key",
            "service-account-issuer": "https://kubernetes.default.svc.cluster.local",
            "service-account-key-file": pki / "accounts.pub", "service-account-signing-key-file": pki / "accounts.key",
        },
    }


def launch(programs, name, arguments, log):
    """Starts a program; its output goes to a log of its name."""
    with open(log / f"{name}.log", "ab") as out:
        command = [str(programs.folder / name), *(f"--{option}={value}" for option, value in arguments.items())]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)


class Api:
    """An API server and its etcd on the loopback interface, without anything that runs pods. It
    needs no privileges."""

    PROGRAMS = ("kube-apiserver", "kubectl", "helm")

    def __init__(self, directory, cache=None):
        self.directory = pathlib.Path(directory).resolve()
        self.programs = Programs(cache or default_cache())
        self.pki = self.directory / "pki"
        self.running = []

    def up(self):
        with contextlib.ExitStack() as stack:
            sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
            self.port, client, peer = (taken.getsockname()[1] for taken in sockets)
        shutil.rmtree(self.directory, ignore_errors=True)
        made = Authority(self.pki)
        certify_api(made, "127.0.0.1", self.server())
        log = self.directory / "log"
        log.mkdir()
        arguments = api_server(self.pki, self.directory / "etcd", "127.0.0.1", self.port, client, peer)
        self.running = [launch(self.programs, name, arguments[name] | more, log)
                        for name, more in (("etcd", {}), ("kube-apiserver", {"bind-address": "127.0.0.1", "cert-dir": self.pki}))]
        eventually("the API server is ready", 120, lambda: self.kubectl("get", "--raw", "/readyz"))

    def server(self):
        return f"https://127.0.0.1:{self.port}"

    def command(self, *words):
        return ["env", f"PATH={self.programs.folder}:{os.environ['PATH']}", f"KUBECONFIG={self.pki}/admin.kubeconfig", *map(str, words)]

    def kubectl(self, *words, **options):
        return run(*self.command("kubectl", *words), **options)

    def down(self):
        for process in reversed(self.running):
            process.kill()
            process.wait()
