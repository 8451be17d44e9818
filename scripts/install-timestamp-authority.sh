#!/bin/sh
# Builds sigstore's pinned time-stamping authority (scripts/timestamp-authority/go.mod) into
# target/tools/, and prints its path.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
exec "$here/go-tool.sh" timestamp-server "$here/timestamp-authority" \
    github.com/sigstore/timestamp-authority/v2/cmd/timestamp-server
