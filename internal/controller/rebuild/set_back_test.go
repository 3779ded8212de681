package rebuild_test

import (
	"context"
	"testing"

	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/test/csitest"
)

// TestARecordThatWasSetBackDropsNothing: the record is from before the attachment in which the
// cache became dirty, and says that Ceph has everything.
func TestARecordThatWasSetBackDropsNothing(t *testing.T) {
	for name, seen := range map[string]bool{
		"by the host that had the volume":   true,
		"by the standby, which was written": false,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			v, holder, partner := w.WrittenSince("pvc-1")
			if !seen {
				w.Host(holder).Stop()
				w.Poll()
			}
			// Whatever is tried, and how often: nothing is attached, and nothing is lost.
			for range 3 {
				for _, node := range []string{partner, csitest.Other(v)} {
					_, err := w.Publish("pvc-1", node)
					csitest.Wants(t, err, codes.FailedPrecondition, "older than", "pvc-1")
					_ = w.Unpublish("pvc-1", node)
				}
				csitest.Wants(t, w.Delete("pvc-1"), codes.FailedPrecondition, "older than")
			}
			behind := meta.IsStatusConditionTrue(w.Volume("pvc-1").Status.Conditions, v1alpha1.ConditionRecordBehindDisks)
			if !behind {
				t.Error("nobody is told by a condition")
			}
			if !w.Holds(holder, v) || !w.Holds(partner, v) {
				t.Error("what was dirty is gone")
			}
		})
	}
}

// TestAReplicaOfALaterAttachmentIsNotCleanedUp: a host was away while the volume went on by a
// record that was set back. What it has is not what the record gave up.
func TestAReplicaOfALaterAttachmentIsNotCleanedUp(t *testing.T) {
	w := newWorld(t)
	v, holder, partner := w.UsedBefore("pvc-1")
	_, err := w.Publish("pvc-1", holder)
	csitest.Must(t, err)
	w.Host(holder).Stage(csitest.Ref(v), csitest.OldClient, 2, "writeback")
	w.Host(holder).Write(csitest.Ref(v), csitest.DirtyBytes)
	w.Host(holder).Release(csitest.Ref(v))
	w.SetBack(v)
	delete(w.Images.Notes, volumes.ImageOf(v)) // an older version attached it
	w.Host(partner).Forget()                   // it was lost before the holder wrote
	w.Host(holder).Stop()
	w.Poll()
	_, err = w.Publish("pvc-1", csitest.Other(v))
	csitest.Must(t, err)
	w.Host(holder).Restart(t)
	w.Poll()
	w.Poll()
	if !w.Holds(holder, v) {
		t.Error("a dirty replica was removed that the record never knew to be dirty")
	}
}

// TestNoSnapshotIsTakenByARecordThatWasSetBack: the record says that Ceph has everything, and a host
// has what was written since.
func TestNoSnapshotIsTakenByARecordThatWasSetBack(t *testing.T) {
	for name, noted := range map[string]bool{"the host says so": false, "the image says so": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			v, holder, partner := w.WrittenSince("pvc-1")
			if noted {
				w.Host(holder).Stop()
				w.Host(partner).Stop()
				w.Poll()
			} else {
				delete(w.Images.Notes, volumes.ImageOf(v))
			}
			_, err := w.Snap("s", "pvc-1")
			csitest.Wants(t, err, codes.FailedPrecondition, "older than", "pvc-1")
			if len(w.Images.Taken) != 0 || len(w.Snapshots()) != 0 {
				t.Errorf("taken: %v, on record: %v", w.Images.Taken, w.Snapshots())
			}
		})
	}
}

// dirtySetBack makes a volume whose record was set back to before a take-over: detached, dirty, and with
// two copies that count. The survivor has what was acknowledged since. The host that died has an older copy,
// and is back.
func (w *world) dirtySetBack(id string) (v *v1alpha1.CacheVolume, back, survivor string) {
	w.T.Helper()
	v, back, survivor, _ = w.PowerLoss(id)
	if v.Status.Epoch != 1 || v.Status.AttachedNode != "" || v.Status.Authority != v1alpha1.AuthorityCache {
		w.T.Fatalf("status %+v", v.Status)
	}
	_, err := w.Publish(id, survivor)
	csitest.Must(w.T, err)
	w.Host(survivor).Stage(csitest.Ref(v), csitest.OldClient, 2, "writeback")
	w.Host(survivor).Write(csitest.Ref(v), 2*csitest.DirtyBytes)
	w.Host(survivor).Release(csitest.Ref(v))
	w.Host(back).Restart(w.T)
	w.SetBack(v)
	w.Poll()
	return v, back, survivor
}

