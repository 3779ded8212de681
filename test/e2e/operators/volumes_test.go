//go:build e2e

package operators

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
)

// attach makes a claim in namespace shop, bound to a volume that is connected on a node with so
// much dirty. Its second copy is on n3, or on n1 if n3 is the node.
func (w *world) attach(t *testing.T, name, node string, dirty int64) {
	t.Helper()
	partner := "n3"
	if node == partner {
		partner = "n1"
	}
	w.attachWith(t, name, node, partner, dirty)
}

func (w *world) attachWith(t *testing.T, name, node, partner string, dirty int64) {
	t.Helper()
	w.port++
	must(t, w.api.Create(t.Context(), &v1alpha1.CacheVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pvc-" + name, Annotations: map[string]string{v1alpha1.AnnotationClaim: "shop/" + name}},
		Spec: v1alpha1.CacheVolumeSpec{
			ClusterID: "c", Pool: "rbd", Image: "escache-" + name, SizeBytes: 1 << 30, CacheBytes: 1 << 30, Group: "rack1",
			Replicas: []string{node, partner}, CacheMode: v1alpha1.CacheModeWriteback, Port: int32(7800 + w.port), Minor: int32(100 + w.port),
		},
	}))
	w.take(t, name, dirty)
	w.bind(t, name)
}

// take plays the attachment of a volume on the first of its nodes, with so much dirty.
func (w *world) take(t *testing.T, name string, dirty int64) {
	t.Helper()
	v := w.volume(t, name)
	node, partner := v.Spec.Replicas[0], v.Spec.Replicas[1]
	v.Status.Phase, v.Status.Authority, v.Status.AttachedNode = v1alpha1.VolumeReady, v1alpha1.AuthorityCache, node
	v.Status.Epoch++
	v.Status.SetDirtyBytes(dirty)
	for _, name := range []string{node, partner} {
		h := w.fleet.Hosts[name]
		must(t, h.Lay(escache.ReplicaRequest{
			VolumeRef: refOf(v), SizeBytes: v.Spec.SizeBytes, CacheBytes: v.Spec.CacheBytes, Port: int(v.Spec.Port), Minor: int(v.Spec.Minor),
		}))
		h.Write(refOf(v), dirty)
		v.Status.SetHostID(name, h.Status(refOf(v)).HostID)
	}
	must(t, w.api.Status().Update(t.Context(), v))
	w.fleet.Hosts[node].Stage(refOf(v), "10.0.0.1:0/1", v.Status.Epoch, escache.ModeWriteback)
	w.link(node, partner, name, true)
}

// leave takes a volume from its node by force. It is dirty there, and the other copy is old.
func (w *world) leave(t *testing.T, name, node string) {
	t.Helper()
	w.fleet.Hosts[node].Release(ref(name))
	w.fleet.Hosts[node].Write(ref(name), 20*mib)
	w.edit(t, name, func(v *v1alpha1.CacheVolume) { v.Status.AttachedNode, v.Status.Outdated = "", []string{"n3"} })
}

// detach plays what the end of a pod leads to: both copies are as they were, and no node has the volume.
func (w *world) detach(t *testing.T, name string) {
	t.Helper()
	w.edit(t, name, func(v *v1alpha1.CacheVolume) {
		w.fleet.Hosts[v.Status.AttachedNode].Release(refOf(v))
		v.Status.AttachedNode, v.Status.WriteThrough, v.Status.ClientAddress = "", nil, ""
	})
}

// edit changes the status of a volume, on which controllers work meanwhile.
func (w *world) edit(t *testing.T, name string, change func(*v1alpha1.CacheVolume)) {
	t.Helper()
	w.until(t, "the status of volume "+name+" is written", func() bool {
		v := w.volume(t, name)
		change(v)
		return w.api.Status().Update(t.Context(), v) == nil
	})
}

// link plays DRBD's link to a volume's second copy, as the node with the volume sees it.
func (w *world) link(node, partner, name string, up bool) {
	peer := escache.Peer{Name: partner, ConnectionState: escache.LinkWFConnection, DiskState: escache.DiskUnknown}
	if up {
		peer.ConnectionState, peer.DiskState = escache.LinkConnected, escache.DiskUpToDate
	}
	w.fleet.Hosts[node].Change(ref(name), func(s *escache.VolumeStatus) {
		s.Peers, s.DiskState, s.SyncedPercent = []escache.Peer{peer}, escache.DiskUpToDate, 100
	})
}

func (w *world) bind(t *testing.T, name string) {
	t.Helper()
	size := corev1.ResourceList{corev1.ResourceStorage: *quantity(1 << 30)}
	must(t, w.api.Create(t.Context(), &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pvc-" + name},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: size, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			ClaimRef:                      &corev1.ObjectReference{Namespace: "shop", Name: name},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: v1alpha1.DriverName, VolumeHandle: "pvc-" + name,
			}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{
					Key: v1alpha1.TopologyKey, Operator: corev1.NodeSelectorOpIn, Values: []string{"rack1"},
				}},
			}}}},
		},
	}))
	must(t, w.api.Create(t.Context(), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, VolumeName: "pvc-" + name, StorageClassName: new(""),
			Resources: corev1.VolumeResourceRequirements{Requests: size},
		},
	}))
}

func ref(name string) escache.VolumeRef {
	return escache.VolumeRef{Pool: "rbd", Image: "escache-" + name}
}

func refOf(v *v1alpha1.CacheVolume) escache.VolumeRef {
	return escache.VolumeRef{Pool: v.Spec.Pool, Image: v.Spec.Image}
}

func (w *world) volume(t *testing.T, name string) *v1alpha1.CacheVolume {
	t.Helper()
	v := &v1alpha1.CacheVolume{}
	must(t, w.api.Get(t.Context(), client.ObjectKey{Name: "pvc-" + name}, v))
	return v
}

// volumes are all volumes of a group.
func (w *world) volumes(t *testing.T, group string) []v1alpha1.CacheVolume {
	t.Helper()
	all := &v1alpha1.CacheVolumeList{}
	must(t, w.api.List(t.Context(), all))
	var out []v1alpha1.CacheVolume
	for _, v := range all.Items {
		if v.Spec.Group == group {
			out = append(out, v)
		}
	}
	return out
}

func (w *world) mode(node, name string) escache.Mode {
	return w.fleet.Hosts[node].Status(ref(name)).Mode
}
