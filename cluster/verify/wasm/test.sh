#!/usr/bin/env bash
# Tests the module that build.sh has made, in Node, Chromium, Python and Go, and the examples of
# docs/proof-files.md; the clients for JavaScript and Python, and gRPC-web in Node and Chromium,
# against target/debug/coppice; then that a second build has the same bytes.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
WEB_TOOLS=$("$root/scripts/install-web.sh" test)
export WEB_TOOLS PATH=$PATH:/usr/local/go/bin
cd "$root"

step() {
    local began=$SECONDS
    "$@"
    echo "test-wasm: $1 $((SECONDS - began)) s"
}

step node --test --test-reporter=spec cluster/sdk/js/verify/test/*.test.js
# The client finds the package that it needs as an installed one.
mkdir -p cluster/sdk/js/client/node_modules/@coppice
ln -sfn ../../../verify cluster/sdk/js/client/node_modules/@coppice/verify
step node --test --test-reporter=spec cluster/sdk/js/client/test/*.test.js
PYTHONPATH=$WEB_TOOLS/python:cluster/sdk/python step python3 -m unittest discover -s cluster/sdk/python/tests
PYTHONPATH=$WEB_TOOLS/python step node "$WEB_TOOLS/node_modules/pyright/index.js" --project cluster/sdk/python
export GOTOOLCHAIN=local GOFLAGS=-mod=readonly
step node --test --test-reporter=spec cluster/http/tests/*.test.js
step go -C cluster/verify/interop/wazero test -count=1 ./...
step "$here/reproducible.sh"
