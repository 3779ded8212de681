#!/usr/bin/env bash
# Builds the images of csi-node and escached for another processor, without running anything on it: foreign.sh OUT VERSION ARCH DIR.
# DIR has the programs for ARCH. Debian's packages are unpacked and their scripts are not run; none of them is needed for the files that the
# programs use. Each program of an image is then tried under emulation. csi-controller links librbd, which is C: it is not built here.
# Needs root. SOURCE_DATE_EPOCH is the time of all files.
set -euo pipefail
umask 022 # for the files in images and archives
out=$(realpath "$1") version=$2 arch=$3 programs=$(realpath "$4")
cd "$(dirname "$0")/../.."
. hack/publish/archive.sh

case $arch in
  arm64) emulator=qemu-aarch64-static ;;
  *)
    echo "foreign.sh: nobody has tried $arch; arm64 is the one that works" >&2
    exit 1
    ;;
esac
missing=()
for package in buildah qemu-user-static; do
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends -o DPkg::Lock::Timeout=600 "${missing[@]}" >&2
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export BUILDAH_ISOLATION=chroot
buildah() { command buildah --root "$work/store" --runroot "$work/run" --storage-driver vfs "$@"; }

# apt resolves and downloads for an empty system of that processor, with this machine's keys and settings for the network.
mirror=${DEBIAN_MIRROR:-http://deb.debian.org}
mkdir -p "$work/apt/lists/partial" "$work/apt/cache/archives/partial"
: >"$work/apt/status"
for suite in bookworm bookworm-updates bookworm-security; do
  path=debian
  [ "$suite" != bookworm-security ] || path=debian-security
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror/$path $suite main"
done >"$work/apt/sources.list"
foreign_apt() {
  apt-get -q -y -o APT::Architecture="$arch" -o APT::Architectures="$arch" -o Dir::Etc::SourceList="$work/apt/sources.list" -o Dir::Etc::SourceParts=- \
    -o Dir::State="$work/apt" -o Dir::State::status="$work/apt/status" -o Dir::Cache="$work/apt/cache" -o APT::Sandbox::User=root \
    -o Dpkg::Use-Pty=0 "$@" >"$work/apt.log" 2>&1 || {
    tail "$work/apt.log" >&2
    exit 1
  }
}
foreign_apt update

unpack() { # ROOT PACKAGE…: the packages and what they depend on
  local root=$1 deb folder
  shift
  rm -f "$work"/apt/cache/archives/*.deb
  foreign_apt install --download-only --no-install-recommends "$@"
  mkdir -p "$root"/usr/{bin,sbin,lib} "$root"/{proc,sys,dev,run,tmp} "$root/var/lib/dpkg"
  for folder in bin sbin lib; do ln -s "usr/$folder" "$root/$folder"; done
  for deb in "$work"/apt/cache/archives/*.deb; do
    dpkg-deb --fsys-tarfile "$deb" | tar -x --keep-directory-symlink -C "$root"
    { dpkg-deb --field "$deb" && printf 'Status: install ok unpacked\n\n'; } >>"$root/var/lib/dpkg/status" # for scanners
  done
  # What base-passwd's script would do.
  cp "$root/usr/share/base-passwd/passwd.master" "$root/etc/passwd"
  cp "$root/usr/share/base-passwd/group.master" "$root/etc/group"
  chmod 1777 "$root/tmp"
  rm -rf "$root"/usr/share/{doc,locale,man}/* "$root"/var/log/*
}
emulated() { # ROOT PROGRAM…: prints what the program prints
  local root=$1 printed
  shift
  printed=$(timeout 300 "$emulator" -L "$root" "$root$1" "${@:2}" 2>&1) || {
    printf 'foreign.sh: %s fails on %s:\n%s\n' "$*" "$arch" "$printed" >&2
    return 1
  }
  printf '%s\n' "$printed"
}
try() { # ROOT NAME
  local root=$1 program
  emulated "$root" /bin/sh -c 'echo works' | grep -qx works
  case $2 in
    escached)
      emulated "$root" /usr/local/bin/escached version | grep -qxF "$version"
      emulated "$root" /usr/local/bin/escache-cache version | grep -qxF "$version"
      for program in /usr/sbin/chroot /bin/cp /bin/mkdir /bin/mv /bin/chmod /bin/sed; do emulated "$root" "$program" --version >/dev/null; done
      ;;
    csi-node)
      emulated "$root" /usr/local/bin/csi-node --version | grep -qF "$version"
      for program in /sbin/mkfs.xfs /sbin/xfs_repair /sbin/blkid /bin/mount /bin/umount; do emulated "$root" "$program" -V >/dev/null; done
      grep -q '^#!/bin/' "$root/usr/sbin/xfs_growfs" || emulated "$root" /usr/sbin/xfs_growfs -V >/dev/null
      truncate -s 16M "$work/disk"
      emulated "$root" /sbin/mkfs.ext4 -q -F "$work/disk"
      truncate -s 32M "$work/disk"
      emulated "$root" /sbin/e2fsck -f -y "$work/disk" >/dev/null
      emulated "$root" /sbin/resize2fs "$work/disk" >/dev/null
      emulated "$root" /sbin/e2fsck -f -n "$work/disk" >/dev/null
      ;;
  esac
}
image() { # NAME PACKAGE…
  local name=$1 root=$work/$1 id
  shift
  unpack "$root" base-files base-passwd coreutils dash sed "$@"
  install -D -m 755 "$programs/$name" "$root/usr/local/bin/$name"
  install -D -m 644 "$programs/$name.cdx.json" "$root/usr/share/escache/$name.cdx.json"
  if [ "$name" = escached ]; then # it starts one for each volume
    install -m 755 "$programs/escache-cache" "$root/usr/local/bin/escache-cache"
    install -m 644 "$programs/escache-cache.cdx.json" "$root/usr/share/escache/escache-cache.cdx.json"
  fi
  try "$root" "$name"
  find "$root" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
  id=$(buildah from --arch "$arch" scratch)
  buildah add -q "$id" "$root" / >/dev/null
  buildah config --arch "$arch" --os linux --entrypoint "[\"/usr/local/bin/$name\"]" \
    --env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$id"
  buildah commit -q --rm --timestamp "$SOURCE_DATE_EPOCH" "$id" "localhost/$name:$arch" >/dev/null
  rm -rf "$work/layout"
  buildah push -q "localhost/$name:$arch" "oci:$work/layout:$version"
  name_layout "$work/layout" "${REGISTRY:-ghcr.io}/${REPOSITORY:-escache}/$name:$version"
  archive "$out/${name}_${version}_linux_$arch.oci.tar" "$work/layout" .
}
image escached
image csi-node e2fsprogs mount util-linux xfsprogs
echo "foreign.sh: built and tried for $arch: escached csi-node"
