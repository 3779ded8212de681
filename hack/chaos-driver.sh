#!/usr/bin/env bash
# Breaks hosts, disks, programs and records of a lab on which the whole driver runs, and prints the result: rows, runs, losses, double
# writers, time to recover. CHAOS_RUNS=N runs each row N times; CHAOS_ROWS='TestChaosDriver/frozen' runs only rows that match.
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/step.sh

export LAB_NAME=${LAB_NAME:-chaos-driver-$$}
. hack/with-lab.sh

runs=${CHAOS_RUNS:-1}
case $runs in
*[!0-9]* | '' | 0)
  echo "CHAOS_RUNS=$runs is not a number of runs" >&2
  exit 2
  ;;
esac

step "install packages" hack/setup.sh build lab kubernetes
step "build lab and kubectl-escache" env CGO_ENABLED=0 go build -o bin/ ./test/lab ./cmd/kubectl-escache
step "build the rows" env CGO_ENABLED=0 go test -c -tags e2e -o bin/ ./test/e2e/chaosdriver
step "lab up: Ceph, Kubernetes, the driver, three hosts whose disks lose unflushed data with the power" lab up --driver --forgetful-disks
step "chaos" lab run -- env CHAOS_RUNS="$runs" bin/chaosdriver.test -test.v -test.timeout $((240 * runs))m -test.run "${CHAOS_ROWS:-.}"
step "lab down" lab down
