#!/bin/sh
# Loads the images that came with the payload, then is the kubelet.
# shellcheck source=/dev/null
. /etc/kubernetes/node.env
while [ ! -S /run/containerd/containerd.sock ]; do sleep 0.1; done
for image in /var/lib/lab/images/*.tar; do
  [ -e "$image" ] || continue
  ctr --namespace k8s.io images import --local "$image" && rm "$image"
done
# Certificates that the kubelet would make itself must not survive a power loss half written.
exec kubelet --config=/etc/kubernetes/kubelet.yaml --kubeconfig=/etc/kubernetes/kubelet.kubeconfig --cert-dir=/run/kubelet-pki \
  --hostname-override="$NODE_NAME" --node-ip="$NODE_ADDRESS" --housekeeping-interval=1m --v=2
