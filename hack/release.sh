#!/usr/bin/env bash
# Builds programs for images and archives, and lists the Go modules in each: release.sh OUT VERSION [PROGRAM]…
# The same source, Go and librbd give the same bytes, wherever and whenever they are built (hack/reproduce.sh tests this).
# NAME.cdx.json lists a program's Go modules in CycloneDX format; the Debian packages are in each image's own dpkg database.
# GOOS and GOARCH choose another platform, for all programs but csi-controller: it links librbd, which is C.
set -euo pipefail
out=$(realpath -m "$1")
version=$2
shift 2
[ $# -gt 0 ] || set -- csi-controller csi-node escached escache-cache kubectl-escache
cd "$(dirname "$0")/.."

build() { go build -trimpath -buildvcs=false -ldflags "-s -w -buildid= -X main.version=$version" -o "$out/" "$@"; }

mkdir -p "$out"
lister=$(GOOS='' GOARCH='' go tool -modfile=hack/tools/cyclonedx-gomod/go.mod -n cyclonedx-gomod)
suffix=$(go env GOEXE)
for name in "$@"; do
  case $name in
    csi-controller) build -tags "$(hack/ceph-tags.sh)" ./cmd/csi-controller ;;
    *) CGO_ENABLED=0 build "./cmd/$name" ;;
  esac
  "$lister" bin -json -noserial -notimestamp -version "v0.0.0-$version" -output "$out/$name.cdx.json" "$out/$name$suffix"
done
