#!/usr/bin/env bash
# install-web.sh [build|test]: installs the pinned tools that build the verifier for the web, or all
# that test it, and prints the folder of those that are not Debian's.
#
# From Debian, for which this needs root: a Rust compiler with its library's sources (no target of
# rustup's is needed), a linker; for tests Chromium. From npm and PyPI into target/tools: wasm-opt;
# for tests TypeScript, a checker of Python's types, connect-web, a driver of browsers, wasmtime.
# Node 20 or newer must be there, with npm.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/.." && pwd)
# The release of the compiler decides every byte of the module.
rust=1.96.0
purpose=${1:-build}

fail() {
    echo "install-web.sh: $1" >&2
    exit 1
}

# missing PACKAGE..: those that are not installed
missing() {
    local package
    for package in "$@"; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q '^install ok' || echo "$package"
    done
}

install() {
    command -v dpkg-query >/dev/null || fail "this is not Debian, from which $* come"
    local packages wanted=()
    mapfile -t packages < <(missing "$@")
    [ ${#packages[@]} -gt 0 ] || return 0
    local package
    for package in "${packages[@]}"; do
        case $package in
        rust*) wanted+=("$package=$rust*") ;;
        *) wanted+=("$package") ;;
        esac
    done
    [ "$(id -u)" = 0 ] || fail "as root: apt-get install ${wanted[*]}"
    echo "installing ${packages[*]}" >&2
    apt-get update -qq >&2
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-remove --no-install-recommends "${wanted[@]}" >&2 ||
        fail "apt-get could not install ${wanted[*]}; another release of Rust needs its number in this script"
}

node -e 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)' 2>/dev/null ||
    fail "Node 20 or newer is needed: install nodejs"
command -v npm >/dev/null || fail "npm is needed: install it"
install rustc-web rust-web-src lld-19
[ "$(/usr/bin/rustc -vV | sed -n 's/^release: //p')" = "$rust" ] || fail "/usr/bin/rustc is not $rust"

state=$(cat "$here/web/package-lock.json" "$here/web/requirements.txt" | sha256sum | cut -c 1-12)
tools=$root/target/tools/web-$state
if [ ! -d "$tools/node_modules" ]; then
    mkdir -p "$tools.$$"
    cp "$here/web/package.json" "$here/web/package-lock.json" "$tools.$$"
    (cd "$tools.$$" && npm ci --ignore-scripts --no-audit --no-fund --silent >&2) || fail "npm ci failed"
    # Concurrent installations make the same folder: the first one stays.
    mkdir -p "$tools"
    mv -T "$tools.$$/node_modules" "$tools/node_modules" 2>/dev/null || true
    rm -rf "$tools.$$"
fi
if [ "$purpose" = test ]; then
    install chromium
    if [ ! -d "$tools/python" ]; then
        python3 -m pip install --quiet --root-user-action=ignore --no-deps --require-hashes --target "$tools/python.$$" \
            -r "$here/web/requirements.txt" >&2 || fail "pip could not install wasmtime"
        mv -T "$tools/python.$$" "$tools/python" 2>/dev/null || rm -rf "$tools/python.$$"
    fi
fi
echo "$tools"
