#!/usr/bin/env bash
# Tests the pages of the console in Chromium, before real ledgers of target/debug/coppice: that they
# are what their sources give, access by everybody, lying servers, hostile keys and values, sizes.
set -euo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
WEB_TOOLS=$("$root/scripts/install-web.sh" test)
export WEB_TOOLS
cd "$root"
began=$SECONDS
node --test --test-reporter=spec cluster/console/tests/*.test.js
echo "test-console: $((SECONDS - began)) s"
