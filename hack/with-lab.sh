# shellcheck shell=bash
# Sourced first by scripts that start a lab of their own, LAB_NAME, and that stand beside this file. The script runs once more, as a child
# in a process group of its own: bash hears a signal only between two commands, and so all of a long one ends with it. Whatever ends the
# script, the lab goes down; with KEEP=1 it stays up where all went well.
lab() { bin/lab "$@"; }

with_lab() { # SCRIPT [ARGUMENT…]
  set -m
  WITH_LAB=$LAB_NAME "$@" </dev/null &
  local child=$! status=0 told=
  set +m
  trap 'told=130; kill -TERM -- "-$child"' INT
  trap 'told=143; kill -TERM -- "-$child"' TERM HUP
  while :; do
    status=0
    wait "$child" || status=$?
    kill -0 "$child" 2>/dev/null || break
  done
  trap '' INT TERM HUP # what follows is short, and must not be left half done
  kill -KILL -- "-$child" 2>/dev/null || true
  [ -z "$told" ] || status=$told
  if [ -x bin/lab ] && { [ "${KEEP:-}" != 1 ] || [ "$status" != 0 ]; }; then lab down || true; fi
  exit "$status"
}

if [ "${WITH_LAB:-}" != "$LAB_NAME" ]; then with_lab "hack/$(basename "$0")" "$@"; fi
trap steps_summary EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
