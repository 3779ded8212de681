#!/usr/bin/env bash
# The main job on real parts: a pod's volume is cached on two NVMe hosts, the pod moves, its host dies, and no byte is lost.
# KEEP=1 leaves everything running and prints what to try.
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/step.sh

export LAB_NAME=${LAB_NAME:-demo}
. hack/with-lab.sh

megabytes=32
kubectl() { lab kubectl -- "$@"; }
app() { kubectl exec app-0 -- "$@"; }

if [ -t 1 ]; then bold=$'\e[1;36m' green=$'\e[32m' plain=$'\e[0m'; else bold='' green='' plain=''; fi
proof() { printf '%s      ✓ %s%s\n' "$green" "$*" "$plain"; }
remark() { printf '        %s\n' "$*"; }
fail() {
  echo "      ✗ $*" >&2
  return 1
}

what_to_try() {
  cat <<TRY

Lab "$LAB_NAME" is still running. Try:
  export LAB_NAME=$LAB_NAME
  bin/lab kubectl -- get nodegroups,cachevolumes,pods -o wide
  bin/lab kubectl -- scale statefulset app --replicas=1
  bin/lab exec n1 -- dmsetup status
  bin/lab power-off n2 && bin/lab status
  bin/lab down        # when done
TRY
}

# Questions to the lab.
host_of_pod() { kubectl get pod app-0 -o 'jsonpath={.spec.nodeName}' 2>/dev/null || true; }
volume() { kubectl get pvc data-app-0 -o 'jsonpath={.spec.volumeName}'; }
handle() { kubectl get pv "$(volume)" -o 'jsonpath={.spec.csi.volumeHandle}'; }
of_volume() { kubectl get cachevolume "$(handle)" -o "jsonpath={$1}"; }
image() { echo "$(of_volume .spec.pool)/$(of_volume .spec.image)"; }
dirty_mib() { # HOST: as the kernel counts it, total − free blocks of 4 KiB
  lab exec "$1" -- sh -c "dmsetup status --noflush --target writecache" | awk '{dirty += $6 - $7} END {print int(dirty / 256)}'
}
mib_in_ceph() { # rbd warns that counting takes longer without an object-map
  lab rbd -- du --format json "$(image)" 2> >(grep -v fast-diff >&2) | tr ',{}' '\n' | awk -F: '/"used_size"/{print int($2 / 1048576); exit}'
}
checksum_in_pod() { app sha256sum /data/file | cut -d' ' -f1; }

wait_until() { # SECONDS WHAT COMMAND…
  local end=$((SECONDS + $1)) what=$2
  shift 2
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $end ] || fail "waited too long until $what"
    sleep 1 # each check takes processor time from the hosts
  done
}
pod_ready_off() { # HOST: the pod is Ready, and on another host
  local host ready
  read -r host ready <<<"$(kubectl get pod app-0 -o 'jsonpath={.spec.nodeName} {.status.conditions[?(@.type=="Ready")].status}')"
  [ -n "$host" ] && [ "$host" != "$1" ] && [ "$ready" = True ]
}
not_ready() { [ "$(kubectl get node "$1" -o 'jsonpath={.status.conditions[?(@.type=="Ready")].status}')" != True ]; }
third_host() { # the one without a replica
  kubectl get nodes -o 'jsonpath={range .items[*]}{.metadata.name}{"\n"}{end}' | while read -r node; do
    [[ "$(of_volume .spec.replicas)" == *"\"$node\""* ]] || echo "$node"
  done
}
detached() { [ -z "$(of_volume .status.attachedNode)" ]; }
redundant() { [ "$(of_volume '.status.conditions[?(@.type=="Redundant")].status')" = True ]; }
in_ceph() { [ "$(of_volume .status.authority)" = Ceph ]; }
fill() { app sh -c "dd if=/dev/urandom of=/data/file bs=1M count=$megabytes conv=fsync 2>/tmp/dd || { cat /tmp/dd; exit 1; }"; }

prepare() {
  hack/setup.sh build lab kubernetes
  go build -o bin/lab ./test/lab
}

start_lab() {
  lab up --driver
  proof "$(lab ceph -- --version | cut -d'(' -f1), Kubernetes $(kubectl version 2>/dev/null | awk '/Server/{print $3}')"
  proof "hosts: $(kubectl get nodes -o 'jsonpath={range .items[*]}{.metadata.name} ({.status.nodeInfo.kernelVersion}) {end}')"
}

