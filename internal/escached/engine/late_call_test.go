package engine

import (
	"context"
	"reflect"
	"testing"

	"github.com/escache/escache-csi/api/escache"
)

// aboutAttachment are the calls that name the attachment that they are about, in the order of a device's life.
func aboutAttachment(e *Engine, epoch int64) []lifeVerb {
	ctx := context.Background()
	return []lifeVerb{
		{"mode", func(*Engine) error {
			return e.SetMode(ctx, escache.ModeRequest{VolumeRef: ref, Epoch: epoch, Mode: escache.ModeWritethrough})
		}},
		{"resize", func(*Engine) error {
			return e.Resize(ctx, escache.ResizeRequest{VolumeRef: ref, Epoch: epoch, SizeBytes: 64 << 20})
		}},
		{"hold", func(*Engine) error {
			_, err := e.Hold(ctx, escache.HoldRequest{VolumeRef: ref, Epoch: epoch, MaxSeconds: 60})
			return err
		}},
		{"release", func(*Engine) error { return e.Release(ctx, escache.ReleaseRequest{VolumeRef: ref, Epoch: epoch}) }},
		{"flush", func(*Engine) error {
			_, err := e.Flush(ctx, escache.FlushRequest{VolumeRef: ref, Epoch: epoch, TimeoutSeconds: 5})
			return err
		}},
		{"stop", func(*Engine) error { return e.Stop(ctx, escache.StopRequest{VolumeRef: ref, Epoch: epoch}) }},
	}
}

// TestALateCallOfAnEarlierAttachmentChangesNothing: a call was under way for long, and the volume was given
// to this host again since. A late writeback would make data dirty that the record takes to be in Ceph. A late
// stop would take the device from the pod that starts, a late hold or release its snapshot.
func TestALateCallOfAnEarlierAttachmentChangesNothing(t *testing.T) {
	for what, held := range map[string]bool{"": false, "while it is held": true} {
		w := newWorld(t)
		e := w.engine()
		if err := e.PutReplica(t.Context(), putReq); err != nil {
			t.Fatal(err)
		}
		if _, err := connectWith(e, 5); err != nil {
			t.Fatal(err)
		}
		if held {
			if _, err := e.Hold(t.Context(), escache.HoldRequest{VolumeRef: ref, Epoch: 5, MaxSeconds: 600}); err != nil {
				t.Fatal(err)
			}
		} else {
			w.setDirty(4096)
		}
		before := one(t, e)
		for when, e := range map[string]*Engine{"": e, "after a restart": w.restarted()} {
			for _, verb := range aboutAttachment(e, 4) {
				if held && verb.name != "stop" && verb.name != "release" && verb.name != "hold" {
					continue // it is refused for that
				}
				if err := verb.do(e); code(err) != escache.CodeStaleEpoch {
					t.Errorf("%s of attachment 4 %s %s: %v", verb.name, what, when, err)
				}
				if now := one(t, e); !reflect.DeepEqual(now, before) {
					t.Errorf("%s of attachment 4 %s %s:\n%+v, it was\n%+v", verb.name, what, when, now, before)
				}
			}
		}
	}
}

// TestACallIsCarriedOut if it is about the attachment that the host has, or about a later one that the host
// has not heard of yet, and if it does not say, as those of older callers.
func TestACallIsCarriedOut(t *testing.T) {
	for what, epoch := range map[string]int64{"the same attachment": 5, "a later one": 6, "an older caller": 0} {
		w := newWorld(t)
		e := w.engine()
		if err := e.PutReplica(t.Context(), putReq); err != nil {
			t.Fatal(err)
		}
		if _, err := connectWith(e, 5); err != nil {
			t.Fatal(err)
		}
		for _, verb := range aboutAttachment(e, epoch) {
			if err := verb.do(e); err != nil {
				t.Errorf("%s: %s: %v", what, verb.name, err)
			}
		}
		if s := one(t, e); s.State != escache.StateStandby || s.Epoch != 5 {
			t.Errorf("%s: %+v", what, s)
		}
	}
}

func TestALateCallChangesNothingOfAnImageWithoutACache(t *testing.T) {
	w := newWorld(t)
	e := w.restarted()
	if _, err := e.DevConnect(t.Context(), uncachedOf(5)); err != nil {
		t.Fatal(err)
	}
	run := func(what string, e *Engine, epoch int64, want escache.Code) {
		t.Helper()
		for _, verb := range aboutAttachment(e, epoch) {
			if verb.name != "flush" && verb.name != "resize" && verb.name != "stop" {
				continue // there is no cache for it
			}
			if err := verb.do(e); code(err) != want {
				t.Errorf("%s of attachment %d, %s: %v", verb.name, epoch, what, err)
			}
		}
	}
	run("now", e, 4, escache.CodeStaleEpoch)
	run("after a restart", w.restarted(), 4, escache.CodeStaleEpoch)
	if s := one(t, e); s.State != escache.StateConnected || len(w.maps) != 1 {
		t.Errorf("%+v, mapped are %v", s, w.maps)
	}
	run("now", e, 5, "")
}
