#!/usr/bin/env bash
# Measures performance on real parts and prints tables. Each ratio is from one run in one lab, in which the candidates take turns.
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/step.sh

export LAB_NAME=${LAB_NAME:-bench-$$}
. hack/with-lab.sh

step "install packages" hack/setup.sh build lab kubernetes
tags=$(hack/ceph-tags.sh)
step "build" env CGO_ENABLED=0 go build -o bin/ ./test/lab
step "build csi-controller" go build -tags "$tags" -o bin/ ./cmd/csi-controller
step "build benchmarks" env CGO_ENABLED=0 go build -o bin/bench-host ./test/bench/host
step "build benchmark of memory" env CGO_ENABLED=0 go test -c -tags e2e -o bin/ ./test/e2e/host
step "build benchmark of pods" env CGO_ENABLED=0 go test -c -tags e2e -o bin/ ./test/e2e/node
step "build benchmark of internal/rbd" go build -tags "$tags" -o bin/bench-rbd ./test/bench/rbd
step "build benchmark of csi-controller" go build -tags "$tags" -o bin/bench-controller ./test/bench/controller

step "images through internal/rbd beside bare go-ceph" bin/bench-rbd
step "volumes through csi-controller beside bare go-ceph" bin/bench-controller
step "placement decisions" go test -run NONE -bench . ./internal/placement
step "lab up: Ceph and three hosts" lab up
step "benchmarks on hosts" lab run -- bin/bench-host
step "lab down" lab down
step "lab up: hosts with disks of 208 GiB, of which only what is written takes space" lab up --disk 212992 --memory 4096
step "memory of a cache of 100 GiB" lab run -- bin/host.test -test.run "^TestMemoryOfALargeCache$" -memory-of 100 -test.v -test.timeout 60m
step "lab down" lab down
step "lab up: Ceph, Kubernetes, three hosts, the driver" lab up --driver
step "times of pods" lab run -- bin/node.test -test.run '^TestTimes$' -test.timeout 30m
step "lab down" lab down
