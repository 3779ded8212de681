#!/usr/bin/env bash
# Runs the chart's own pods on hosts that have nothing of the driver: builds the images from Debian's packages (hack/images.sh), gives them to
# the nodes of a lab's Kubernetes, follows docs/install.md, loses a host, upgrades under load, looks for secrets, and uninstalls.
# KEEP=1 leaves the lab up where all went well. IMAGES_DIR=DIR keeps what building images starts from: the next time is minutes shorter.
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/step.sh

export LAB_NAME=${LAB_NAME:-chart-$$}
. hack/with-lab.sh

images=$PWD/bin/images
step "install packages" hack/setup.sh build lab kubernetes
step "build lab and kubectl-escache" env CGO_ENABLED=0 go build -o bin/ ./hack/lab ./cmd/kubectl-escache
step "build the test" env CGO_ENABLED=0 go test -c -tags e2e -o bin/ ./internal/e2e/chart
step "build the images" env IMAGES_OUT="$images" hack/images.sh
step "lab up: Ceph, Kubernetes, three bare hosts with the images" lab up --bare --memory 1024 \
  --image "$images/csi-controller.tar" --image "$images/csi-node.tar" --image "$images/escached.tar"
PROMTOOL=$(go run ./hack/tool promtool)
export PROMTOOL
step "install, lose a host, upgrade, uninstall" lab run -- bin/chart.test -test.v -test.failfast -test.timeout 60m
