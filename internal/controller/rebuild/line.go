package rebuild

import (
	"github.com/escache/escache-csi/api/v1alpha1"
)

// line is the result for one image.
type line struct{ v1alpha1.RebuiltVolume }

// lineOf returns what the image says of its volume and its use.
func lineOf(e Evidence) *line {
	n := e.Remains.Note
	out := &line{v1alpha1.RebuiltVolume{
		Image: e.Image.Image, Volume: e.Remains.Volume, Kubernetes: e.Remains.Kubernetes, SizeBytes: e.Remains.SizeBytes,
		Group: n.Spec.Group, Claim: n.Claim, PersistentVolume: n.PersistentVolume, StorageClass: n.StorageClass,
	}}
	if u := n.Use; u != nil {
		out.FSType, out.VolumeMode, out.AccessMode, out.MountOptions = u.FSType, string(u.VolumeMode), string(u.AccessMode), u.MountOptions
	}
	return out
}

// show enters what a record says.
func (l *line) show(v *v1alpha1.CacheVolume) {
	l.Volume, l.Group, l.SizeBytes, l.Replicas = v.Name, v.Spec.Group, v.Spec.SizeBytes, v.Spec.Replicas
	l.Authority, l.Epoch, l.Outdated = v.Status.Authority, v.Status.Epoch, v.Status.Outdated
}
