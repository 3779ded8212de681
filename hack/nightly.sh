#!/usr/bin/env bash
# Usage: hack/nightly.sh [TARGET]…
# Runs every target of the Makefile that is a check and not in CI, one after the other, and prints what became of each. It takes
# most of a day on two processors. A target that fails does not keep the others from running.
# NIGHTLY_LIST=1 only names them.
set -euo pipefail
cd "$(dirname "$0")/.."

# CI runs lint and test, which include graph and e2e-operators. The others here check nothing.
not=$(printf '%s\n' help setup build lint graph e2e-operators generate lab nightly release images push)

targets=("$@")
if [ $# = 0 ]; then
  mapfile -t targets < <(sed -n 's/^\([a-z0-9-]*\):.*## .*/\1/p' Makefile | grep -vxF "$not")
fi
if [ -n "${NIGHTLY_LIST:-}" ]; then
  printf '%s\n' "${targets[@]}"
  exit
fi

# More of each than by hand: `make test` leaves rows out and shortens others for CI.
export HOST_SKIP='' ESCACHE_POWER_CUTS=${ESCACHE_POWER_CUTS:-10000}
export ESCACHE_E2E_CYCLES=${ESCACHE_E2E_CYCLES:-200} CHAOS_RUNS=${CHAOS_RUNS:-3} FUZZ_MINUTES=${FUZZ_MINUTES:-60}

results=('   time  end   target') failed=0
trap 'printf "\n"; printf "%s\n" "${results[@]}"' EXIT
for target in "${targets[@]}"; do
  printf '\n==> make %s\n' "$target"
  started=$SECONDS end=ok
  make --no-print-directory "$target" || end=FAIL failed=1
  results+=("$(printf '%6ds  %-4s  %s' $((SECONDS - started)) "$end" "$target")")
done
exit "$failed"
