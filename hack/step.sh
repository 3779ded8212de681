# shellcheck shell=bash
# The scripts beside this file source it and run with `set -e`. `step NAME COMMAND…` prints the name and runs the command;
# `steps_summary`, which is called at the end in any case, lists all steps with their times and names the one that failed.
steps_started=$SECONDS
steps_done=()
step_name=
step_started=

step() {
  step_name=$1 step_started=$SECONDS
  shift
  printf '\n%s==> [%4ds] %s%s\n' "${bold:-}" $((SECONDS - steps_started)) "$step_name" "${plain:-}"
  "$@" # not in a condition: there `set -e` is off, and a function would go on after a failed command
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
