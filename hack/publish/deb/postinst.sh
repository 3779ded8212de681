#!/bin/sh
set -e
if [ "$1" = configure ] && [ -d /run/systemd/system ]; then
  systemctl daemon-reload
  systemctl try-restart escached.service # it runs already: this is an upgrade; no I/O passes through escached
fi
if [ "$1" = configure ] && [ -z "$2" ] && [ ! -e /etc/escache/escached.yaml ]; then
  echo "escached: write /etc/escache/escached.yaml (example: /usr/share/doc/escached/examples/escached.yaml), then run: systemctl enable --now escached"
fi
