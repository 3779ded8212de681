# shellcheck shell=bash
# Sourced by scripts that start a lab of their own, LAB_NAME: whatever ends the script, the lab goes down and the steps are summed up.
lab() { bin/lab "$@"; }

finish() {
  local status=$?
  trap - EXIT INT TERM
  if [ -x bin/lab ]; then lab down || true; fi
  steps_summary
  exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
