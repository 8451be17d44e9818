#!/bin/sh
# sigstore.sh SERVER DIR [FLAG...]: runs sigstore's authority, sends it each DIR/*.tsq, keeps the
# answers as .tsr, and its certificates as chain.pem.
#
# The authority always listens on port 2112 of all interfaces, too. So it gets a network of its own,
# and a tree of processes of its own, which ends with this script.
set -eu
if [ -z "${COPPICE_APART:-}" ]; then
    user=--map-root-user
    if [ "$(id -u)" = 0 ]; then user=; fi
    COPPICE_APART=1 exec unshare $user --net --pid --fork --kill-child "$0" "$@"
fi
server=$1
cd "$2"
shift 2
ip link set lo up
url=http://127.0.0.1:3000
"$server" serve --host 127.0.0.1 --port 3000 --disable-ntp-monitoring "$@" >server.log 2>&1 &
for _ in $(seq 300); do
    if curl -fs --max-time 5 "$url/ping" >/dev/null; then break; fi
    sleep 0.1
done
curl -fsS --max-time 30 "$url/api/v1/timestamp/certchain" >chain.pem || { cat server.log >&2; exit 1; }
for query in *.tsq; do
    curl -sS --max-time 30 -H 'Content-Type: application/timestamp-query' --data-binary "@$query" \
        -o "${query%.tsq}.tsr" "$url/api/v1/timestamp"
done
