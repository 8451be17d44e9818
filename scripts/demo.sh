#!/usr/bin/env bash
# Shows all of Coppice in under two minutes: starts a cluster of 2 shards x 3 replicas in one
# process, commits this repository's own git history, reads, proves, verifies offline, prunes and
# rolls back, and stops. Leaves nothing behind.
#
# Usage: scripts/demo.sh COPPICE_BINARY
set -euo pipefail

coppice=$(realpath "$1")
repository=$(realpath "$(dirname "$0")/..")
work=$(mktemp -d)
server=
stop() {
  if [ -n "$server" ] && kill -INT "$server" 2>/dev/null; then wait "$server" || true; fi
  rm -rf "$work"
}
trap stop EXIT

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
run() {
  printf '$ coppice %s\n' "$*"
  "$coppice" "$@"
}
# The first lines of a long output, truncated. It reads all of its input, since a program that
# writes into a closed pipe fails.
first() { awk -v lines="$1" 'NR <= lines { print substr($0, 1, 100) }'; }
# The number after a name in a JSON object.
field() { sed -n "s/.*\"$1\":\([0-9]*\).*/\1/p" | head -n 1; }

# 200 versions of transfers between 500 accounts, for a checkout without git history.
accounts() {
  awk 'BEGIN {
    srand(7)
    printf "{\"note\":\"opening\",\"put\":["
    for (i = 0; i < 500; i++) { balance[i] = 1000; printf "%s[\"account/%03d\",\"1000\"]", i ? "," : "", i }
    print "]}"
    for (v = 2; v <= 200; v++) {
      a = int(rand() * 500); b = (a + 1 + int(rand() * 499)) % 500; sum = int(rand() * 100)
      balance[a] -= sum; balance[b] += sum
      printf "{\"note\":\"transfer %d\",\"put\":[[\"account/%03d\",\"%d\"],[\"account/%03d\",\"%d\"]]}\n", v, a, balance[a], b, balance[b]
    }
  }'
}

if [ "$(git -C "$repository" rev-parse --is-shallow-repository 2>/dev/null)" = false ]; then
  source=(--git "$repository") split=docs/ key=README.md low=docs/ high=docs0
else
  say "No full git history here: generated accounts instead."
  accounts > "$work/accounts.jsonl"
  source=("$work/accounts.jsonl") split=account/250 key=account/007 low=account/000 high=account/010
fi

say "A cluster: 2 shards and the root group, 3 raft replicas each, one coordinator, in one process"
"$coppice" dev --data-dir "$work/data" --split "$split" --replicas 3 > "$work/ready" 2> "$work/log" &
server=$!
for _ in $(seq 300); do
  grep -q '^ready ' "$work/ready" && break
  kill -0 "$server" 2>/dev/null || { cat "$work/log" >&2; exit 1; }
  sleep 0.1
done
COPPICE_ENDPOINT=$(sed -n 's/^ready //p' "$work/ready")
[ -n "$COPPICE_ENDPOINT" ] || { echo "the cluster did not get ready:" >&2; cat "$work/log" >&2; exit 1; }
export COPPICE_ENDPOINT
run status

say "Load: one commit is one version, a path is a key, a file is a value"
run load "${source[@]}"
run head
last=$("$coppice" head --json | field version)
middle=$(((last + 1) / 2))

say "A record with its proof, and the offline verification: nothing is needed but the ledger's public key"
run get "$key" --proof "$work/record.proof" | first 12
run verify "$work/record.proof" --key "@$work/data/ledger.vkey"
run get no/such/key --proof "$work/absence.proof" || true
run verify "$work/absence.proof" --key "@$work/data/ledger.vkey"
run range "$low" "$high" --limit 3 --proof "$work/range.proof" | first 20
run verify "$work/range.proof" --key "@$work/data/ledger.vkey"

say "History: every version stays readable and provable"
run history "$key" --limit 5
run diff "$((last > 1 ? last - 1 : 0))" "$last" | first 20
run get "$key" --version "$middle" | first 5 || true

if [ "$last" -gt 1 ]; then
  say "Prune: versions below $middle go, the root log says who and why"
  run prune --before "$middle" --reason "demonstration" --yes
  run get "$key" --version "$((middle - 1))" || echo "(exit code $?: refused, as it should be)"

  say "Rollback: back to version $((last - 1)), in a new epoch, in the open"
  run rollback --to "$((last - 1))" --reason "demonstration" --yes
  run head
  run get "$key" --version "$last" || echo "(exit code $?: refused, as it should be)"
  run log --from "$last"

  say "The old proof against a newer checkpoint: version $last does not stand any more"
  run checkpoint --proof "$work/newer" --since "$work/record.proof" > /dev/null
  run verify "$work/record.proof" --key "@$work/data/ledger.vkey" --checkpoint "$work/newer" || echo "(exit code $?: as it should be)"
fi

say "Done. The cluster stops now; try 'coppice dev --data-dir DIR' yourself."
