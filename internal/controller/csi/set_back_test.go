package csi_test

import (
	"context"
	"testing"

	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
)

// setBack restores an older status of the volume, as a restored etcd does.
func (w *world) setBack(old *v1alpha1.CacheVolume) {
	w.t.Helper()
	now := w.volume(old.Name)
	now.Status = *old.Status.DeepCopy()
	must(w.t, w.api.Status().Update(context.Background(), now))
}

// usedBefore makes a volume that was attached once, and whose truth is in Ceph since.
func (w *world) usedBefore(id string) (v *v1alpha1.CacheVolume, holder, partner string) {
	w.t.Helper()
	v = w.create(id)
	holder, partner = v.Spec.Replicas[0], v.Spec.Replicas[1]
	_, err := w.publish(id, holder)
	must(w.t, err)
	must(w.t, w.unpublish(id, holder))
	if v = w.volume(id); v.Status.Authority != v1alpha1.AuthorityCeph || v.Status.Epoch != 1 {
		w.t.Fatalf("status %+v", v.Status)
	}
	return v, holder, partner
}

// writtenSince makes such a volume, whose record was then set back: both hosts have what was written in
// a later attachment.
func (w *world) writtenSince(id string) (v *v1alpha1.CacheVolume, holder, partner string) {
	w.t.Helper()
	v, holder, partner = w.usedBefore(id)
	_, err := w.publish(id, holder)
	must(w.t, err)
	w.host(holder).Stage(ref(v), oldClient, 2, "writeback")
	w.host(holder).Write(ref(v), dirtyBytes)
	w.host(partner).Write(ref(v), dirtyBytes)
	w.host(holder).Release(ref(v))
	w.setBack(v)
	return v, holder, partner
}

// holds reports whether the host still has the volume's replica with dirty bytes in it.
func (w *world) holds(node string, v *v1alpha1.CacheVolume) bool {
	status, _ := w.host(node).Volume(ref(v))
	return status.DirtyBytes != nil && *status.DirtyBytes == dirtyBytes
}

// TestARecordThatWasSetBackDropsNothing: the record is from before the attachment in which the
// cache became dirty, and says that Ceph has everything.
func TestARecordThatWasSetBackDropsNothing(t *testing.T) {
	for name, seen := range map[string]bool{
		"by the host that had the volume":   true,
		"by the standby, which was written": false,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			v, holder, partner := w.writtenSince("pvc-1")
			if !seen {
				w.host(holder).Stop()
				w.poll()
			}
			// Whatever is tried, and how often: nothing is attached, and nothing is lost.
			for range 3 {
				for _, node := range []string{partner, other(v)} {
					_, err := w.publish("pvc-1", node)
					wants(t, err, codes.FailedPrecondition, "older than", "pvc-1")
					_ = w.unpublish("pvc-1", node)
				}
				wants(t, w.delete("pvc-1"), codes.FailedPrecondition, "older than")
			}
			behind := meta.IsStatusConditionTrue(w.volume("pvc-1").Status.Conditions, v1alpha1.ConditionRecordBehindDisks)
			if !behind {
				t.Error("nobody is told by a condition")
			}
			if !w.holds(holder, v) || !w.holds(partner, v) {
				t.Error("what was dirty is gone")
			}
		})
	}
}

// TestAReplicaOfALaterAttachmentIsNotCleanedUp: a host was away while the volume went on by a
// record that was set back. What it has is not what the record gave up.
func TestAReplicaOfALaterAttachmentIsNotCleanedUp(t *testing.T) {
	w := newWorld(t)
	v, holder, partner := w.usedBefore("pvc-1")
	_, err := w.publish("pvc-1", holder)
	must(t, err)
	w.host(holder).Stage(ref(v), oldClient, 2, "writeback")
	w.host(holder).Write(ref(v), dirtyBytes)
	w.host(holder).Release(ref(v))
	w.setBack(v)
	delete(w.images.notes, volumes.ImageOf(v)) // an older version attached it
	w.host(partner).Forget()                   // it was lost before the holder wrote
	w.host(holder).Stop()
	w.poll()
	_, err = w.publish("pvc-1", other(v))
	must(t, err)
	w.host(holder).Restart(t)
	w.poll()
	w.poll()
	if !w.holds(holder, v) {
		t.Error("a dirty replica was removed that the record never knew to be dirty")
	}
}

// TestNoSnapshotIsTakenByARecordThatWasSetBack: the record says that Ceph has everything, and a host
// has what was written since.
func TestNoSnapshotIsTakenByARecordThatWasSetBack(t *testing.T) {
	for name, noted := range map[string]bool{"the host says so": false, "the image says so": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			v, holder, partner := w.writtenSince("pvc-1")
			if noted {
				w.host(holder).Stop()
				w.host(partner).Stop()
				w.poll()
			} else {
				delete(w.images.notes, volumes.ImageOf(v))
			}
			_, err := w.snap("s", "pvc-1")
			wants(t, err, codes.FailedPrecondition, "older than", "pvc-1")
			if len(w.images.taken) != 0 || len(w.snapshots()) != 0 {
				t.Errorf("taken: %v, on record: %v", w.images.taken, w.snapshots())
			}
		})
	}
}

