#!/bin/sh
set -e
# DRBD calls /usr/sbin/escached when a peer or a disk is lost. Without it the I/O of volumes that are attached here stays frozen.
if [ "$1" = remove ]; then
  if [ -n "$(find /dev/escache -type l -print -quit 2>/dev/null)" ]; then
    echo "escached: volumes are attached here (see /dev/escache). Move them first: kubectl escache evacuate $(uname -n) --wait" >&2
    exit 1
  fi
  if [ -d /run/systemd/system ]; then
    systemctl disable --now escached.service
  fi
fi
