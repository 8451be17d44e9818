#!/usr/bin/env bash
# A cluster of plain processes on the loopback interface, as docs/operations.md describes one on
# several machines: one etcd, three shard-nodes, two coordinators, every connection by mutual TLS.
#
# Usage: scripts/local-cluster.sh COMMAND DIR [NAME...]
#   init DIR            makes keys, certificates and configuration in a new directory
#   start DIR [NAME...] starts all processes, or those that are named (etcd, node-1..3,
#                       coordinator-1..2), and waits until the cluster serves
#   stop DIR [NAME...]  stops them in order
#   kill DIR NAME...    kills them
#   env DIR             prints the variables for the coppice command:
#                       eval "$(scripts/local-cluster.sh env DIR)"
#
# Environment: BIN, the directory of the binaries [target/debug]; PORT, the first of 20 ports [7400,
# only for init]; WAIT=0, don't wait.
set -euo pipefail
repository=$(realpath "$(dirname "$0")/..")
bin=$(realpath "${BIN:-$repository/target/debug}")
nodes=(node-1 node-2 node-3)
coordinators=(coordinator-1 coordinator-2)

usage() { sed -n '2,/^set/p' "$0" | sed 's/^# \{0,1\}//;/^set/d' >&2; exit 2; }
fail() { echo "local-cluster.sh: $*" >&2; exit 1; }

init() {
  local port=${PORT:-7400} cluster name ordinal
  [ ! -e "$dir/cluster.toml" ] || fail "$dir has a cluster already"
  mkdir -p "$dir"
  "$bin/coppice" keygen --out "$dir/ledger.key" >/dev/null
  cluster=$(sed 's/+.*//; s/.*\///' "$dir/ledger.vkey")
  local certify="$repository/scripts/certificates.sh"
  "$certify" "$dir/tls" etcd none 127.0.0.1 localhost
  for name in "${nodes[@]}"; do "$certify" "$dir/tls" "$name" node 127.0.0.1 localhost; done
  for name in "${coordinators[@]}"; do "$certify" "$dir/tls" "$name" coordinator 127.0.0.1 localhost; done
  "$certify" "$dir/tls" client writer,operator,auditor
  # The settings that all processes share.
  cat >"$dir/cluster.toml" <<END
cluster_id = "$cluster"

[ledger]
shards = 2
END
  ordinal=0
  for name in "${nodes[@]}"; do
    ordinal=$((ordinal + 1))
    printf '\n[nodes.%s]\nordinal = %d\naddress = "127.0.0.1:%d"\n' "$name" $ordinal $((port + ordinal)) >>"$dir/cluster.toml"
    cat >"$dir/$name.toml" <<END
node = "$name"
data_dir = "$dir/$name"
listen = "127.0.0.1:$((port + ordinal))"
# Groups that don't exist yet are formed. This may stay: a node that comes back empty joins
# existing groups.
bootstrap = "new"

[metadata]
endpoints = ["https://127.0.0.1:$((port + 8))"]
$(files "$name")
$(tls "$name")
END
  done
  ordinal=0
  for name in "${coordinators[@]}"; do
    ordinal=$((ordinal + 1))
    cat >"$dir/$name.toml" <<END
name = "$name"
listen = "127.0.0.1:$((port + 10 + ordinal))"
advertise = "127.0.0.1:$((port + 10 + ordinal))"
http_listen = "127.0.0.1:$((port + 12 + ordinal))"
signing_key_file = "$dir/ledger.key"

[metadata]
endpoints = ["https://127.0.0.1:$((port + 8))"]
$(files "$name")
$(tls "$name")
END
  done
  echo "$port" >"$dir/port"
}

files() { printf 'ca = "%s"\ncert = "%s"\nkey = "%s"\n' "$dir/tls/ca.pem" "$dir/tls/$1.pem" "$dir/tls/$1.key"; }
tls() { printf '\n[tls]\n%s\n' "$(files "$1")"; }

# A process that has ended is a zombie until its parent has waited for it.
alive() { kill -0 "$1" 2>/dev/null && ! grep -q '^State:[[:space:]]*Z' "/proc/$1/status" 2>/dev/null; }
running() { [ -f "$dir/$1.pid" ] && alive "$(cat "$dir/$1.pid")"; }

