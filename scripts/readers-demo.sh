#!/usr/bin/env bash
# Shows who does the work of reads: starts three voters, a reader, and a reader with emulated memory
# modules (docs/pim.md), as processes on the loopback interface. Loads records, reads keys one by
# one, each with a proof that the client checks, and prints the split of the work. A rollback and a
# prune come in between. Leaves nothing behind.
#
# Usage: scripts/readers-demo.sh
#
# Environment: BIN, the directory of the binaries [target/debug]; N, records [1000000]; READS,
# single reads of the three rounds together [100000]; CLIENTS that read at a time [192]; PORT, the
# first of 20 ports [7460].
set -euo pipefail
repository=$(realpath "$(dirname "$0")/..")
bin=$(realpath "${BIN:-$repository/target/debug}")
n=${N:-1000000} reads=${READS:-100000} clients=${CLIENTS:-192} port=${PORT:-7460}
work=$(mktemp -d)
pids=()
stop() {
  local pid
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  wait 2>/dev/null || true
  rm -rf "$work"
}
trap stop EXIT
say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
fail() {
  echo "readers-demo.sh: $*" >&2
  tail -n 5 "$work"/*.log >&2
  exit 1
}
# Waits for a command to succeed, for as many seconds as its first argument says.
wait_for() {
  local limit=$((SECONDS + $1)) what=$2
  shift 2
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $limit ] || fail "$what: not in time"
    sleep 0.2
  done
}
metrics() { curl -sf "http://127.0.0.1:$((port + 10 + $1))/metrics"; }
# The sum of a metric's series whose labels have these words.
sum() { metrics "$1" | awk -v name="$2" -v words="${3:-}" '
  index($1, name) == 1 && substr($1, length(name) + 1, 1) ~ /^[{]?$/ && index($0, words) { sum += $NF }
  END { printf "%d", sum }'; }

"$bin/coppice" keygen --out "$work/ledger.key" >/dev/null
key=$(cat "$work/ledger.vkey")
cluster=$(sed 's/+.*//; s/.*\///' "$work/ledger.vkey")
{
  printf 'cluster_id = "%s"\n[ledger]\nshards = 1\n' "$cluster"
  for node in 1 2 3 4 5; do
    printf '[nodes.node-%d]\nordinal = %d\naddress = "127.0.0.1:%d"\n' $node $node $((port + node))
    [ $node -lt 4 ] || printf 'reader = true\n'
  done
} >"$work/cluster.toml"
# Batches that the processor would answer sooner go to the modules, too: this shows them, and does
# not measure them.
cat >"$work/pim.toml" <<'END'
[pim]
library = "emulator"
dpus = 16
records_min = 1000
batch_queries = 64
answer_wait_ms = 45
small_batches = "dpus"
END

start() {
  local node=$1
  shift
  "$bin/coppice-shard-node" --config "$work/cluster.toml" "$@" --node "node-$node" --bootstrap new \
    --listen "127.0.0.1:$((port + node))" --health-listen "127.0.0.1:$((port + 10 + node))" \
    --data-dir "$work/node-$node" --set log=warn >"$work/node-$node.log" 2>&1 &
  pids+=($!)
}

say "Three voters, a reader (node-4), a reader with emulated memory modules (node-5), a coordinator"
for node in 1 2 3 4; do start $node; done
start 5 --config "$work/pim.toml"
"$bin/coppice-coordinator" --config "$work/cluster.toml" --name coordinator-1 --listen "127.0.0.1:$port" \
  --health-listen "127.0.0.1:$((port + 10))" --signing-key-file "$work/ledger.key" --set log=warn \
  --set "metadata.dir=$work/metadata" >"$work/coordinator-1.log" 2>&1 &
pids+=($!)
export COPPICE_ENDPOINT=http://127.0.0.1:$port COPPICE_TRUST=@$work/ledger.vkey
wait_for 90 "the cluster serves" "$bin/coppice" head
learners() { [ "$("$bin/coppice" status --json | grep -o '"learner"' | wc -l)" -ge 2 ]; }
wait_for 90 "both readers join" learners

say "Load: $n records, 1000 in a version"
# The keys that `coppice-bench drive` reads.
python3 - "$n" >"$work/records.jsonl" <<'END'
import json
import sys

MASK = (1 << 64) - 1


def mix(number):
    number = (number + 0x9E3779B97F4A7C15) & MASK
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & MASK
    return number ^ (number >> 31)


count = int(sys.argv[1])
for first in range(0, count, 1000):
    numbers = range(first, min(first + 1000, count))
    put = [[f"{mix(number):016x}{mix(~number & MASK):016x}", f"record {number}"] for number in numbers]
    print(json.dumps({"put": put}))
END
"$bin/coppice" load "$work/records.jsonl"
rm "$work/records.jsonl"

modules_have() { [ "$(sum 5 coppice_pim_version)" = "$1" ]; }
version() { "$bin/coppice" head --json | sed -n 's/.*"version":\([0-9]*\).*/\1/p' | head -n 1; }
until_modules_have_head() { wait_for 300 "the modules have version $(version)" modules_have "$(version)"; }

# Reads until a third of all reads is done. Each proof is checked; a wrong one ends the program.
round() {
  local done=0 result calls errors
  while [ $done -lt $((reads / 3)) ]; do
    result=$("$bin/coppice-bench" drive --endpoints "$COPPICE_ENDPOINT" --key "$key" --mode read --keys "$n" \
      --clients "$clients" --connections 4 --seconds 3 --warmup 0 | tail -n 1)
    calls=$(sed -n 's/.*"calls":\([0-9]*\).*/\1/p' <<<"$result")
    errors=$(sed -n 's/.*"errors":\([0-9]*\).*/\1/p' <<<"$result")
    [ "${errors:-0}" = 0 ] || fail "reads failed: $result"
    [ "${calls:-0}" -gt 0 ] || fail "no read was answered: $result"
    done=$((done + calls))
  done
  echo "$done single reads, all proofs verified"
  total=$((total + done))
}
total=0

say "First round of reads"
until_modules_have_head
round

say "A rollback: a version is written, and becomes undone"
before=$(version)
"$bin/coppice" commit --put "mistake=1" >/dev/null
until_modules_have_head
"$bin/coppice" rollback --to "$before" --reason "the demo's mistake"
"$bin/coppice" commit --put "correction=1" >/dev/null
until_modules_have_head
round

say "A prune: only the newest version is left"
"$bin/coppice" prune --before "$(version)" --reason "the demo needs no history"
versions_left() { [ "$(sum 5 coppice_pim_versions)" -le 1 ]; }
wait_for 60 "older versions leave the modules" versions_left
round

say "The split of the work"
for node in 1 2 3 4 5; do
  case $node in 4) role="reader" ;; 5) role="reader with modules" ;; *) role="voter" ;; esac
  printf 'node-%d %-20s %8d keys looked up\n' $node "$role" "$(sum $node coppice_engine_lookups_total)"
done
printf 'of the keys on node-5, proofs by its modules: %d; left to the engine: %d (late), %d (version not there), %d (too many)\n' \
  "$(sum 5 coppice_pim_queries_total 'outcome="answered"')" "$(sum 5 coppice_pim_queries_total 'outcome="late"')" \
  "$(sum 5 coppice_pim_queries_total 'outcome="unserved"')" "$(sum 5 coppice_pim_queries_total 'outcome="busy"')"
printf 'lookups of the modules: %d by DPUs, %d by the host; %d batches; %d of 16 DPUs in service\n' \
  "$(sum 5 coppice_pim_lookups_total 'by="dpus"')" "$(sum 5 coppice_pim_lookups_total 'by="host"')" \
  "$(sum 5 coppice_pim_batches_total)" "$(sum 5 coppice_pim_dpus 'state="in"')"
printf 'reads by kind of replica: %d of readers, %d of voters\n' \
  "$(sum 0 coppice_read_calls_total 'replica="reader"')" "$(sum 0 coppice_read_calls_total 'replica="voter"')"
say "$total single reads in all. Modules are emulated here, so no time of this run says how fast real ones are."
