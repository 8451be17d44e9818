#!/bin/sh
# libclang.sh: prints a directory with libclang, which generates the bindings of RocksDB: the
# system's, or else a pinned one from PyPI inside the build directory.
set -eu
version=18.1.1
root=$(cd "$(dirname "$0")/.." && pwd)
for dir in "${LIBCLANG_PATH:-}" /usr/lib/llvm-*/lib /usr/lib64 /usr/lib; do
    for file in "$dir"/libclang.so "$dir"/libclang.so.* "$dir"/libclang-*.so "$dir"/libclang-*.so.*; do
        case $file in *cpp*) continue ;; esac
        if [ -n "$dir" ] && [ -e "$file" ]; then
            echo "$dir"
            exit
        fi
    done
done
tool=$root/target/tools/libclang-$version
if [ ! -e "$tool/clang/native/libclang.so" ]; then
    rm -rf "$tool.$$"
    if ! python3 -m pip install --quiet --no-deps --target "$tool.$$" "libclang==$version" >&2; then
        echo "no libclang: install it (Debian: apt install libclang-dev) or let pip reach PyPI" >&2
        exit 1
    fi
    rm -rf "$tool"
    mv "$tool.$$" "$tool"
fi
echo "$tool/clang/native"