launch() {
  local name=$1 port
  ! running "$name" || return 0
  case $name in
    etcd)
      port=$(cat "$dir/port")
      set -- "$("$repository/scripts/install-etcd.sh")" --name etcd --data-dir "$dir/etcd" --log-level warn \
        --listen-client-urls "https://127.0.0.1:$((port + 8))" --advertise-client-urls "https://127.0.0.1:$((port + 8))" \
        --listen-peer-urls "http://127.0.0.1:$((port + 9))" --initial-advertise-peer-urls "http://127.0.0.1:$((port + 9))" \
        --initial-cluster "etcd=http://127.0.0.1:$((port + 9))" \
        --cert-file "$dir/tls/etcd.pem" --key-file "$dir/tls/etcd.key" --client-cert-auth --trusted-ca-file "$dir/tls/ca.pem"
      ;;
    node-*) set -- "$bin/coppice-shard-node" --config "$dir/cluster.toml" --config "$dir/$name.toml" ;;
    coordinator-*) set -- "$bin/coppice-coordinator" --config "$dir/cluster.toml" --config "$dir/$name.toml" ;;
    *) fail "there is no $name" ;;
  esac
  nohup "$@" >>"$dir/$name.log" 2>&1 </dev/null &
  echo $! >"$dir/$name.pid"
}

variables() {
  local port
  port=$(cat "$dir/port")
  cat <<END
export COPPICE_ENDPOINT=${1:-https://127.0.0.1:$((port + 11))}
export COPPICE_CA=$dir/tls/ca.pem COPPICE_CLIENT_CERT=$dir/tls/client.pem COPPICE_CLIENT_KEY=$dir/tls/client.key
export COPPICE_TRUST=@$dir/ledger.vkey
END
}

# Waits until every running coordinator answers. Those named in the arguments must be running.
wait_until_served() {
  local name endpoint limit=$((SECONDS + 90))
  for name in "${coordinators[@]}"; do
    if ! running "$name"; then
      case " $* " in *" $name "*) tail -n 5 "$dir/$name.log" >&2; fail "$name has ended" ;; esac
      continue
    fi
    endpoint=https://$(sed -n 's/^listen = "\(.*\)"/\1/p' "$dir/$name.toml")
    until (eval "$(variables "$endpoint")"; "$bin/coppice" head >/dev/null 2>&1); do
      running "$name" || { tail -n 5 "$dir/$name.log" >&2; fail "$name has ended"; }
      [ $SECONDS -lt $limit ] || { tail -n 5 "$dir"/*.log >&2; fail "$name does not serve"; }
      sleep 0.2
    done
  done
}

# Sends a signal and waits for the end.
end() {
  local signal=$1 name=$2 pid limit=$((SECONDS + 30))
  running "$name" || { rm -f "$dir/$name.pid"; return 0; }
  pid=$(cat "$dir/$name.pid")
  kill "-$signal" "$pid"
  while alive "$pid"; do
    [ $SECONDS -lt $limit ] || fail "$name does not end"
    sleep 0.05
  done
  rm -f "$dir/$name.pid"
}

[ $# -ge 2 ] || usage
command=$1
mkdir -p "$2"
dir=$(realpath "$2")
shift 2
case $command in
  init) init ;;
  start)
    [ -f "$dir/cluster.toml" ] || fail "$dir has no cluster: scripts/local-cluster.sh init $dir"
    [ $# -gt 0 ] || set -- etcd "${nodes[@]}" "${coordinators[@]}"
    for name in "$@"; do launch "$name"; done
    [ "${WAIT:-1}" = 0 ] || wait_until_served "$@"
    ;;
  stop)
    # Each kind of process is stopped before those that it calls.
    [ $# -gt 0 ] || set -- "${coordinators[@]}" "${nodes[@]}" etcd
    for name in "$@"; do end TERM "$name"; done
    ;;
  kill)
    [ $# -gt 0 ] || usage
    for name in "$@"; do end KILL "$name"; done
    ;;
  env) variables ;;
  *) usage ;;
esac
