#!/usr/bin/env bash
# Makes everything that a release has: release.sh OUT VERSION. docs/release.md describes the files.
# OUT must not exist or be empty: it is whole in the end, or not there.
#   RELEASE_KEY=FILE    signs checksums.txt with this key (ECDSA P-256, PEM); without it there is no signature
#   RELEASE_URL=URL     where the files of this release will be; krew downloads the plugin from there
#   REGISTRY=HOST REPOSITORY=PATH    where the chart finds the driver's images: REGISTRY/REPOSITORY/NAME:VERSION (ghcr.io, escache)
#   RELEASE_IMAGES=no   leaves the images out
#   PLATFORMS="OS/ARCH…"    of kubectl-escache
# SOURCE_DATE_EPOCH is the time of all files; by default that of the commit.
set -euo pipefail
umask 022 # for the files in images and archives
out=$(realpath -m "$1")
version=$2
cd "$(dirname "$0")/../.."
. hack/step.sh
. hack/publish/archive.sh
home=https://github.com/escache/escache-csi

fail() {
  echo "release.sh: $*" >&2
  exit 1
}
[[ $version =~ ^v(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(-[0-9A-Za-z]+([.-][0-9A-Za-z]+)*)?$ ]] ||
  fail "VERSION is $version: set a semantic version with a v before it, for example VERSION=v0.1.0"
[ -z "$(ls -A "$out" 2>/dev/null)" ] || fail "$out is not empty: remove it, or set OUT to another directory"
[ -z "${RELEASE_KEY:-}" ] || hack/publish/sign.sh --check "$RELEASE_KEY"
[ -z "$(git status --porcelain)" ] || echo "release.sh: warning: there are changes that are in no commit" >&2

SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH REGISTRY=${REGISTRY:-ghcr.io} REPOSITORY=${REPOSITORY:-escache}
url=${RELEASE_URL:-$home/releases/download/$version}
platforms=${PLATFORMS:-linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64 windows/arm64}

mkdir -p "$(dirname "$out")"
work=$(mktemp -d "$out.XXXXXX")
trap 'steps_summary; rm -rf "$work"' EXIT
chmod 755 "$work"
new=$work/new
mkdir "$new"

# programs NAME PLATFORM…: builds a program for each platform into $work/PLATFORM, with its list of modules.
programs() {
  local name=$1 platform
  shift
  for platform in "$@"; do
    GOOS=${platform%/*} GOARCH=${platform#*/} hack/release.sh "$work/$platform" "$version" "$name"
    cp "$work/$platform/$name.cdx.json" "$new/${name}_${version}_${platform//\//_}.cdx.json"
  done
}
archives() { # NAME PLATFORM…
  local name=$1 platform
  shift
  for platform in "$@"; do
    cp LICENSE "$work/$platform/"
    local files=(LICENSE "$name$(GOOS=${platform%/*} go env GOEXE)")
    if [ "$name" = kubectl-escache ] && [ "${platform%/*}" != windows ]; then
      cp hack/publish/kubectl_complete-escache "$work/$platform/"
      files+=(kubectl_complete-escache)
    fi
    [ "$name" != escached ] || files+=(escache-cache)
    archive "$new/${name}_${version}_${platform//\//_}.tar.gz" "$work/$platform" "${files[@]}"
  done
}
images() {
  IMAGES_OCI="$new" IMAGES_VERSION="$version" hack/images.sh
  programs csi-controller linux/amd64
  programs csi-node linux/amd64 linux/arm64
  hack/publish/foreign.sh "$new" "$version" arm64 "$work/linux/arm64"
}

step "install packages" hack/setup.sh build
# shellcheck disable=SC2086 # a list of words
step "build kubectl-escache" programs kubectl-escache $platforms
step "build escached" programs escached linux/amd64 linux/arm64
step "build escache-cache" programs escache-cache linux/amd64 linux/arm64
# shellcheck disable=SC2086
step "archives of kubectl-escache" archives kubectl-escache $platforms
step "archives of escached" archives escached linux/amd64 linux/arm64
step "krew's manifest" hack/publish/krew.sh "$new" "$version" "$url" "$home"
for arch in amd64 arm64; do
  step "Debian package for $arch" hack/publish/deb.sh "$new" "$version" "$arch" "$work/linux/$arch"
done
step "chart" hack/publish/chart.sh "$new" "$version"
step "docs" archive "$new/docs_$version.tar.gz" . LICENSE README.md CHANGELOG.md docs
step "release notes" hack/publish/notes.sh "$new" "$version"
[ "${RELEASE_IMAGES:-}" = no ] || step "images" images
step "checksums" hack/publish/sums.sh "$new"
if [ -n "${RELEASE_KEY:-}" ]; then
  step "signature" hack/publish/sign.sh "$new/checksums.txt" "$RELEASE_KEY"
else
  echo "release.sh: checksums.txt is not signed: set RELEASE_KEY to a key (docs/release.md says how to make one)"
fi
[ ! -d "$out" ] || rmdir "$out"
mv "$new" "$out"
echo "release.sh: $version is in $out"
