#!/usr/bin/env bash
# walk.sh ENDPOINT LEDGER.VKEY SECOND.PY
set -euo pipefail
records=$1/v1/records
proof='Accept: application/vnd.coppice.proof'
ask() { curl -sSf --max-time 30 "$@"; }
check() { python3 "$2" "$1" --key "@$3"; }

# A commit, with the receipt that the ledger has signed it.
ask "$records/curl%2Falice" -X PUT -H 'Coppice-Write: any' -H "$proof" -d 100 -o receipt -D head
version=$(sed -n 's/^coppice-version: *[0-9]*\.\([0-9]*\).*/\1/ip' head)
check receipt "$3" "$2" >told
grep -q '^valid' told
echo "committed in version $version"

# A read at that version. Say what you expect: a valid proof may be of something else.
ask "$records/curl%2Falice?version=$version" -H "$proof" -o alice.proof
check alice.proof "$3" "$2" >told
grep -q "'curl/alice' has a value .* '100'$" told
grep -q "^  at version $version " told
echo "curl/alice is 100 in version $version"

# What the ledger does, as it comes: the word of a coordinator.
sed -n '/^event: /{s/^event: /an entry is a /p;q}' < <(curl -sN --max-time 30 "$1/v1/watch?from=1")
