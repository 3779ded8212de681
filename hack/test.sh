#!/usr/bin/env bash
# Installs what it needs on a fresh Debian 12, then runs the tests: first those of packages, then those in the lab on real Ceph, kernels and
# Kubernetes.
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/step.sh

export LAB_NAME=${LAB_NAME:-test-$$}
. hack/with-lab.sh

# All 200 cycles of a cache's life (ESCACHE_E2E_CYCLES=200) would take longer than all other tests together.
export ESCACHE_E2E_CYCLES=${ESCACHE_E2E_CYCLES:-12}

# These take minutes each: killed at every crash point of every verb, memory and processor time when idle, and a link that DRBD has given
# a minute to sort itself out. `make test HOST_SKIP=` runs them too.
host_skip=${HOST_SKIP-'TestHosts/(escached_killed_at|escached_is_small|a_link_that_stops)'}

# gotestsum repeats failures at the end: nobody finds them between thousands of lines.
tests() { # FORMAT ARGUMENT…: arguments of gotestsum, which runs go test
  "$gotestsum" --format "$1" --format-hide-empty-pkg "${@:2}"
}

in_lab() { # SUITE [FLAG]…: a package of test/e2e, run inside the lab's namespaces
  tests standard-verbose --raw-command -- go tool test2json -t -p "$1" \
    bin/lab run -- "bin/$1.test" -test.v=test2json -test.failfast -test.timeout 60m "${@:2}"
}

# internal/rbd waits minutes for Ceph to fail: it starts first and runs beside the others. `make lint` has run vet. Without
# symbols (-s) test programs are linked in two thirds of the time.
packages() { tests pkgname -- -timeout 20m -vet=off -ldflags=-s -tags "$tags" -p 3 ./internal/rbd ./...; }

# csi-controller; csi-node's rights and its cost; operators' tools.
on_kubernetes() { tests pkgname -- -count 1 -timeout 60m -vet=off -ldflags=-s -tags "e2e $tags" -p 1 ./test/e2e/{controller,nodeapi,operators}; }

# A step of its own: a cold build of Kubernetes takes minutes, which must not count against a test's time limit.
build_tools() {
  go run ./test/buildtools --build-all
  local name
  for name in gotestsum helm-docs promtool; do go tool -modfile="hack/tools/$name/go.mod" -n "$name"; done
}

step "install packages" hack/setup.sh build lab kubernetes screens
tags=$(hack/ceph-tags.sh)
step "build" make --no-print-directory build
step "build test suites" env CGO_ENABLED=0 go test -c -tags e2e -o bin/ ./test/e2e/{host,chaos,node,chaosdriver}
step "build tools" build_tools
gotestsum=$(go tool -modfile=hack/tools/gotestsum/go.mod -n gotestsum)

# These wait more than they work, so the steps that follow run beside them. with-lab.sh ends them if one of those fails.
on_kubernetes &
kubernetes=$!
step "tests of packages" packages
step "lab up: Ceph and three hosts" lab up --share
CHAOS_CORE=1 step "core of the fault matrix" in_lab chaos
step "tests on hosts" in_lab host -test.parallel 4 ${host_skip:+-test.skip "$host_skip"}
step "lab down" lab down
step "tests of csi-controller and its tools on real Ceph and Kubernetes, since the tests of packages" wait "$kubernetes"

step "lab up: Ceph, Kubernetes, three hosts, the driver" lab up --driver
# The rest of this suite breaks more, and takes as long as everything above: `make e2e` and the other e2e targets.
step "claim, pod, move, power loss, removal" in_lab node -test.run '^TestCore$'
step "pods on hosts, and parts that are killed" in_lab node -test.run '^TestNode$/(claim_to|grows|moves|killed_under_load|while_a_volume_is_unstaged|loses_power)'
# One row of `make chaos-driver`: the one that has lost a write. Its core takes 17 minutes.
step "the holder's disk fails unheard, then both hosts lose their power" in_lab chaosdriver -test.run \
  '^TestChaosDriver$/disk/of_the_holder_dead_while'
step "lab down" lab down
