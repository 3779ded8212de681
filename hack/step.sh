# Sourced by the scripts beside it: `step NAME COMMAND…` says what runs and how long it took; `steps_summary` prints all of it once more.
steps_started=$SECONDS
steps_done=()

step() {
  local name=$1 start=$SECONDS status=0
  shift
  printf '\n==> [%4ds] %s\n' $((SECONDS - steps_started)) "$name"
  "$@" || status=$?
  steps_done+=("$(printf '%6ds  %-4s  %s' $((SECONDS - start)) "$([ "$status" = 0 ] && echo ok || echo FAIL)" "$name")")
  return "$status"
}

steps_summary() {
  [ ${#steps_done[@]} = 0 ] && return
  printf '\n   time  end   step\n'
  printf '%s\n' "${steps_done[@]}"
  printf '%6ds        all\n' $((SECONDS - steps_started))
}
