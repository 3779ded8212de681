#!/usr/bin/env bash
# Makes the Debian package of escached: deb.sh OUT VERSION ARCH DIR. DIR has escached, escache-cache and their lists of modules for ARCH.
set -euo pipefail
out=$(realpath "$1") version=$2 arch=$3 dir=$(realpath "$4")
cd "$(dirname "$0")/../.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
nfpm=$(go tool -modfile=hack/tools/nfpm/go.mod -n nfpm)
program=$dir/escached
[ "$arch" = "$(go env GOHOSTARCH)" ] || program=$dir/../$(go env GOHOSTARCH)/escached # the text is the same for all
"$program" completion bash >"$work/completion"
time=$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)

file() { # FROM TO MODE
  printf '  - src: "%s"\n    dst: %s\n    file_info: {mode: 0%s, owner: root, group: root, mtime: "%s"}\n' "$1" "$2" "$3" "$time"
}
{
  cat <<END
name: escached
arch: $arch
platform: linux
version: $version
version_schema: semver
section: admin
priority: optional
maintainer: escache-csi <https://github.com/escache/escache-csi>
homepage: https://github.com/escache/escache-csi
license: Apache-2.0
mtime: $time
description: |
  replicated write-back caches over Ceph RBD images
  escached serves the escache HTTP API on an NVMe host. It makes caches from LVM,
  DRBD, dm-writecache and krbd of the stock kernel. Install it only where the Helm
  chart of escache-csi does not run escached itself (escached.mode: host).
depends: [dmsetup, drbd-utils, kmod, lvm2, mount, util-linux]
scripts:
  postinstall: hack/publish/deb/postinst.sh
  preremove: hack/publish/deb/prerm.sh
  postremove: hack/publish/deb/postrm.sh
deb: {compression: xz}
contents:
END
  file "$dir/escached" /usr/sbin/escached 755
  file "$dir/escache-cache" /usr/sbin/escache-cache 755
  file hack/publish/deb/escached.service /usr/lib/systemd/system/escached.service 644
  file hack/publish/deb/escached.yaml /usr/share/doc/escached/examples/escached.yaml 644
  file LICENSE /usr/share/doc/escached/copyright 644
  file "$dir/escached.cdx.json" /usr/share/escache/escached.cdx.json 644
  file "$dir/escache-cache.cdx.json" /usr/share/escache/escache-cache.cdx.json 644
  file "$work/completion" /usr/share/bash-completion/completions/escached 644
  printf '  - {dst: /etc/escache, type: dir, file_info: {mode: 0755, owner: root, group: root, mtime: "%s"}}\n' "$time"
} >"$work/nfpm.yaml"
# Not Debian's own name for the file: web sites change its ~.
"$nfpm" package --config "$work/nfpm.yaml" --packager deb --target "$out/escached_${version#v}_$arch.deb" >"$work/log" || {
  cat "$work/log" >&2
  exit 1
}
