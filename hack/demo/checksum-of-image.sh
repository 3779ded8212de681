#!/usr/bin/env bash
# checksum-of-image.sh POOL/IMAGE FILE: sha256 of a file in the filesystem on an RBD image, read from Ceph without any cache.
# Runs inside a lab, whose mounts are its own.
set -euo pipefail

dir=$(mktemp -d)
cleanup() {
  mountpoint -q "$dir/mnt" && umount "$dir/mnt"
  rm -rf "$dir"
}
trap cleanup EXIT
mkdir "$dir/mnt"
rbd export --no-progress "$1" "$dir/image"
mount -o ro,loop,noload "$dir/image" "$dir/mnt" # noload: a clean image needs no journal replayed
sha256sum "$dir/mnt/$2" | cut -d' ' -f1
