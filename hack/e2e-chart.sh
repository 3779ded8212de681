#!/usr/bin/env bash
# Tests the chart on hosts without anything of the driver: builds the images from Debian's packages (hack/images.sh), loads them into the
# nodes of a lab's Kubernetes, follows docs/install.md, loses a host, upgrades under load, searches for secrets, and uninstalls.
# KEEP=1 leaves the lab up after a success. IMAGES_DIR=DIR keeps the base images elsewhere than in bin/.
# UPGRADE_FROM=REVISION starts with the chart and images of that revision of this repository, and upgrades them to the current ones.
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/step.sh

export LAB_NAME=${LAB_NAME:-chart-$$}
. hack/with-lab.sh

images=$PWD/bin/images
export IMAGES_DIR=${IMAGES_DIR:-$PWD/bin/images-base}
step "install packages" hack/setup.sh build lab kubernetes
step "build lab and kubectl-escache" env CGO_ENABLED=0 go build -o bin/ ./test/lab ./cmd/kubectl-escache
step "build the test" env CGO_ENABLED=0 go test -c -tags e2e -o bin/ ./test/e2e/chart

earlier_images() {
  rm -rf "$earlier"
  mkdir -p "$earlier"
  git archive "$UPGRADE_FROM" | tar -x -C "$earlier"
  (cd "$earlier" && IMAGES_OUT="$images/earlier" hack/images.sh)
}
loaded=()
if [ -n "${UPGRADE_FROM:-}" ]; then
  earlier=$PWD/bin/earlier
  export UPGRADE_FROM_CHARTS=$earlier/charts
  step "build the images of $UPGRADE_FROM" earlier_images
  export IMAGES_TAG=next
  for tar in "$images"/earlier/*.tar; do loaded+=(--image "$tar"); done
fi
step "build the images" env IMAGES_OUT="$images" hack/images.sh
step "build a csi-node of another version" env IMAGES_OUT="$images/other" IMAGES_TAG=other IMAGES_VERSION=other hack/images.sh csi-node
loaded+=(--image "$images/other/csi-node.tar")
for tar in "$images"/*.tar; do loaded+=(--image "$tar"); done
step "lab up: Ceph, Kubernetes, three bare hosts with the images" lab up --bare --memory 1024 --disk 12288 "${loaded[@]}"
PROMTOOL=$(go tool -modfile=hack/tools/promtool/go.mod -n promtool)
export PROMTOOL
step "install, lose a host, upgrade, uninstall" lab run -- bin/chart.test -test.v -test.failfast -test.timeout 100m
