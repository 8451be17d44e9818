#!/bin/sh
# `protoc` for the build scripts of dependencies. It is built at its first use, apart from the build
# that is running. Those scripts inherit variables of their own cargo, which must not reach this
# one.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
target=$root/target/protoc
env -i PATH="$PATH" HOME="${HOME:-/}" ${CARGO_HOME:+CARGO_HOME="$CARGO_HOME"} ${RUSTUP_HOME:+RUSTUP_HOME="$RUSTUP_HOME"} \
    ${RUSTUP_TOOLCHAIN:+RUSTUP_TOOLCHAIN="$RUSTUP_TOOLCHAIN"} \
    cargo build --quiet --locked --manifest-path "$root/Cargo.toml" --package coppice-protoc --target-dir "$target" >&2
exec "$target/debug/protoc" "$@"