declare_group_and_class() {
  kubectl apply -f "$PWD/hack/demo/group.yaml"
  sed "s/CLUSTER_ID/$(lab ceph -- fsid)/" hack/demo/class.yaml | kubectl apply -f -
  kubectl wait --for=jsonpath='{.status.summary.ready}'=3/3 nodegroup/rack-1 --timeout=60s
  kubectl get nodegroups
}

start_pod() {
  kubectl apply -f "$PWD/hack/demo/app.yaml"
  wait_until 180 "the pod is ready" pod_ready_off nowhere
  first=$(host_of_pod)
  kubectl get cachevolumes
  proof "the pod runs on $first; its cache is on $(of_volume .spec.replicas) of group $(of_volume .spec.group)"
}

write() {
  fill
  sum=$(checksum_in_pod)
  local dirty ceph
  dirty=$(dirty_mib "$first") ceph=$(mib_in_ceph)
  [ "$dirty" -ge "$megabytes" ] || fail "only $dirty MiB are dirty in the cache"
  [ "$ceph" -lt "$megabytes" ] || fail "Ceph has $ceph MiB of the image already: nothing to show"
  proof "$megabytes MiB written and synced: $dirty MiB dirty in the cache on two hosts (with the new filesystem), $ceph MiB in Ceph"
  proof "sha256 $sum"
}

move() {
  kubectl cordon "$first"
  kubectl delete pod app-0 --wait=false
  wait_until 180 "the pod is ready on another host" pod_ready_off "$first"
  kubectl uncordon "$first"
  second=$(host_of_pod)
  [ "$(checksum_in_pod)" = "$sum" ] || fail "other data on $second"
  proof "moved from $first to $second: flushed, detached, attached, same sha256"
}

lose_host() {
  fill
  sum=$(checksum_in_pod)
  proof "$(dirty_mib "$second") MiB dirty on $second, new sha256 $sum"
  local outsider
  outsider=$(third_host)
  kubectl cordon "$outsider"
  remark "$outsider has no copy. It is cordoned, so that the pod starts at once where the other copy is;"
  remark "on $outsider the pod would start only after that copy is written back to Ceph"
  lab power-off "$second"
  wait_until 90 "$second is NotReady" not_ready "$second"
  proof "$second lost its power and is NotReady"
  # An operator, or a cloud's node controller, sets this taint on a host that is off.
  kubectl taint node "$second" node.kubernetes.io/out-of-service=nodeshutdown:NoExecute
  wait_until 240 "the pod is ready on another host" pod_ready_off "$second"
  kubectl uncordon "$outsider"
  third=$(host_of_pod)
  [ "$(checksum_in_pod)" = "$sum" ] || fail "acknowledged data was lost"
  proof "taken over by $third from its replica, same sha256: nothing acknowledged was lost"
}

bring_back() {
  lab power-on "$second"
  kubectl taint node "$second" node.kubernetes.io/out-of-service-
  wait_until 120 "$second has caught up" redundant
  proof "$second is back, and its copy has caught up with the one on $third"
}

flush() {
  kubectl scale statefulset app --replicas=0
  wait_until 120 "the volume is flushed and detached" detached
  # $second was fenced when it was lost. csi-controller also asks its host whether anybody still writes there, which takes a moment.
  wait_until 60 "the record says that the truth is in Ceph" in_ceph
  proof "unmounted, flushed, detached: the truth is in Ceph ($(mib_in_ceph) MiB of the image)"
}

image_alone() {
  local got
  got=$(lab run -- hack/demo/checksum-of-image.sh "$(image)" file)
  [ "$got" = "$sum" ] || fail "the image alone has $got"
  proof "the image alone, read from Ceph without any cache: same sha256"
}

step "install packages, build the lab" prepare
step "start Ceph, Kubernetes and three hosts" start_lab
step "declare a group of hosts and a StorageClass" declare_group_and_class
step "a pod claims a volume" start_pod
step "the pod writes $megabytes MiB with fsync" write
step "the pod moves to another host" move
step "the pod's host loses power" lose_host
step "the host comes back" bring_back
step "flush" flush
step "read the image from Ceph alone" image_alone
if [ "${KEEP:-}" = 1 ]; then what_to_try; fi
