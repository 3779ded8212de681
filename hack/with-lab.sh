# shellcheck shell=bash
# Scripts beside this file that start their own lab, LAB_NAME, source it first. It runs the script again as a child in a process group of its
# own: bash handles a signal only between two commands, and a signal to the group also ends a long command. However the script ends, the
# lab is stopped; with KEEP=1 it stays up after a success.
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
  trap '' INT TERM HUP # what follows is short and must not be interrupted
  kill -KILL -- "-$child" 2>/dev/null || true
  [ -z "$told" ] || status=$told
  if [ -x bin/lab ] && { [ "${KEEP:-}" != 1 ] || [ "$status" != 0 ]; }; then lab down || true; fi
  exit "$status"
}

if [ "${WITH_LAB:-}" != "$LAB_NAME" ]; then with_lab "hack/$(basename "$0")" "$@"; fi
trap steps_summary EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
