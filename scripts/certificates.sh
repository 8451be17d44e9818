#!/usr/bin/env bash
# Makes certificates for the processes of a cluster: an authority, if DIR has none, and one certificate of it.
#
# Usage: scripts/certificates.sh DIR NAME HOST...
#   DIR/ca.pem, DIR/ca.key        the cluster's authority; the key signs, so keep it away from the machines that run the cluster
#   DIR/NAME.pem, DIR/NAME.key    a certificate for a process that is reached as HOST (names or IP addresses)
#
# Any other way to make certificates will do: what counts is that all are of one authority that makes none for anybody else,
# that each names the hosts by which its process is reached, and that it may be used by servers and clients.
set -euo pipefail
if [ $# -lt 3 ]; then sed -n '2,/^set/p' "$0" | sed 's/^# \{0,1\}//;/^set/d' >&2; exit 2; fi
dir=$1 name=$2
shift 2
umask 077
mkdir -p "$dir"
curve=(-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes)
if [ ! -f "$dir/ca.pem" ]; then
  openssl req -x509 "${curve[@]}" -keyout "$dir/ca.key" -out "$dir/ca.pem" -days 3650 -subj "/CN=coppice authority" \
    -addext "basicConstraints=critical,CA:TRUE" -addext "keyUsage=critical,keyCertSign,cRLSign" 2>/dev/null
fi
hosts=
for host in "$@"; do
  case $host in
    *:*|[0-9]*.[0-9]*.[0-9]*.[0-9]*) hosts+=,IP:$host ;;
    *) hosts+=,DNS:$host ;;
  esac
done
openssl req "${curve[@]}" -keyout "$dir/$name.key" -out "$dir/$name.csr" -subj "/CN=$name" 2>/dev/null
openssl x509 -req -in "$dir/$name.csr" -CA "$dir/ca.pem" -CAkey "$dir/ca.key" -CAcreateserial -days 825 -out "$dir/$name.pem" 2>/dev/null \
  -extfile <(printf 'basicConstraints=CA:FALSE\nkeyUsage=digitalSignature\nextendedKeyUsage=serverAuth,clientAuth\nsubjectAltName=%s\n' "${hosts#,}")
rm -f "$dir/$name.csr"
