package csitest

import (
	"context"

	"github.com/escache/escache-csi/api/v1alpha1"
)

// NewClient is the Ceph client of the second holder of a volume.
const NewClient = "10.0.0.2:0/9"

// TakenOverSince makes a volume whose record was set back to a time at which its first holder had it. The
// second one has taken it over since, and has what nobody else has.
func (w *World) TakenOverSince(id string) (v *v1alpha1.CacheVolume, first, second string) {
	w.T.Helper()
	v = w.Create(id)
	first, second = v.Spec.Replicas[0], v.Spec.Replicas[1]
	_, err := w.Publish(id, first)
	Must(w.T, err)
	w.Host(first).Stage(Ref(v), OldClient, 1, "writeback")
	w.Host(first).Write(Ref(v), DirtyBytes)
	w.Host(second).Write(Ref(v), DirtyBytes)
	v = w.Volume(id)
	v.Status.ClientAddress = OldClient
	Must(w.T, w.API.Status().Update(context.Background(), v))
	w.Taint(first)
	w.Host(first).Stop()
	w.Host(first).Release(Ref(v))
	w.Poll()
	Must(w.T, w.Unpublish(id, first))
	_, err = w.Publish(id, second)
	Must(w.T, err)
	w.Host(second).Stage(Ref(v), NewClient, 2, "writeback")
	w.SetBack(v)
	return v, first, second
}

// SetBack restores an older status of the volume, as a restored etcd does.
func (w *World) SetBack(old *v1alpha1.CacheVolume) {
	w.T.Helper()
	now := w.Volume(old.Name)
	now.Status = *old.Status.DeepCopy()
	Must(w.T, w.API.Status().Update(context.Background(), now))
}

// UsedBefore makes a volume that was attached once, and whose truth is in Ceph since.
func (w *World) UsedBefore(id string) (v *v1alpha1.CacheVolume, holder, partner string) {
	w.T.Helper()
	v = w.Create(id)
	holder, partner = v.Spec.Replicas[0], v.Spec.Replicas[1]
	_, err := w.Publish(id, holder)
	Must(w.T, err)
	Must(w.T, w.Unpublish(id, holder))
	if v = w.Volume(id); v.Status.Authority != v1alpha1.AuthorityCeph || v.Status.Epoch != 1 {
		w.T.Fatalf("status %+v", v.Status)
	}
	return v, holder, partner
}

// WrittenSince makes such a volume, whose record was then set back: both hosts have what was written in
// a later attachment.
func (w *World) WrittenSince(id string) (v *v1alpha1.CacheVolume, holder, partner string) {
	w.T.Helper()
	v, holder, partner = w.UsedBefore(id)
	_, err := w.Publish(id, holder)
	Must(w.T, err)
	w.Host(holder).Stage(Ref(v), OldClient, 2, "writeback")
	w.Host(holder).Write(Ref(v), DirtyBytes)
	w.Host(partner).Write(Ref(v), DirtyBytes)
	w.Host(holder).Release(Ref(v))
	w.SetBack(v)
	return v, holder, partner
}

// Holds reports whether the host still has the volume's replica with dirty bytes in it.
func (w *World) Holds(node string, v *v1alpha1.CacheVolume) bool {
	status := w.Host(node).Status(Ref(v))
	return status.DirtyBytes != nil && *status.DirtyBytes == DirtyBytes
}
