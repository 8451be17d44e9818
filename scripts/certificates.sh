#!/usr/bin/env bash
# Makes certificates for the processes of a cluster: an authority, if DIR has none, and one
# certificate of it.
#
# Usage: scripts/certificates.sh DIR NAME ROLE[,ROLE] [HOST...]
#   DIR/ca.pem, DIR/ca.key        the cluster's authority; the key signs, so keep it away from the
#                                 machines that run the cluster
#   DIR/NAME.pem, DIR/NAME.key    a certificate with these roles: `node` and `coordinator` for
#                                 processes, which are reached as HOST (names or IP addresses);
#                                 `reader`, `writer`, `operator`, `auditor` for clients; `cosigner`
#                                 for the stream of the cosigner NAME; `member` for the member NAME
#                                 of ledgers; `none` for others, for instance etcd
#
# NAME is the process's name, as in [nodes] or `name`: the certificate contains it, and other
# processes demand it. To renew a certificate, run this again: it makes another key and certificate
# of the same authority and replaces each file atomically. Processes that use the files read them
# again within seconds. DAYS is the validity: 30 for nodes and coordinators, 90 for others.
#
# Certificates from any other source work, too, if they fulfil these conditions. All are of one
# authority, which signs for nobody else. Each names the hosts by which its process is reached, and
# may be used by servers and clients. Each has, among its alternative names, a URI
# urn:coppice:role:ROLE for each role, for a node, coordinator or cosigner one URI
# urn:coppice:name:NAME, and for a member of ledgers one URI urn:coppice:member:NAME.
set -euo pipefail
command -v openssl >/dev/null || { echo "certificates.sh: there is no openssl: install it (Debian: apt install openssl)" >&2; exit 1; }
if [ $# -lt 3 ]; then sed -n '2,/^set/p' "$0" | sed 's/^# \{0,1\}//;/^set/d' >&2; exit 2; fi
dir=$1 name=$2 roles=$3
shift 3
umask 077
mkdir -p "$dir"
curve=(-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes)
if [ ! -f "$dir/ca.pem" ]; then
  openssl req -x509 "${curve[@]}" -keyout "$dir/ca.key" -out "$dir/ca.pem" -days 3650 -subj "/CN=coppice authority" \
    -addext "basicConstraints=critical,CA:TRUE" -addext "keyUsage=critical,keyCertSign,cRLSign" 2>/dev/null
fi
names= process= days=90
for role in ${roles//,/ }; do
  case $role in
    node|coordinator)
      [[ $name =~ ^[A-Za-z0-9._-]+$ ]] || { echo "certificates.sh: $name: a process's name may have only letters, digits, . _ and -" >&2; exit 2; }
      names+=,URI:urn:coppice:role:$role process=,URI:urn:coppice:name:$name days=30
      ;;
    cosigner) names+=,URI:urn:coppice:role:$role process=,URI:urn:coppice:name:$name ;;
    reader|writer|operator|auditor) names+=,URI:urn:coppice:role:$role ;;
    member) names+=,URI:urn:coppice:member:$name ;;
    none) ;;
    *) echo "certificates.sh: there is no role $role" >&2; exit 2 ;;
  esac
done
names+=$process
for host in "$@"; do
  case $host in
    *:*|[0-9]*.[0-9]*.[0-9]*.[0-9]*) names+=,IP:$host ;;
    *) names+=,DNS:$host ;;
  esac
done
[ -n "$names" ] || { echo "certificates.sh: $name has neither a role nor a host" >&2; exit 2; }
new=$(mktemp -d "$dir/.$name.XXXXXX")
trap 'rm -rf "$new"' EXIT
openssl req "${curve[@]}" -keyout "$new/key" -out "$new/csr" -subj "/CN=$name" 2>/dev/null
openssl x509 -req -in "$new/csr" -CA "$dir/ca.pem" -CAkey "$dir/ca.key" -set_serial "0x$(openssl rand -hex 16 | sed 's/^./4/')" \
  -days "${DAYS:-$days}" -out "$new/pem" 2>/dev/null \
  -extfile <(printf 'basicConstraints=CA:FALSE\nkeyUsage=digitalSignature\nextendedKeyUsage=serverAuth,clientAuth\nsubjectAltName=%s\n' "${names#,}")
mv "$new/key" "$dir/$name.key"
mv "$new/pem" "$dir/$name.pem"
