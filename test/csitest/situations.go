package csitest

import (
	"context"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
)

// Lose makes a volume whose only current copy is on a host that died while it wrote, with 4096
// bytes dirty.
func (w *World) Lose(name string) (v *v1alpha1.CacheVolume, dead, partner string) {
	w.T.Helper()
	v = w.Create(name)
	dead, partner = v.Spec.Replicas[0], v.Spec.Replicas[1]
	_, err := w.Publish(name, dead)
	Must(w.T, err)
	w.Host(dead).Connect(Ref(v), "10.0.0.1:0/1")
	w.Host(dead).Write(Ref(v), 4096)
	v = w.Volume(name)
	v.Status.Outdated, v.Status.ClientAddress = []string{partner}, "10.0.0.1:0/1"
	v.Status.SetDirtyBytes(4096)
	Must(w.T, w.API.Status().Update(context.Background(), v))
	w.Host(dead).Stop()
	w.Taint(dead)
	w.Poll()
	return w.Volume(name), dead, partner
}

// OldClient is the Ceph client of a volume's first holder.
const OldClient = "10.0.0.1:0/1"

// Fenced makes a volume that was taken from its first node by force, as long ago as a dev_connect
// can take.
func (w *World) Fenced(id string) (v *v1alpha1.CacheVolume, dead, partner string) {
	w.T.Helper()
	return w.FencedClient(id, OldClient)
}

// FencedClient is Fenced for a node that had mapped the image with that client.
func (w *World) FencedClient(id, address string) (v *v1alpha1.CacheVolume, dead, partner string) {
	w.T.Helper()
	v = w.Create(id)
	dead, partner = v.Spec.Replicas[0], v.Spec.Replicas[1]
	_, err := w.Publish(id, dead)
	Must(w.T, err)
	w.Host(dead).Connect(Ref(v), address)
	v = w.Volume(id)
	v.Status.ClientAddress = address
	Must(w.T, w.API.Status().Update(context.Background(), v))
	w.Taint(dead)
	Must(w.T, w.Unpublish(id, dead))
	v = w.Volume(id)
	if len(v.Status.Fenced) != 1 || v.Status.Fenced[0].Node != dead {
		w.T.Fatalf("fenced %+v", v.Status.Fenced)
	}
	v.Status.Fenced[0].Time = metav1.NewTime(time.Now().Add(-time.Hour))
	Must(w.T, w.API.Status().Update(context.Background(), v))
	return v, dead, partner
}

// Lift has the fences lifted that can be, and returns the addresses that are left.
func (w *World) Lift(id string) []string {
	w.T.Helper()
	left, err := w.Locked.Unfence(context.Background(), id)
	Must(w.T, err)
	v := w.Volume(id)
	if left != len(v.Status.Fenced) {
		w.T.Errorf("%d are left, and %d on record", left, len(v.Status.Fenced))
	}
	return w.Images.Fenced
}

// Connected makes a volume that a node has connected, with something dirty.
func (w *World) Connected(name string) (v *v1alpha1.CacheVolume, node string) {
	w.T.Helper()
	return w.connected(CreateRequest(name))
}

// ConnectedLog is Connected for a volume with the cache engine log, whose I/O goes on while it is held.
func (w *World) ConnectedLog(name string) (v *v1alpha1.CacheVolume, node string) {
	w.T.Helper()
	r := CreateRequest(name)
	r.Parameters["cacheEngine"] = string(v1alpha1.CacheEngineLog)
	return w.connected(r)
}

func (w *World) connected(r *csi.CreateVolumeRequest) (v *v1alpha1.CacheVolume, node string) {
	w.T.Helper()
	_, err := w.Service.CreateVolume(w.T.Context(), r)
	Must(w.T, err)
	name := r.GetName()
	node = w.Volume(name).Spec.Replicas[0]
	_, err = w.Publish(name, node)
	Must(w.T, err)
	v = w.Volume(name)
	w.Host(node).Stage(Ref(v), "192.0.2.1:0/1", v.Status.Epoch, escache.ModeWriteback)
	w.Host(node).Write(Ref(v), DirtyBytes)
	return v, node
}

// DirtyDetached makes a detached volume of which its replicas have more than Ceph. Whoever takes a
// snapshot of it has to write that back first; took fails unless one was taken.
func (w *World) DirtyDetached(name string) (took func()) {
	w.T.Helper()
	v := w.Create(name)
	_, err := w.Publish(name, v.Spec.Replicas[0])
	Must(w.T, err)
	for _, n := range v.Spec.Replicas {
		w.Host(n).Write(Ref(v), DirtyBytes)
	}
	Must(w.T, w.Unpublish(name, v.Spec.Replicas[0]))
	if w.Volume(name).Status.Authority == v1alpha1.AuthorityCeph {
		w.T.Fatal("it is clean before the snapshot")
	}
	snapshots := 0
	w.Images.Taking = func(volumes.SnapshotRef) {
		snapshots++
		if got := w.Volume(name).Status.Authority; got != v1alpha1.AuthorityCeph {
			w.T.Errorf("taken while the truth is in %s", got)
		}
	}
	return func() {
		w.T.Helper()
		if snapshots != 1 {
			w.T.Errorf("%d snapshots were taken", snapshots)
		}
	}
}

// Snapshotted makes the volume a and its snapshot s.
func (w *World) Snapshotted() {
	w.T.Helper()
	w.Create("a")
	_, err := w.Snap("s", "a")
	Must(w.T, err)
}

