#!/bin/sh
# alerts.sh: checks the chart's alert rules with promtool, and runs their tests.
set -eu
cd "$(dirname "$0")/.."
promtool=$(scripts/go-tool.sh promtool scripts/prometheus github.com/prometheus/prometheus/cmd/promtool remove_all_sd)
"$promtool" check rules --lint=all --lint-fatal charts/coppice/files/alerts.yaml
"$promtool" test rules charts/tests/alerts.yaml
