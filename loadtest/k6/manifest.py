#!/usr/bin/env python3
"""Prints a Job that puts load on a ledger from inside its Kubernetes cluster, and a ConfigMap with
the scripts: for `kubectl apply -f -`.

    loadtest/k6/manifest.py payment --namespace bank --endpoint https://ledger.bank.svc:7411 \\
        --trust "$VKEY" --ca-secret ledger-load-tls --client-secret ledger-load-tls \\
        --judge-image REGISTRY/coppice:TAG DURATION=1m RATE=50/s | kubectl apply -f -

The pod has a container with k6 and one with the judge of proofs. The Job fails if a service level
or a proof does not hold; the summary is in k6's log. The judge is in Coppice's own image, or for
`ledger` in that of k6. `scripts/image.py` makes an image of k6 where the public one is not
available, or not enough.
"""

import argparse
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))

import load  # noqa: E402

K6_IMAGE = "docker.io/grafana/k6:1.8.1"
SCRIPTS, SECRETS, JUDGE_PORT = "/scripts", "/tls", 7420
NOBODY = 65532


def files():
    """The scripts and protocols, by their paths in the repository."""
    paths = [path for path in HERE.rglob("*.js") if path.name != "tests.js"]
    paths += [*HERE.rglob("*.proto"), ROOT / "proto" / "coppice" / "v1" / "ledger.proto"]
    return {str(path.relative_to(ROOT)): path.read_text() for path in sorted(paths)}


def connection(options):
    """Variables, volumes and mounts with which k6 reaches the ledger."""
    variables, sources = {"COPPICE_ENDPOINT": options.endpoint}, []
    if options.ca_secret:
        variables["COPPICE_CA"] = f"{SECRETS}/ca.crt"
        sources.append({"secret": {"name": options.ca_secret, "items": [{"key": "ca.crt", "path": "ca.crt"}]}})
    if options.client_secret:
        variables |= {"COPPICE_CLIENT_CERT": f"{SECRETS}/tls.crt", "COPPICE_CLIENT_KEY": f"{SECRETS}/tls.key"}
        names = [{"key": name, "path": name} for name in ("tls.crt", "tls.key")]
        sources.append({"secret": {"name": options.client_secret, "items": names}})
    volume = [{"name": "tls", "projected": {"sources": sources, "defaultMode": 0o444}}] if sources else []
    return variables, volume, [{"name": "tls", "mountPath": SECRETS, "readOnly": True}] if sources else []


def container(name, image, **more):
    restricted = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    return {"name": name, "image": image, "securityContext": restricted, **more}


def made(words):
    options = parser().parse_intermixed_args(words)
    if options.scenario in load.OF_MEMBERS and options.k6_image == K6_IMAGE:
        parser().error(f"{options.scenario} needs the k6 that scripts/k6 builds: name its image with --k6-image")
    known = load.parameters()
    given = {}
    for pair in options.parameters:
        name, equals, value = pair.partition("=")
        if not equals or name not in known:
            parser().error(f"{pair}: it is NAME=VALUE, and NAME one of {', '.join(known)}")
        given[name] = value
    name = options.name or f"load-{options.scenario}"
    contents = files()
    keys = {path: path.replace("/", "_") for path in contents}
    variables, volumes, mounts = connection(options)
    variables |= {"SCENARIO": options.scenario, "JUDGE": f"http://127.0.0.1:{JUDGE_PORT}", "HOME": "/tmp", **load.QUIET, **given}
    of_members = options.scenario in load.OF_MEMBERS
    judge = container("judge", options.k6_image if of_members else options.judge_image, restartPolicy="Always",
                      command=[*load.judge_of(options.scenario, "k6", "coppice-bench"), "--key", options.trust, "--listen", f"127.0.0.1:{JUDGE_PORT}"])
    k6 = container("k6", options.k6_image, env=[{"name": variable, "value": value} for variable, value in variables.items()],
                   command=["k6", "run", "--quiet", "--address", "", f"{SCRIPTS}/loadtest/k6/main.js"],
                   volumeMounts=[{"name": "scripts", "mountPath": SCRIPTS, "readOnly": True}, {"name": "tmp", "mountPath": "/tmp"}, *mounts])
    scripts = {"name": "scripts", "configMap": {"name": name, "items": [{"key": key, "path": path} for path, key in keys.items()]}}
    pod = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "securityContext": {"runAsNonRoot": True, "runAsUser": NOBODY, "runAsGroup": NOBODY, "seccompProfile": {"type": "RuntimeDefault"}},
        # The judge starts before k6, and ends after it.
        "initContainers": [judge],
        "containers": [k6],
        "volumes": [scripts, {"name": "tmp", "emptyDir": {}}, *volumes],
    }
    labels = {"app.kubernetes.io/name": "coppice-load", "app.kubernetes.io/instance": name}
    metadata = {"name": name, "labels": labels, **({"namespace": options.namespace} if options.namespace else {})}
    return {"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {keys[path]: text for path, text in contents.items()}},
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata,
         "spec": {"backoffLimit": 0, "template": {"metadata": {"labels": labels}, "spec": pod}}},
    ]}


def parser():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario")
    parser.add_argument("parameters", nargs="*", metavar="NAME=VALUE", help="the parameters that `make load` takes from the environment")
    parser.add_argument("--endpoint", required=True, help="https://SERVICE.NAMESPACE.svc:PORT")
    parser.add_argument("--trust", required=True, metavar="VKEY", help="the ledger's public key: `status.vkey` of a LedgerCluster")
    parser.add_argument("--judge-image", required=True, metavar="IMAGE", help="the image of Coppice, which contains coppice-bench")
    parser.add_argument("--k6-image", default=K6_IMAGE, metavar="IMAGE", help=f"an image with k6 [{K6_IMAGE}]")
    parser.add_argument("--ca-secret", metavar="NAME", help="a secret whose ca.crt is the authority of the ledger's certificate")
    parser.add_argument("--client-secret", metavar="NAME", help="a secret whose tls.crt and tls.key are the client's, if the ledger demands them")
    parser.add_argument("--namespace", help="[that of kubectl]")
    parser.add_argument("--name", help="the name of the Job and the ConfigMap [load-SCENARIO]")
    return parser


if __name__ == "__main__":
    print(json.dumps(made(sys.argv[1:]), indent=2))
