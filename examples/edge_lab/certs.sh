#!/usr/bin/env bash
# Makes certificates for a broker in a lab: certs.sh FOLDER NAME...
#
# NAME: how clients call the broker (a host name or an IP address), as many as you like.
# FOLDER then holds ca.crt (for every client), server.crt and server.key (for the broker), and
# ca.key: whoever has that can make certificates that your clients trust. Keep it elsewhere.
set -euo pipefail

if (($# < 2)); then
    echo "usage: certs.sh FOLDER NAME..." >&2
    exit 2
fi
folder=$1
shift
if [[ -e $folder/ca.key || -e $folder/server.key ]]; then
    echo "$folder holds keys already; name another folder" >&2
    exit 1
fi

names=()
for name in "$@"; do
    if [[ $name =~ ^[0-9.]+$ || $name == *:* ]]; then
        names+=("IP:$name")
    else
        names+=("DNS:$name")
    fi
done
alternatives=$(IFS=, && echo "${names[*]}")

umask 077
mkdir -p "$folder"
cd "$folder"
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 3650 \
    -keyout ca.key -out ca.crt -subj "/CN=eaco lab" \
    -addext "basicConstraints=critical,CA:TRUE" -addext "keyUsage=critical,keyCertSign,cRLSign"
openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes \
    -keyout server.key -out server.csr -subj "/CN=$1"
openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 825 \
    -out server.crt -extfile <(printf '%s\n' "subjectAltName=$alternatives" \
        "basicConstraints=critical,CA:FALSE" "keyUsage=critical,digitalSignature" \
        "extendedKeyUsage=serverAuth" "authorityKeyIdentifier=keyid")
rm server.csr
chmod 644 ca.crt server.crt
echo "ca.crt, server.crt and server.key are in $folder, for $alternatives"
