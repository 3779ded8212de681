#!/usr/bin/env bash
# Fuzzes every Fuzz target of the packages given (all), one after the other, for FUZZ_MINUTES (10) in all or, if FUZZ_SECONDS is given, for
# so long each. Prints a table at the end, and fails if a target failed. FUZZ_RUN selects targets by a pattern; FUZZ_PARALLEL (1) is go test's
# -parallel. Go keeps inputs of interest in its build cache, so that the next run goes on from there; a crasher is written to testdata/fuzz.
set -euo pipefail
cd "$(dirname "$0")/.."
tags=$(hack/ceph-tags.sh)

targets() { # lines "PACKAGE TARGET". Only packages with a target are compiled for the list.
  local dirs
  mapfile -t dirs < <(grep -rl --include='*_test.go' '^func Fuzz' "${@:-.}" | xargs -r -n 1 dirname | sort -u)
  local dir
  for dir in "${dirs[@]}"; do
    go test -tags "$tags" -list '^Fuzz' "./${dir#./}" | awk -v dir="./${dir#./}" -v pattern="${FUZZ_RUN:-.}" '/^Fuzz/ && $1 ~ pattern { print dir, $1 }'
  done
}

mapfile -t all < <(targets "$@")
[ "${#all[@]}" -gt 0 ] || { echo "no Fuzz target matches" >&2; exit 1; }
seconds=${FUZZ_SECONDS:-$((${FUZZ_MINUTES:-10} * 60 / ${#all[@]}))}
[ "$seconds" -gt 0 ] || seconds=1

log=$(mktemp)
trap 'rm -f "$log"' EXIT
table="" failed=0
for line in "${all[@]}"; do
  read -r package target <<<"$line"
  crashers=0
  # Go stops at a target's first crasher. The time limit is for minimising and for the end: it never counts against the fuzzing.
  if ! go test -tags "$tags" -run '^$' -fuzz "^$target\$" -fuzztime "${seconds}s" -fuzzminimizetime 5s -parallel "${FUZZ_PARALLEL:-1}" \
    -timeout "$((seconds + 600))s" "$package" >"$log" 2>&1; then
    crashers=1 failed=1
    echo "--- $package $target" >&2
    grep -v '^fuzz: elapsed' "$log" >&2
  fi
  execs=$(sed -n 's/.*execs: \([0-9]*\).*/\1/p' "$log" | tail -n 1)
  new=$(sed -n 's/.*new interesting: \([0-9]*\).*/\1/p' "$log" | tail -n 1)
  table+="$target ${package#./} ${execs:-0} ${new:-0} $crashers"$'\n'
done

awk 'BEGIN { printf "%-16s %-40s %12s %16s %9s\n", "TARGET", "PACKAGE", "EXECUTIONS", "NEW INTERESTING", "CRASHERS" }
  NF { printf "%-16s %-40s %12d %16d %9d\n", $1, $2, $3, $4, $5; sum += $3; bad += $5 }
  END { printf "%-16s %-40s %12d %16s %9d\n", "all", "", sum, "", bad }' <<<"$table"
exit "$failed"
