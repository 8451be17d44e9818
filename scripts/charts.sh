#!/usr/bin/env bash
# charts.sh [--bless]: lints the charts and compares what they render with charts/golden, or replaces that.
set -euo pipefail
cd "$(dirname "$0")/.."
# As the bed builds it, so that nothing is compiled twice.
export CGO_ENABLED=0
helm=$(scripts/go-tool.sh helm e2e/bed helm.sh/helm/v3/cmd/helm)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export HELM_CACHE_HOME=$work/cache HELM_CONFIG_HOME=$work/config HELM_DATA_HOME=$work/data
# A helm from the module alone takes Kubernetes 1.20 for granted.
version=(--kube-version 1.33.0)
failed=0

render() { # CHART NAME [VALUES...]
    local chart=$1 name=$2
    shift 2
    local golden=charts/golden/$chart-$name.yaml
    "$helm" template ledger "charts/$chart" --namespace bank "${version[@]}" "$@" >"$work/out.yaml"
    if [ "${bless:-}" ]; then
        cp "$work/out.yaml" "$golden"
    elif ! diff -u "$golden" "$work/out.yaml"; then
        failed=1
    fi
}

# What the schema must refuse, with a word of what is said.
refused() { # CHART WORD [VALUES...]
    local chart=$1 word=$2
    shift 2
    if "$helm" template ledger "charts/$chart" "${version[@]}" "$@" >"$work/out.yaml" 2>"$work/said"; then
        echo "charts/$chart takes $*" >&2
        failed=1
    elif ! grep -q -- "$word" "$work/said"; then
        echo "charts/$chart refuses $* without the word $word:" >&2
        cat "$work/said" >&2
        failed=1
    fi
}

if [ "${1:-}" = --bless ]; then bless=1; mkdir -p charts/golden; fi
for chart in coppice-operator coppice; do
    "$helm" lint --strict --quiet "${version[@]}" "charts/$chart"
    render "$chart" default
done
render coppice-operator one-namespace --set watchNamespace=bank,replicas=2
render coppice choices -f charts/golden/choices.values.yaml
render coppice plaintext --set spec.tls.plaintext=true
refused coppice volumePolicy --set volumePolicy=Perhaps
refused coppice count --set nodes.count=0
refused coppice nodez --set nodez.count=3
refused coppice otlpEndpoint --set telemetry.otlpEndpoint=collector:4317
refused coppice interval --set monitoring.podMonitor.interval=often
refused coppice-operator replicas --set replicas=0
exit $failed
