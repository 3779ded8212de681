#!/bin/sh
# Imports images into the store of a root tree that is not running: a containerd of its own unpacks them there, in namespaces of its own.
# preload.sh CONTAINERD CTR STORE STATE IMAGE…
containerd=$1 ctr=$2 store=$3 state=$4
shift 4
cat >"$state/config.toml" <<CONFIG
version = 3
root = "$store"
state = "$state/run"
disabled_plugins = [
  "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri", "io.containerd.nri.v1.nri",
  "io.containerd.snapshotter.v1.blockfile", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.erofs", "io.containerd.snapshotter.v1.zfs", "io.containerd.differ.v1.erofs",
  "io.containerd.internal.v1.tracing", "io.containerd.tracing.processor.v1.otlp",
]
[grpc]
  address = "$state/containerd.sock"
[ttrpc]
  address = "$state/containerd.sock.ttrpc"
[plugins."io.containerd.internal.v1.opt"]
  path = "$state/opt"
CONFIG
"$containerd" --config "$state/config.toml" >"$state/log" 2>&1 &
pid=$!
until "$ctr" --address "$state/containerd.sock" version >/dev/null 2>&1; do
  kill -0 $pid 2>/dev/null || {
    tail -n 20 "$state/log"
    exit 1
  }
  sleep 0.1
done
for image in "$@"; do
  "$ctr" --address "$state/containerd.sock" --namespace k8s.io images import --local "$image" || exit 1
done
kill $pid
wait $pid
