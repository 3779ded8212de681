#!/usr/bin/env bash
# Measures on real parts and prints tables. Each ratio is from one run in one lab, its candidates taken in turns.
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/step.sh

export LAB_NAME=${LAB_NAME:-bench-$$}
. hack/with-lab.sh

step "install packages" hack/setup.sh build lab
step "build" env CGO_ENABLED=0 go build -o bin/ ./hack/lab
step "build benchmarks" env CGO_ENABLED=0 go build -o bin/bench-host ./hack/bench/host
step "build benchmark of internal/rbd" go build -tags "$(hack/ceph-tags.sh)" -o bin/bench-rbd ./hack/bench/rbd

step "images through internal/rbd beside bare go-ceph" bin/bench-rbd
step "placement decisions" go test -run NONE -bench . ./internal/placement
step "lab up: Ceph and three hosts" lab up
step "benchmarks on hosts" lab run -- bin/bench-host
step "lab down" lab down
