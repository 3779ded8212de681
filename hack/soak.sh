#!/usr/bin/env bash
# Breaks the whole driver at random for SOAK_MINUTES (30) while SOAK_VOLUMES (4) volumes are written to, and counts lost data. It prints its
# seed: SOAK_SEED=N repeats the schedule, SOAK_ROUNDS=FROM-TO only some rounds of it, and SOAK_WITHOUT=ROUND.FAULT,… leaves faults out.
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/step.sh
export LAB_NAME=${LAB_NAME:-soak-$$}
. hack/with-lab.sh

export SOAK_MINUTES=${SOAK_MINUTES:-30}
case $SOAK_MINUTES in
*[!0-9]* | '' | 0)
  echo "SOAK_MINUTES=$SOAK_MINUTES is not a number of minutes" >&2
  exit 2
  ;;
esac

step "install packages" hack/setup.sh build lab kubernetes
step "build" env CGO_ENABLED=0 go build -o bin/ ./test/lab ./cmd/kubectl-escache
step "build the test" env CGO_ENABLED=0 go test -c -tags e2e -o bin/ ./test/e2e/chaosdriver
step "lab up: three hosts whose disks lose unflushed data with the power" lab up --driver --forgetful-disks
# The last round and the final checks may begin just before the time is up.
step "soak" lab run -- bin/chaosdriver.test -test.v -test.timeout $((SOAK_MINUTES + 60))m -test.run '^TestSoak$'
step "lab down" lab down
