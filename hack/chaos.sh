#!/usr/bin/env bash
# Usage: hack/chaos.sh [driver|larger-group]
# Breaks every part of a lab at every moment that matters and prints the result: rows, runs, losses, double writers, time to recover.
# With "driver" the whole driver runs in the lab; with "larger-group" it does so on five hosts, in a test that three are too few for.
# CHAOS_RUNS=N runs each row N times; CHAOS_ROWS='TestChaos/flush/Ceph_stalled' or CHAOS_ROWS='TestChaosDriver/frozen' runs only rows
# that match.
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/step.sh

case ${1-} in
'') suite=chaos packages=(build lab) minutes=90 driver=() ;;
driver) suite=chaosdriver packages=(build lab kubernetes) minutes=330 driver=(--driver) ;;
larger-group) suite=chaosdriver packages=(build lab kubernetes) minutes=90 driver=(--driver --nodes 5) only='^TestLargerGroup$' ;;
*)
  echo "hack/chaos.sh: there is no matrix \"$1\"; leave it out, or say \"driver\" or \"larger-group\"" >&2
  exit 2
  ;;
esac
export LAB_NAME=${LAB_NAME:-$suite-$$}
. hack/with-lab.sh

runs=${CHAOS_RUNS:-1}
case $runs in
*[!0-9]* | '' | 0)
  echo "CHAOS_RUNS=$runs is not a number of runs" >&2
  exit 2
  ;;
esac

step "install packages" hack/setup.sh "${packages[@]}"
step "build" env CGO_ENABLED=0 go build -o bin/ ./test/lab ./cmd/kubectl-escache
step "build the rows" env CGO_ENABLED=0 go test -c -tags e2e -o bin/ "./test/e2e/$suite"
step "lab up: hosts whose disks lose unflushed data with the power" lab up "${driver[@]}" --forgetful-disks
step "rows" lab run -- env CHAOS_RUNS="$runs" "bin/$suite.test" -test.v -test.timeout $((minutes * runs))m -test.run "${CHAOS_ROWS:-${only:-.}}"
step "lab down" lab down
