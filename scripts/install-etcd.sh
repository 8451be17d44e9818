#!/bin/sh
# Builds the pinned etcd server (scripts/etcd/go.mod) into target/tools/, and prints its path.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
exec "$here/go-tool.sh" etcd "$here/etcd"
