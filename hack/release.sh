#!/usr/bin/env bash
# Builds the programs as the images have them, and lists what is in each: release.sh OUT VERSION [PROGRAM]…
# From the same source, Go and librbd they are the same byte for byte, wherever and whenever they are built (hack/reproduce.sh shows it).
# NAME.cdx.json is a program's list of Go modules in CycloneDX's form; Debian's packages are in each image's own dpkg database.
set -euo pipefail
out=$(realpath -m "$1")
version=$2
shift 2
[ $# -gt 0 ] || set -- csi-controller csi-node escached kubectl-escache
cd "$(dirname "$0")/.."

build() { go build -trimpath -buildvcs=false -ldflags "-s -w -buildid= -X main.version=$version" -o "$out/" "$@"; }

mkdir -p "$out"
lister=$(go tool -modfile=hack/tools/cyclonedx-gomod/go.mod -n cyclonedx-gomod)
for name in "$@"; do
  case $name in
    csi-controller) build -tags "$(hack/ceph-tags.sh)" ./cmd/csi-controller ;; # librbd is C
    *) CGO_ENABLED=0 build "./cmd/$name" ;;
  esac
  "$lister" bin -json -noserial -notimestamp -version "v0.0.0-$version" -output "$out/$name.cdx.json" "$out/$name"
done
