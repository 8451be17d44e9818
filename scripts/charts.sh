#!/usr/bin/env bash
# charts.sh [--bless]: lints the charts and compares their output with charts/golden, or replaces
# that directory's files.
set -euo pipefail
cd "$(dirname "$0")/.."
# The bed sets this, too, so that nothing is compiled twice.
export CGO_ENABLED=0
helm=$(scripts/go-tool.sh helm e2e/bed helm.sh/helm/v3/cmd/helm)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export HELM_CACHE_HOME=$work/cache HELM_CONFIG_HOME=$work/config HELM_DATA_HOME=$work/data
# A helm built from the bare module assumes Kubernetes 1.20.
version=(--kube-version 1.33.0)
failed=0
rendered=()

render() { # CHART NAME [VALUES...]
    local chart=$1 name=$2
    shift 2
    local golden=charts/golden/$chart-$name.yaml
    rendered+=("$golden")
    "$helm" template ledger "charts/$chart" --namespace bank "${version[@]}" "$@" >"$work/out.yaml"
    if [ "${bless:-}" ]; then
        cp "$work/out.yaml" "$golden"
    elif ! diff -u "$golden" "$work/out.yaml"; then
        failed=1
    fi
}

# Checks that the schema refuses values, with a message that contains a word.
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
# A cosigner has no defaults for keys and addresses.
cosigner=charts/golden/cosigner.values.yaml
"$helm" lint --strict --quiet "${version[@]}" charts/coppice-cosigner -f "$cosigner"
render coppice-cosigner choices -f "$cosigner"
render coppice-operator one-namespace --set watchNamespace=bank,replicas=2
render coppice choices -f charts/golden/choices.values.yaml
render coppice plaintext --set spec.tls.plaintext=true
render coppice one-process --set oneProcess=true,nodes.count=1
for golden in charts/golden/*.yaml; do
    case $golden in *.values.yaml) continue ;; esac
    case " ${rendered[*]} " in
        *" $golden "*) ;;
        *) echo "$golden is not rendered by anything: delete it" >&2; failed=1 ;;
    esac
done
refused coppice volumePolicy --set volumePolicy=Perhaps
refused coppice count --set nodes.count=0
refused coppice nodez --set nodez.count=3
refused coppice otlpEndpoint --set telemetry.otlpEndpoint=collector:4317
refused coppice interval --set monitoring.podMonitor.interval=often
refused coppice-operator replicas --set replicas=0
refused coppice readers --set readers.count=33
refused coppice pim --set readers.pim.dpus=4
refused coppice library --set readers.pim.library=../libdpu
refused coppice-cosigner ledgerKey -f "$cosigner" --set ledgerKey=
refused coppice-cosigner peers -f "$cosigner" --set-json 'peers=[]'
refused coppice-cosigner keySecret -f "$cosigner" --set keySecret=
refused coppice-cosigner replicas -f "$cosigner" --set replicas=2
refused coppice-cosigner ca -f "$cosigner" --set ca.secret=other
exit $failed
