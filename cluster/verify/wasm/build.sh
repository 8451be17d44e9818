#!/usr/bin/env bash
# build.sh [OUT]: builds the verifier as a WebAssembly module without imports, and puts it into the
# packages for JavaScript and Python, or into OUT. The rules of trust are a small module of their
# own, for JavaScript.
#
# Equal sources give equal bytes, wherever they lie: no path gets into the module.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
target=wasm32-unknown-unknown
dir=${WASM_TARGET_DIR:-$root/target/wasm}
tools=$("$root/scripts/install-web.sh" build)

# A fault traps at once, without words that would make the module larger. Memory is bounded, so a
# hostile file can't take more of the host's. Compact rounds of SHA-2 spare 4 KB of the download.
flags=(
    -Zunstable-options -Cpanic=immediate-abort -Zlocation-detail=none -Zfmt-debug=none
    -Clink-arg=--max-memory=2147483648 "--cfg=sha2_backend_soft=\"compact\""
    "--remap-path-prefix=$root=/coppice" "--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo"
)
export RUSTFLAGS="${flags[*]}" RUSTC=/usr/bin/rustc RUSTC_BOOTSTRAP=1
export CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER=wasm-ld-19
export RUSTC_WRAPPER=$here/rustc.sh
# These settings are for the compiler of the product, and not for this one.
unset RUSTC_WORKSPACE_WRAPPER CARGO_ENCODED_RUSTFLAGS CARGO_BUILD_TARGET
cd "$here"

# module NAME: the module of this feature.
module() {
    cargo build --quiet --release --locked --target $target --target-dir "$dir" \
        --no-default-features --features "$1" \
        -Zbuild-std=core,alloc -Zbuild-std-features=optimize_for_size >&2
    # No pointer wraps around: the first KiB of memory is the end of the stack, never that deep.
    node "$tools/node_modules/binaryen/bin/wasm-opt" -Os --converge --low-memory-unused --all-features \
        --strip-producers --strip-target-features \
        "$dir/$target/release/coppice_verify_wasm.wasm" -o "$dir/$1.wasm"
}

module trust
module verify

if [ $# -gt 0 ]; then
    cp "$dir/verify.wasm" "$1"
else
    cp "$dir/verify.wasm" "$dir/trust.wasm" "$root/cluster/sdk/js/verify/"
    cp "$dir/verify.wasm" "$root/cluster/sdk/python/coppice_verify/verify.wasm"
fi
size="$(wc -c <"$dir/verify.wasm") bytes, $(gzip -9 -c "$dir/verify.wasm" | wc -c) gzipped"
echo "$dir/verify.wasm: $size, sha256 $(sha256sum "$dir/verify.wasm" | cut -d ' ' -f 1)"
