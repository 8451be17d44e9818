#!/bin/sh
# go-tool.sh NAME DIR [PACKAGE [TAGS]]: builds a program of the Go module in DIR into target/tools/,
# once for each state of its sources and pinned versions, and prints its path. Modules come from the
# Go module proxy, and are checked against go.sum.
set -eu
name=$1
dir=$2
package=${3:-.}
tags=${4:-}
root=$(cd "$(dirname "$0")/.." && pwd)
PATH=$PATH:/usr/local/go/bin
if ! command -v go >/dev/null; then
    echo "$name is built from its Go module, and there is no Go: install Go 1.26 (https://go.dev/dl/) into PATH or /usr/local/go" >&2
    exit 1
fi
# A module may use a neighbouring one, through a replacement in its go.mod.
state=$(cd "$dir" && find . $(sed -n 's/^replace .* => \(\.\.\/.*\)/\1/p' go.mod) -name '*.go' -o -name 'go.*' |
    LC_ALL=C sort | xargs cat | sha256sum | cut -c 1-12)
tool=$root/target/tools/$name-$state/$name
if [ ! -x "$tool" ]; then
    mkdir -p "$(dirname "$tool")"
    echo "building $name from its pinned Go module (once; minutes without a cache)" >&2
    # The output is renamed at the end, so that concurrent builds don't see incomplete files.
    (cd "$dir" && GOTOOLCHAIN=local GOFLAGS=-mod=readonly go build -buildvcs=false -trimpath -tags="$tags" -o "$tool.$$" "$package" >&2)
    mv "$tool.$$" "$tool"
fi
echo "$tool"
