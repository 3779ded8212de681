package volumes

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
)

// addressesOf returns the addresses that are known of a node: of its replication link, and of the Ceph
// clients that the records name as its own. All clients of a host have one IP address. If the node's
// address is not known, or Kubernetes has forgotten the node, nobody may know whose a client is.
func (s *Steps) addressesOf(ctx context.Context, v *v1alpha1.CacheVolume, node string) []string {
	var known []string
	if replication, err := s.Hosts.ReplicationAddress(ctx, node); err == nil {
		known = append(known, replication)
	}
	known = append(known, clientsOf(v, node)...)
	all := &v1alpha1.CacheVolumeList{}
	if err := s.Cached.List(ctx, all, client.UnsafeDisableDeepCopy); err != nil {
		s.Log.WarnContext(ctx, "nobody knows the addresses of a node's other Ceph clients", "node", node, "error", err)
	}
	for i := range all.Items {
		known = append(known, clientsOf(&all.Items[i], node)...)
	}
	return known
}

// clientsOf returns the Ceph clients that a volume's record names as a node's.
func clientsOf(v *v1alpha1.CacheVolume, node string) (addresses []string) {
	if v.Status.AttachedNode == node && v.Status.ClientAddress != "" {
		addresses = append(addresses, v.Status.ClientAddress)
	}
	for _, fenced := range v.Status.Fenced {
		if fenced.Node == node && fenced.Address != "" {
			addresses = append(addresses, fenced.Address)
		}
	}
	return addresses
}

// addressesOfFenced is addressesOf for the volume's holder and for the nodes from which it was taken,
// by node. If all clients of those were known, it is empty: their addresses are enough.
func (s *Steps) addressesOfFenced(ctx context.Context, v *v1alpha1.CacheVolume) map[string][]string {
	known := map[string][]string{}
	for _, fenced := range v.Status.Fenced {
		for _, node := range []string{fenced.Node, v.Status.AttachedNode} {
			if _, asked := known[node]; fenced.Address == "" && node != "" && !asked {
				known[node] = s.addressesOf(ctx, v, node)
			}
		}
	}
	return known
}
