#!/bin/sh
# cargo-tool.sh NAME VERSION: builds a program from crates.io into target/tools/, once for each
# version, and prints the folder of its binaries. It is not optimised: for cargo-deny, that is a
# minute instead of six.
set -eu
name=$1
version=$2
root=$(cd "$(dirname "$0")/.." && pwd)
tool=$root/target/tools/$name-$version
if [ ! -x "$tool/bin/$name" ]; then
    echo "building $name $version (once; minutes)" >&2
    cargo install "$name" --version "$version" --locked --debug --root "$tool" >&2
fi
echo "$tool/bin"
