#!/usr/bin/env bash
# Builds the module a second time, from a copy of its sources in another folder, and fails unless
# the bytes are equal. It does so once for each state of the sources.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
dir=${WASM_TARGET_DIR:-$root/target/wasm}
sources=(Cargo.toml cluster/types cluster/verify/Cargo.toml cluster/verify/src cluster/verify/wasm scripts)
module=$root/cluster/sdk/js/verify/verify.wasm

sum=$(sha256sum "$module" | cut -d ' ' -f 1)
sources_list() {
    cd "$root"
    find "${sources[@]}" -type f -not -path '*/target/*' | LC_ALL=C sort | xargs sha256sum
}
state=$({ (sources_list); echo "$sum"; } | sha256sum | cut -c 1-16)
if [ -e "$dir/reproduced-$state" ]; then
    echo "the module was built twice from these sources, with the same bytes"
    exit
fi
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
(cd "$root" && tar -c --exclude=target "${sources[@]}") | tar -x -C "$copy"
# The tools are not built again.
mkdir -p "$copy/target"
ln -s "$root/target/tools" "$copy/target/tools"
WASM_TARGET_DIR=$copy/elsewhere "$copy/cluster/verify/wasm/build.sh" "$copy/verify.wasm" >/dev/null
again=$(sha256sum "$copy/verify.wasm" | cut -d ' ' -f 1)
if [ "$sum" != "$again" ]; then
    echo "the module is not reproducible: $sum here, $again from a copy of the sources" >&2
    exit 1
fi
cmp "$dir/trust.wasm" "$copy/elsewhere/trust.wasm"
mkdir -p "$dir"
touch "$dir/reproduced-$state"
echo "built twice, in two folders, with the same bytes: sha256 $sum"