// dirtySetBack makes a volume whose record was set back to before a take-over: detached, dirty, and with
// two copies that count. The survivor has what was acknowledged since. The host that died has an older copy,
// and is back.
func (w *world) dirtySetBack(id string) (v *v1alpha1.CacheVolume, back, survivor string) {
	w.t.Helper()
	v, back, survivor, _ = w.powerLoss(id)
	if v.Status.Epoch != 1 || v.Status.AttachedNode != "" || v.Status.Authority != v1alpha1.AuthorityCache {
		w.t.Fatalf("status %+v", v.Status)
	}
	_, err := w.publish(id, survivor)
	must(w.t, err)
	w.host(survivor).Stage(ref(v), oldClient, 2, "writeback")
	w.host(survivor).Write(ref(v), 2*dirtyBytes)
	w.host(survivor).Release(ref(v))
	w.host(back).Restart(w.t)
	w.setBack(v)
	w.poll()
	return v, back, survivor
}

// TestNothingIsWrittenBackByARecordThatWasSetBack: a host with an older copy would write it over what Ceph
// has, or has the right to have. Each call that writes back first looks whether the record is the newest.
func TestNothingIsWrittenBackByARecordThatWasSetBack(t *testing.T) {
	verbs := map[string]func(*world) error{
		"snapshot": func(w *world) error { _, err := w.snap("s", "pvc-1"); return err },
		"clone":    func(w *world) error { return w.clone("b", "pvc-1") },
		"group":    func(w *world) error { _, err := w.snapGroup("g", "pvc-1"); return err },
		"delete":   func(w *world) error { return w.delete("pvc-1") },
		"release": func(w *world) error {
			w.askRelease("pvc-1", true)
			return w.locked.Release(w.t.Context(), "pvc-1")
		},
		"third node": func(w *world) error { _, err := w.publish("pvc-1", other(w.volume("pvc-1"))); return err },
		"move": func(w *world) error {
			w.askMove("g2")
			return w.locked.BeginMove(w.t.Context(), "pvc-1", func(context.Context, *v1alpha1.CacheVolume, string) (volumes.KeptVolume, error) {
				return volumes.KeptVolume{}, nil
			})
		},
	}
	for verb, do := range verbs {
		for name, noted := range map[string]bool{"the host says so": false, "the image says so": true} {
			t.Run(verb+"/"+name, func(t *testing.T) {
				w := newWorld(t, "n4", "n5", "n6")
				must(t, w.api.Create(t.Context(), &v1alpha1.NodeGroup{
					ObjectMeta: metav1.ObjectMeta{Name: "g2"}, Spec: v1alpha1.NodeGroupSpec{Nodes: []string{"n4", "n5", "n6"}},
				}))
				w.pollBoth()
				v, back, survivor := w.dirtySetBack("pvc-1")
				if noted {
					w.host(survivor).Stop()
					w.poll()
				} else {
					delete(w.images.notes, volumes.ImageOf(v))
				}
				wants(t, do(w), codes.FailedPrecondition, "older than", "pvc-1")
				wants(t, do(w), codes.FailedPrecondition, "pvc-1")
				now := w.volume("pvc-1")
				if now.Status.Epoch != v.Status.Epoch || now.Status.AttachedNode != "" {
					t.Errorf("the record has changed: %+v", now.Status)
				}
				if !meta.IsStatusConditionTrue(now.Status.Conditions, v1alpha1.ConditionRecordBehindDisks) {
					t.Error("nobody is told by a condition")
				}
				if !w.holds(back, v) {
					t.Errorf("the older copy on %s was written back", back)
				}
			})
		}
	}
}

// TestAFlushThatARestoredRecordHasUnderWayIsNotFinished: the record was set back to during a flush, whose host
// died in the middle of it. The other copy was written back then, and the volume was attached again.
func TestAFlushThatARestoredRecordHasUnderWayIsNotFinished(t *testing.T) {
	w := newWorld(t)
	_, first, survivor, third := w.powerLoss("pvc-1")
	w.host(survivor).FlushAtMost(dirtyBytes / 2)
	_, err := w.publish("pvc-1", third)
	wants(t, err, codes.Aborted, survivor)
	flushing := w.volume("pvc-1")
	w.host(survivor).Stop()
	w.taint(survivor)
	w.host(first).Restart(t)
	w.poll()
	_, err = w.publish("pvc-1", third)
	wants(t, err, codes.Unavailable, survivor) // it is taken from it
	_, err = w.publish("pvc-1", third)
	must(t, err)
	w.host(third).Stop()
	w.host(first).Stop()
	w.host(survivor).Restart(t)
	w.setBack(flushing)
	w.poll()
	_, err = w.snap("s", "pvc-1")
	wants(t, err, codes.FailedPrecondition, "older than", "pvc-1")
	if now := w.volume("pvc-1").Status; !now.FlushAttached() || now.Epoch != flushing.Status.Epoch {
		t.Errorf("the flush went on: %+v", now)
	}
}
