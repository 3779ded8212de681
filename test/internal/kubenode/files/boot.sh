#!/bin/sh
# Prepares the network of pods: each node has a range of its own, and the way to the others' leads through the nodes themselves.
# shellcheck source=/dev/null
. /etc/kubernetes/node.env
modprobe -a overlay veth bridge br_netfilter nf_conntrack || exit 1
ip route replace default via "$GATEWAY" || exit 1
for route in $POD_ROUTES; do
  ip route replace "${route%=*}" via "${route#*=}" || exit 1
done
echo 1 >/proc/sys/net/ipv4/ip_forward
mkdir -p /var/lib/kubelet /var/lib/containerd