// Widow makes an attached volume whose partner's host is dead, with a repair on record.
func (w *World) Widow(name string) (v *v1alpha1.CacheVolume, holder, lost, third string) {
	w.T.Helper()
	v = w.Create(name)
	holder, lost, third = v.Spec.Replicas[0], v.Spec.Replicas[1], Other(v)
	_, err := w.Publish(name, holder)
	Must(w.T, err)
	w.Host(holder).Connect(Ref(v), "10.0.0.1:0/1")
	w.Host(lost).Stop()
	w.Poll()
	v = w.Volume(name)
	v.Status.Outdated = []string{lost}
	v.Status.Repair = &v1alpha1.ReplicaRepair{Epoch: v.Status.Epoch, Lost: lost, Since: metav1.Now()}
	Must(w.T, w.API.Status().Update(context.Background(), v))
	return w.Volume(name), holder, lost, third
}

// TakeEpoch gives a host's replica the epoch on record.
func (w *World) TakeEpoch(host, volume string) {
	v := w.Volume(volume)
	w.Host(host).SetEpoch(Ref(v), v.Status.Epoch)
}

// MayLeave makes a volume whose class allows nodes outside its group.
func (w *World) MayLeave(name string) *v1alpha1.CacheVolume {
	w.T.Helper()
	r := CreateRequest(name)
	r.Parameters["uncachedFallback"] = "true"
	out, err := w.Service.CreateVolume(w.T.Context(), r)
	Must(w.T, err)
	var keys []string
	for _, term := range out.GetVolume().GetAccessibleTopology() {
		for key, value := range term.GetSegments() {
			keys = append(keys, key+"="+value)
		}
	}
	if want := []string{"topology.escache.io/group=g1", "g1.uncached.escache.io/allowed=true"}; !slices.Equal(keys, want) {
		w.T.Errorf("accessible from %q, want %q", keys, want)
	}
	return w.Volume(name)
}

// UsedOnce makes a volume that was used in its group, is detached, and has clean caches there.
func (w *World) UsedOnce(id string) *v1alpha1.CacheVolume {
	w.T.Helper()
	v := w.MayLeave(id)
	node := v.Spec.Replicas[0]
	_, err := w.Publish(id, node)
	Must(w.T, err)
	w.Host(node).Connect(Ref(v), "10.0.0.1:0/1")
	w.Host(node).Release(Ref(v))
	Must(w.T, w.Unpublish(id, node))
	return w.Volume(id)
}

// DirtyBytes is how much is dirty in the caches of volumes that have something dirty.
const DirtyBytes = 64 << 20

// PowerLoss leaves a volume as the power loss of its host does: dirty, with one current copy that
// answers.
func (w *World) PowerLoss(id string) (v *v1alpha1.CacheVolume, dead, survivor, third string) {
	w.T.Helper()
	v = w.Create(id)
	dead, survivor, third = v.Spec.Replicas[0], v.Spec.Replicas[1], Other(v)
	_, err := w.Publish(id, dead)
	Must(w.T, err)
	for _, n := range v.Spec.Replicas {
		w.Host(n).Write(Ref(v), DirtyBytes)
	}
	w.Host(dead).Stop()
	w.Taint(dead)
	w.Poll()
	Must(w.T, w.Unpublish(id, dead))
	return w.Volume(id), dead, survivor, third
}

// BeforeItWasMade sets the volume's record back to a time at which its image was not there yet.
func (w *World) BeforeItWasMade(id string) {
	w.T.Helper()
	v := w.Volume(id)
	v.Status = v1alpha1.CacheVolumeStatus{}
	Must(w.T, w.API.Status().Update(context.Background(), v))
}

// HalfMade makes of a volume one whose image an interrupted call has left.
func (w *World) HalfMade(id string) {
	w.T.Helper()
	w.BeforeItWasMade(id)
	note := w.Images.Notes[ImageNamed(id)]
	note.Complete = false
	w.Images.Notes[ImageNamed(id)] = note
}

// Leftover makes a clean, detached volume of which a host still has the device of an attachment that ended. No
// client of it was fenced.
func (w *World) Leftover(id string) (v *v1alpha1.CacheVolume, former, partner string) {
	w.T.Helper()
	v, former, partner = w.UsedBefore(id)
	w.Host(former).Stage(Ref(v), OldClient, 1, escache.ModeWritethrough)
	if s := w.Volume(id).Status; s.AttachedNode != "" || len(s.Fenced) > 0 {
		w.T.Fatalf("status %+v", s)
	}
	return v, former, partner
}

// GivesUp makes a host prove that its device was superseded, if it is asked to give it up. Its Ceph client goes with
// it. The other hosts must not be asked.
func (w *World) GivesUp(v *v1alpha1.CacheVolume, former string) {
	w.T.Helper()
	w.NotAsked(former)
	w.Host(former).Supersede(Ref(v), v.Status.Epoch)
	w.Host(former).Before(abandon, func() { delete(w.Images.Open, volumes.ImageOf(v)) })
}

// NotAsked makes the test fail if a host other than the one that is named is asked to give up a device.
func (w *World) NotAsked(but string) {
	for name, host := range w.Fleet.Hosts {
		if name != but {
			host.Before(abandon, func() { w.T.Errorf("node %s is asked to give up a device", name) })
		}
	}
}

const abandon = "POST " + escache.PathAbandon
