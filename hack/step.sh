# shellcheck shell=bash
# Sourced by the scripts beside it, which run with `set -e`: `step NAME COMMAND…` says what runs and how long it took;
# `steps_summary`, called at the end in any case, prints all of it once more and names the step that failed.
steps_started=$SECONDS
steps_done=()
step_name=
step_started=

step() {
  step_name=$1 step_started=$SECONDS
  shift
  printf '\n%s==> [%4ds] %s%s\n' "${bold:-}" $((SECONDS - steps_started)) "$step_name" "${plain:-}"
  "$@" # not in a condition: there, a function that is a step would go on after a command in it has failed
  step_end ok
}

step_end() {
  steps_done+=("$(printf '%6ds  %-4s  %s' $((SECONDS - step_started)) "$1" "$step_name")")
  step_name=
}

steps_summary() {
  [ -z "$step_name" ] || step_end FAIL
  [ ${#steps_done[@]} = 0 ] && return
  printf '\n   time  end   step\n'
  printf '%s\n' "${steps_done[@]}"
  printf '%6ds        all\n' $((SECONDS - steps_started))
}
