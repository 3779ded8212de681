#!/usr/bin/env bash
# Packages the chart, and lists the images that it uses: chart.sh OUT VERSION. REGISTRY and REPOSITORY say where the driver's images will be.
set -euo pipefail
out=$(realpath "$1") version=$2
cd "$(dirname "$0")/../.."
. hack/publish/archive.sh

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
helm=$(go tool -modfile=hack/tools/helm/go.mod -n helm)
export HELM_CACHE_HOME=$work/helm HELM_CONFIG_HOME=$work/helm HELM_DATA_HOME=$work/helm

cp -r charts/escache-csi "$work/chart"
rm "$work/chart/README.md.gotmpl"
# Who has the package has no checkout: pages are named by their address.
docs=$(sed -n 's/^home: //p' charts/escache-csi/Chart.yaml)/blob/$version/docs
find "$work/chart" -type f -not -path '*/crds/*' -exec sed -i -E \
  -e "s#(^|[^/A-Za-z])docs/([a-z/-]+\.md)#\1$docs/\2#g" -e "s#/blob/main/docs/#/blob/$version/docs/#g" {} +
sed -i -E -e "s#^  registry: ghcr\.io\$#  registry: ${REGISTRY:-ghcr.io}#" -e "s#repository: escache/#repository: ${REPOSITORY:-escache}/#" \
  "$work/chart/values.yaml"

"$helm" package "$work/chart" --version "${version#v}" --app-version "$version" --destination "$work" >"$work/package.log" ||
  { cat "$work/package.log" >&2 && exit 1; }
mkdir "$work/unpacked"
tar -xzf "$work/escache-csi-${version#v}.tgz" -C "$work/unpacked"
archive "$out/escache-csi-${version#v}.tgz" "$work/unpacked" escache-csi # without the time of packing

"$helm" template escache "$out/escache-csi-${version#v}.tgz" --set 'ceph.clusterID=any,ceph.monitors={any},snapshots.enabled=true' >"$work/objects.yaml"
sed -n -E 's/^ *(- )?image: "?([^" ]+)"?$/\2/p' "$work/objects.yaml" | LC_ALL=C sort -u >"$out/images.txt"
