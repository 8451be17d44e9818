#!/usr/bin/env bash
# Builds the verifier for wasm32-unknown-unknown, and judges stored proofs with it in node.
#
# The target comes from the toolchain (`rustup target add wasm32-unknown-unknown`), or from
# WASM_RUSTC, a rustc with its library sources (Debian: rustc-web, rust-web-src, lld); then the
# library is built, too.
#
# A missing target or a missing node is an error. COPPICE_WITHOUT_WASM=1 allows the absence of the
# target, COPPICE_WITHOUT_NODE=1 that of node; the script then says what it did not check.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
dir="${CARGO_TARGET_DIR:-$root/target}/wasm"
target=wasm32-unknown-unknown
build=(build --release --target "$target" --manifest-path "$dir/Cargo.toml" --target-dir "$dir/target")

# missing WHAT INSTALL VARIABLE: fails, unless the variable allows the absence
missing() {
    if [ "${!3:-}" = 1 ]; then
        echo "NOT CHECKED: wasm32: $1, and $3=1 allows its absence" >&2
        exit 0
    fi
    echo "wasm32: $1: install it ($2), or set $3=1 to go without" >&2
    exit 1
}

mkdir -p "$dir"
cp "$root/Cargo.lock" "$dir/Cargo.lock"
cat > "$dir/Cargo.toml" <<TOML
[package]
name = "verify-no-std"
version = "0.0.0"
edition = "2024"
publish = false

[workspace]

[lib]
path = "$here/tests/no-std/lib.rs"
crate-type = ["cdylib"]

[dependencies]
coppice-verify = { path = "$here" }

[profile.release]
panic = "abort"
opt-level = "s"
lto = true
TOML

sources() { [ -d "$("$1" --print sysroot)/lib/rustlib/src/rust/library" ]; }

if [ -d "$(rustc --print target-libdir --target "$target" 2>/dev/null || echo /nowhere)" ]; then
    cargo "${build[@]}" --offline
elif [ -n "${WASM_RUSTC:-}" ] && sources "$WASM_RUSTC"; then
    RUSTC="$WASM_RUSTC" RUSTC_BOOTSTRAP=1 cargo "${build[@]}" -Zbuild-std=core,alloc
else
    missing "no $target in the toolchain, and WASM_RUSTC names no rustc with sources" \
        "rustup target add $target" COPPICE_WITHOUT_WASM
fi

module="$dir/target/$target/release/verify_no_std.wasm"
echo "wasm32: $(wc -c < "$module") bytes"
command -v node > /dev/null ||
    missing "built, but there is no node to run it" "Debian: apt-get install nodejs" COPPICE_WITHOUT_NODE
node "$here/tests/no-std/run.mjs" "$module" "$here/vectors/proofs.json"
