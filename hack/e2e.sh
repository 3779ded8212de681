#!/usr/bin/env bash
# Tests the driver on hosts that are nodes of a real Kubernetes: e2e.sh [GROUP]…
# The groups are core and node (the default), many, moves, times, flush, evacuate and recovery.
# E2E_RUN selects tests of `node`, `flush` and `recovery` by their names. KEEP=1 leaves the lab up after a success.
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/step.sh

export LAB_NAME=${LAB_NAME:-e2e-$$}
. hack/with-lab.sh

suite() { # NAME PATTERN LIMIT
  step "$1" lab run -- bin/node.test -test.v -test.failfast -test.parallel 3 -test.timeout "$3" -test.run "$2"
}

memory=512
for name in "${@:-core}"; do
  case $name in
    core | node | times | flush | recovery) ;;
    many | moves | evacuate) memory=1024 ;; # a host has up to 17 pods
    *)
      echo "e2e.sh: unknown group of tests '$name' (one of: core node many moves times flush evacuate recovery)" >&2
      exit 2
      ;;
  esac
done

step "install packages" hack/setup.sh build lab kubernetes
step "build lab and kubectl-escache" env CGO_ENABLED=0 go build -o bin/ ./test/lab ./cmd/kubectl-escache
step "build tests" env CGO_ENABLED=0 go test -c -tags e2e -o bin/ ./test/e2e/node
step "lab up: Ceph, Kubernetes, three hosts, the driver" lab up --driver --memory "$memory"
[ $# != 0 ] || set -- core node
for name in "$@"; do
  case $name in
    core) suite "claim, pod, move, power loss, removal" '^TestCore$' 20m ;;
    node) suite "csi-node on hosts" "^TestNode\$/${E2E_RUN:-}" 120m ;;
    many) suite "many pods at once" '^TestManyPods$' 60m ;;
    moves) suite "many moves" '^TestMoves$' 180m ;;
    times) suite "times" '^TestTimes$' 30m ;;
    flush) suite "flush and drain, broken in the middle" "^TestFlush\$/${E2E_RUN:-}" 60m ;;
    recovery) suite "hosts and copies are lost, and Ceph refuses" "^TestRecovery\$/${E2E_RUN:-}" 60m ;;
    evacuate) suite "a host is emptied" '^TestEvacuate$' 60m ;;
  esac
done