// TestNothingIsWrittenBackByARecordThatWasSetBack: a host with an older copy would write it over what Ceph
// has, or has the right to have. Each call that writes back first looks whether the record is the newest.
func TestNothingIsWrittenBackByARecordThatWasSetBack(t *testing.T) {
	verbs := map[string]func(*world) error{
		"snapshot": func(w *world) error { _, err := w.Snap("s", "pvc-1"); return err },
		"clone":    func(w *world) error { return w.Clone("b", "pvc-1") },
		"group":    func(w *world) error { _, err := w.SnapGroup("g", "pvc-1"); return err },
		"delete":   func(w *world) error { return w.Delete("pvc-1") },
		"release": func(w *world) error {
			w.AskRelease("pvc-1", true)
			return w.Locked.Release(w.T.Context(), "pvc-1")
		},
		"third node": func(w *world) error { _, err := w.Publish("pvc-1", csitest.Other(w.Volume("pvc-1"))); return err },
		"move": func(w *world) error {
			w.AskMove("pvc-1", "g2")
			return w.Locked.BeginMove(w.T.Context(), "pvc-1",
				func(context.Context, *v1alpha1.CacheVolume, string) (volumes.KeptVolume, error) {
					return volumes.KeptVolume{}, nil
				})
		},
	}
	for verb, do := range verbs {
		for name, noted := range map[string]bool{"the host says so": false, "the image says so": true} {
			t.Run(verb+"/"+name, func(t *testing.T) {
				w := newWorld(t, "n4", "n5", "n6")
				csitest.Must(t, w.API.Create(t.Context(), &v1alpha1.NodeGroup{
					ObjectMeta: metav1.ObjectMeta{Name: "g2"}, Spec: v1alpha1.NodeGroupSpec{Nodes: []string{"n4", "n5", "n6"}},
				}))
				w.PollBoth()
				v, back, survivor := w.dirtySetBack("pvc-1")
				if noted {
					w.Host(survivor).Stop()
					w.Poll()
				} else {
					delete(w.Images.Notes, volumes.ImageOf(v))
				}
				csitest.Wants(t, do(w), codes.FailedPrecondition, "older than", "pvc-1")
				csitest.Wants(t, do(w), codes.FailedPrecondition, "pvc-1")
				now := w.Volume("pvc-1")
				if now.Status.Epoch != v.Status.Epoch || now.Status.AttachedNode != "" {
					t.Errorf("the record has changed: %+v", now.Status)
				}
				if !meta.IsStatusConditionTrue(now.Status.Conditions, v1alpha1.ConditionRecordBehindDisks) {
					t.Error("nobody is told by a condition")
				}
				if !w.Holds(back, v) {
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
	_, first, survivor, third := w.PowerLoss("pvc-1")
	w.Host(survivor).FlushAtMost(csitest.DirtyBytes / 2)
	_, err := w.Publish("pvc-1", third)
	csitest.Wants(t, err, codes.Aborted, survivor)
	flushing := w.Volume("pvc-1")
	w.Host(survivor).Stop()
	w.Taint(survivor)
	w.Host(first).Restart(t)
	w.Poll()
	_, err = w.Publish("pvc-1", third)
	csitest.Wants(t, err, codes.Unavailable, survivor) // it is taken from it
	_, err = w.Publish("pvc-1", third)
	csitest.Must(t, err)
	w.Host(third).Stop()
	w.Host(first).Stop()
	w.Host(survivor).Restart(t)
	w.SetBack(flushing)
	w.Poll()
	_, err = w.Snap("s", "pvc-1")
	csitest.Wants(t, err, codes.FailedPrecondition, "older than", "pvc-1")
	if now := w.Volume("pvc-1").Status; !now.FlushAttached() || now.Epoch != flushing.Status.Epoch {
		t.Errorf("the flush went on: %+v", now)
	}
}
