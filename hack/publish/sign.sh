#!/usr/bin/env bash
# Signs a file: sign.sh FILE KEY. FILE.sig is the signature that `cosign verify-blob --key FILE.pub` checks: ECDSA over the file's SHA-256, in
# base64. FILE.pub is the public key. `sign.sh --check KEY` only says whether the key will do.
# KEY is a PEM file. RELEASE_KEY_PASSWORD opens it if it is encrypted.
set -euo pipefail
file=$1 key=$2
options=(-passin "pass:")
[ -z "${RELEASE_KEY_PASSWORD:-}" ] || options=(-passin env:RELEASE_KEY_PASSWORD)

fail() {
  echo "sign.sh: $*" >&2
  exit 1
}
[ -r "$key" ] || fail "RELEASE_KEY: $key cannot be read; make a key with: openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out $key"
public=$(openssl pkey -in "$key" "${options[@]}" -pubout 2>/dev/null) ||
  fail "RELEASE_KEY: $key is no private key in PEM, or needs RELEASE_KEY_PASSWORD (cosign's own encrypted keys cannot be used)"
openssl pkey -pubin -noout -text <<<"$public" | grep -q 'ASN1 OID: prime256v1' || fail "RELEASE_KEY: $key is not an ECDSA key on P-256"
[ "$file" != --check ] || exit 0

printf '%s\n' "$public" >"$file.pub"
openssl dgst -sha256 -sign "$key" "${options[@]}" "$file" | base64 -w 0 >"$file.sig"
