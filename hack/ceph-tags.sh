#!/usr/bin/env bash
# Prints the go-ceph build tag for the installed librbd headers: go build -tags "$(hack/ceph-tags.sh)" ./cmd/csi-controller
# Prints nothing for releases that go-ceph supports untagged. LIBRBD_H names another header.
set -euo pipefail

header=${LIBRBD_H:-/usr/include/rbd/librbd.h}
if [ ! -r "$header" ]; then
  echo "ceph-tags.sh: $header is missing: run hack/setup.sh build" >&2
  exit 1
fi
# librbd's minor version grows with each Ceph release; librados' version has been 3.0 since Nautilus.
minor=$(awk '/^#define LIBRBD_VER_MINOR/ { print $3 }' "$header")
case $minor in
  1[0-5])
    echo "ceph-tags.sh: librbd 1.$minor is older than Ceph 16 (Pacific), the oldest supported release" >&2
    exit 1
    ;;
  16) echo pacific ;;
  17) echo quincy ;;
  18) echo reef ;;
  19) echo squid ;;
  *) ;;
esac
