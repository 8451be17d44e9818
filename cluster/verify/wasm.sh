#!/usr/bin/env bash
# Builds the verifier for wasm32-unknown-unknown and, where there is node, verifies stored proofs in it.
#
# The target comes from the toolchain (`rustup target add wasm32-unknown-unknown`), or from WASM_RUSTC, a rustc with its
# library sources (Debian: rustc-web, rust-web-src, lld), for which the library is built along. Without either, this
# says so and succeeds.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
dir="${CARGO_TARGET_DIR:-$root/target}/wasm"
target=wasm32-unknown-unknown
build=(build --release --target "$target" --manifest-path "$dir/Cargo.toml" --target-dir "$dir/target")

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
    echo "NOT CHECKED: wasm32: no $target in the toolchain, and WASM_RUSTC names no rustc with sources" >&2
    exit 0
fi

module="$dir/target/$target/release/verify_no_std.wasm"
echo "wasm32: $(wc -c < "$module") bytes"
if command -v node > /dev/null; then
    node "$here/tests/no-std/run.mjs" "$module" "$here/vectors/proofs.json"
else
    echo "NOT CHECKED: wasm32: built, but there is no node to run it" >&2
fi
