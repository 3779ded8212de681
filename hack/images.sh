#!/usr/bin/env bash
# Builds the images and tries each: images.sh [TARGET]… It makes the base images from Debian's packages and uses no registry.
# Needs root and some minutes. It works in a temporary directory; IMAGES_DIR=DIR uses and keeps DIR, and makes the next run faster.
# IMAGES_OUT=DIR also writes DIR/TARGET.tar for `ctr images import`, with the image name that the chart expects and the chart's tag,
# or the tag IMAGES_TAG.
# IMAGES_OCI=DIR writes DIR/TARGET_VERSION_linux_ARCH.oci.tar, OCI archives for a release, named REGISTRY/REPOSITORY/TARGET:VERSION
# (ghcr.io, escache). IMAGES_VERSION=VERSION is what the programs print, and the tag there.
set -euo pipefail
umask 022 # for the files in images and archives
cd "$(dirname "$0")/.."

targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(escached csi-node csi-controller)
missing=()
for program in buildah debootstrap; do command -v "$program" >/dev/null || missing+=("$program"); done
if [ ${#missing[@]} -gt 0 ]; then
  DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends -o DPkg::Lock::Timeout=600 "${missing[@]}"
fi
dir=${IMAGES_DIR:-$(mktemp -d)}
mkdir -p "$dir"
exec 9>"$dir/lock"
flock 9
# This isolation needs no daemon and no user namespaces.
export BUILDAH_ISOLATION=chroot
buildah() { command buildah --root "$dir/store" --runroot "$dir/run" "$@"; }
clean() { # an interrupted build leaves mounts
  awk -v dir="$dir/" 'index($2, dir) == 1 { print $2 }' /proc/mounts | sort -r | xargs -r umount
  [ -n "${IMAGES_DIR:-}" ] || rm -rf "$dir"
}
trap clean EXIT

version=${IMAGES_VERSION:-test}
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
. hack/publish/archive.sh

bootstrap() {
  debootstrap --variant=minbase --include=ca-certificates bookworm "$dir/base" >"$dir/debootstrap.log" 2>&1 || {
    tail "$dir/debootstrap.log" >&2
    exit 1
  }
  mirror=$(sed -n 's/^deb \([^ ]*\) .*/\1/p' "$dir/base/etc/apt/sources.list" | head -n 1)
  printf 'deb %s bookworm main\ndeb %s bookworm-updates main\ndeb %s bookworm-security main\n' \
    "$mirror" "$mirror" "${mirror%/debian*}/debian-security" >"$dir/base/etc/apt/sources.list"
}
upgrade='apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get upgrade -q -y &&
  rm -rf /var/cache/apt/*.bin /var/cache/apt/archives/*.deb /var/lib/apt/lists/* /var/log/* /var/cache/ldconfig /usr/share/doc/* /usr/share/locale/* /usr/share/man/*'
base() { # NAME [FROM:TO]…
  local name=$1 id
  shift
  ! buildah inspect --type image "$name" >/dev/null 2>&1 || return 0 # kept from an earlier run
  [ -e "$dir/base/etc/debian_version" ] || bootstrap
  id=$(buildah from scratch)
  buildah add -q "$id" "$dir/base" / >/dev/null
  buildah run "$id" -- sh -c "$upgrade" >"$dir/upgrade.log" 2>&1 || {
    tail "$dir/upgrade.log" >&2
    exit 1
  }
  for copy in "$@"; do buildah add -q "$id" "${copy%%:*}" "${copy#*:}" >/dev/null; done
  buildah config --env "PATH=/usr/local/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" "$id"
  buildah commit -q --rm --timestamp "$SOURCE_DATE_EPOCH" "$id" "$name" >/dev/null
}
oci() { # TARGET: writes the OCI archive
  local name=${REGISTRY:-ghcr.io}/${REPOSITORY:-escache}/$1:$version layout
  layout=$dir/layout
  rm -rf "$layout"
  buildah push -q "localhost/$1:test" "oci:$layout:$version"
  name_layout "$layout" "$name"
  mkdir -p "$IMAGES_OCI"
  archive "$IMAGES_OCI/${1}_${version}_linux_$(go env GOARCH).oci.tar" "$layout" .
}
base localhost/base:1
base localhost/build-base:1 "$(go env GOROOT):/usr/local/go"

tag=${IMAGES_TAG:-$(sed -n 's/^appVersion: "\(.*\)"/\1/p' charts/escache-csi/Chart.yaml)}

# The build takes Go modules from this machine's cache: in the container a proxy's certificate may be unknown.
for module in . hack/tools/cyclonedx-gomod; do go -C "$module" mod download; done

for target in "${targets[@]}"; do
  buildah build -q --layers --pull-never --target "$target" --tag "localhost/$target:test" --network host \
    --build-arg BASE=localhost/base:1 --build-arg BUILD_BASE=localhost/build-base:1 --build-arg "GOPROXY=$(go env GOPROXY)" \
    --build-arg "VERSION=$version" --build-arg "SOURCE_DATE_EPOCH=$SOURCE_DATE_EPOCH" --timestamp "$SOURCE_DATE_EPOCH" --volume "$(go env GOMODCACHE):/root/go/pkg/mod" --volume "$(go env GOCACHE):/root/.cache/go-build" .
  id=$(buildah from --pull-never "localhost/$target:test")
  case $target in
    escached) buildah run "$id" -- sh -c 'escached version && escache-cache version && which chroot cp sed' ;;
    csi-node) buildah run "$id" -- sh -c 'csi-node --version && which mkfs.ext4 mkfs.xfs e2fsck xfs_repair xfs_growfs resize2fs blkid mount umount' ;;
    csi-controller) buildah run "$id" -- sh -c 'csi-controller --version && id -u | grep -qx 65532' ;;
  esac
  buildah run "$id" -- grep -q '"name": "github.com/escache/escache-csi' "/usr/share/escache/$target.cdx.json"
  buildah rm "$id" >/dev/null
  [ -z "${IMAGES_OCI:-}" ] || oci "$target"
  if [ -n "${IMAGES_OUT:-}" ]; then
    mkdir -p "$IMAGES_OUT"
    rm -f "$IMAGES_OUT/$target.tar"
    buildah push -q "localhost/$target:test" "docker-archive:$IMAGES_OUT/$target.tar:ghcr.io/escache/$target:$tag"
  fi
done
echo "images.sh: built and tried: ${targets[*]}"
