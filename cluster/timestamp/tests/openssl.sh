#!/bin/sh
# openssl.sh DIR: makes roots and time-stamping authorities in DIR, by the `openssl` command.
# openssl.sh DIR SECONDS: adds the authority `brief` to DIR. Its certificate expires after SECONDS.
#
# `tsa.cnf` has a section for each way of stamping; `NAME.pem` and `NAME.key` are certificates and
# keys, `below-NAME.pem` has the certificates between a signer and its root, if there are any, and
# `chain-NAME.pem` has both.
set -eu
cd "$1"

P256="EC -pkeyopt ec_paramgen_curve:P-256"
P384="EC -pkeyopt ec_paramgen_curve:P-384"
P521="EC -pkeyopt ec_paramgen_curve:P-521"
RSA="RSA -pkeyopt rsa_keygen_bits:2048"

cat >openssl.cnf <<'END'
[req]
distinguished_name = name
[name]
[ca]
default_ca = default
[default]
database = issued.txt
new_certs_dir = .
rand_serial = yes
unique_subject = no
default_md = sha256
default_days = 3650
policy = any
[any]
commonName = supplied
[root]
basicConstraints = critical, CA:true
keyUsage = critical, keyCertSign, cRLSign
[intermediate]
basicConstraints = critical, CA:true, pathlen:0
keyUsage = critical, keyCertSign, cRLSign
extendedKeyUsage = timeStamping
[no_issuer]
basicConstraints = critical, CA:true
keyUsage = critical, digitalSignature
[tsa]
basicConstraints = critical, CA:false
keyUsage = critical, digitalSignature
extendedKeyUsage = critical, timeStamping
subjectKeyIdentifier = hash
[two_purposes]
keyUsage = critical, digitalSignature
extendedKeyUsage = critical, timeStamping, codeSigning
[another_purpose]
keyUsage = critical, digitalSignature
extendedKeyUsage = critical, codeSigning
[no_purpose]
keyUsage = critical, digitalSignature
[not_critical]
keyUsage = critical, digitalSignature
extendedKeyUsage = timeStamping
[encrypts]
keyUsage = critical, digitalSignature, keyEncipherment
extendedKeyUsage = critical, timeStamping
END
touch issued.txt

# root NAME ALGORITHM
root() {
    openssl genpkey -quiet -algorithm $2 -out "$1.key"
    openssl req -x509 -new -key "$1.key" -subj "/CN=$1" -days 3650 -config openssl.cnf -extensions root -out "$1.pem"
}

# issue NAME ISSUER EXTENSIONS ALGORITHM [START END]: dates as YYYYMMDDhhmmssZ.
issue() {
    openssl genpkey -quiet -algorithm $4 -out "$1.key"
    openssl req -new -key "$1.key" -subj "/CN=$1" -config openssl.cnf -out "$1.csr"
    openssl ca -batch -notext -config openssl.cnf -cert "$2.pem" -keyfile "$2.key" -extensions "$3" \
        ${5:+-startdate "$5" -enddate "$6"} -in "$1.csr" -out "$1.pem"
    between=
    if [ -e "chain-$2.pem" ]; then
        cp "chain-$2.pem" "below-$1.pem"
        between=below-$1.pem
    fi
    cat "$1.pem" $between >"chain-$1.pem"
}

# stamps SECTION SIGNER ACCURACY [LINE...]: a section of tsa.cnf, in which later lines win.
stamps() {
    section=$1
    signer=$2
    accuracy=$3
    shift 3
    if [ -e "below-$signer.pem" ]; then set -- "certs = below-$signer.pem" "$@"; fi
    printf '%s\n' "[$section]" "serial = $section.serial" "signer_cert = $signer.pem" "signer_key = $signer.key" \
        'default_policy = 1.3.6.1.4.1.99999.1.1' 'other_policies = 1.3.6.1.4.1.99999.1.2' 'digests = sha256' \
        'ordering = yes' 'tsa_name = yes' 'signer_digest = sha256' 'ess_cert_id_alg = sha256' \
        ${accuracy:+"accuracy = $accuracy"} "$@" >>tsa.cnf
    echo 01 >"$section.serial"
}

if [ $# -gt 1 ]; then
    issue brief first tsa "$P256" 20200101000000Z "$(date -u -d "+$2 seconds" +%Y%m%d%H%M%SZ)"
    stamps brief brief secs:1
    exit
fi

root first "$P256"
root second "$RSA"
root third "$P384"

issue plain first tsa "$P256"
issue rsa second tsa "$RSA"
issue intermediate first intermediate "$P256"
issue p384 intermediate tsa "$P384"
issue other third tsa "$P256"
issue past first tsa "$P256" 20200101000000Z 20210101000000Z
issue future first tsa "$P256" 20900101000000Z 20910101000000Z
issue outlived first intermediate "$P256" 20200101000000Z 20210101000000Z
issue orphan outlived tsa "$P256"
issue no_issuer first no_issuer "$P256"
issue unfounded no_issuer tsa "$P256"
issue p521 first tsa "$P521"
issue ed25519 first tsa ED25519
for extensions in two_purposes another_purpose no_purpose not_critical encrypts; do
    issue "$extensions" first "$extensions" "$P256"
done

stamps millis plain 'secs:1, millisecs:500' 'clock_precision_digits = 3'
stamps micros plain 'secs:2, millisecs:3, microsecs:4' 'clock_precision_digits = 6'
stamps whole plain secs:1
stamps vague plain ''
stamps rsa rsa secs:1 'signer_digest = sha512'
stamps rsa384 rsa secs:1 'signer_digest = sha384'
stamps p384 p384 secs:1 'signer_digest = sha384' 'ess_cert_id_chain = yes'
stamps mixed p384 secs:1 'ess_cert_id_alg = sha512'
stamps other other secs:1
stamps past past secs:1
stamps future future secs:1
stamps orphan orphan secs:1
stamps unfounded unfounded secs:1
stamps p521 p521 secs:1 'signer_digest = sha512'
stamps sha1 plain secs:1 'ess_cert_id_alg = sha1'
