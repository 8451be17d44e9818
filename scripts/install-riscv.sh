#!/usr/bin/env bash
# install-riscv.sh: installs Debian's compiler for RISC-V, pinned, and prints the prefix of its
# tools. It measures the size of the kernel for memory modules. Installing needs root.
set -euo pipefail

package=gcc-riscv64-unknown-elf
version=12.2.0-14+deb12u1+11+b2
prefix=/usr/bin/riscv64-unknown-elf-

fail() {
    echo "install-riscv.sh: $1" >&2
    exit 1
}

command -v dpkg-query >/dev/null || fail "this is not Debian 12, from which $package comes"
if [ "$(dpkg-query -W -f '${Version}' "$package" 2>/dev/null)" != "$version" ]; then
    [ "$(id -u)" = 0 ] || fail "as root: apt-get install $package=$version"
    apt-get update -qq >&2
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$package=$version" >&2 ||
        fail "apt-get could not install $package=$version"
fi
[ -x "${prefix}gcc" ] || fail "${prefix}gcc is missing"
echo "$prefix"
