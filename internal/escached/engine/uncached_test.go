package engine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/krbd"
)

func uncachedOf(epoch int64, fenced ...string) escache.ConnectRequest {
	return escache.ConnectRequest{VolumeRef: ref, ImageID: "10ab", Epoch: epoch, Uncached: true, Fenced: fenced}
}

func one(t *testing.T, e *Engine) escache.VolumeStatus {
	t.Helper()
	s, err := e.Status(t.Context(), &ref)
	if err != nil || len(s.Volumes) != 1 {
		t.Fatalf("status %+v %v", s, err)
	}
	return s.Volumes[0]
}

func TestAnImageIsMappedWithoutACache(t *testing.T) {
	w := newWorld(t)
	w.groupID = "host-1"
	e := w.restarted()
	answer, err := e.DevConnect(t.Context(), uncachedOf(3))
	if err != nil {
		t.Fatal(err)
	}
	target, _ := os.Readlink(answer.Device)
	if !w.forFilesystem {
		t.Error("what its filesystem discards does not come back to Ceph")
	}
	if target != "/dev/rbd7" || answer.ImageID != "10ab" || answer.ClientAddress != "10.0.0.1:0/9" || len(w.lvs) != 0 {
		t.Errorf("%+v, which is %s, and the LVs %v", answer, target, w.lvs)
	}
	for what, engine := range map[string]*Engine{"now": e, "after a restart of escached": w.restarted()} {
		s := one(t, engine)
		if !s.Uncached || s.State != escache.StateConnected || s.Epoch != 3 || s.Device != answer.Device || s.HostID != "host-1" ||
			s.ClientAddress != answer.ClientAddress || s.Mode != escache.ModeWritethrough || s.DirtyBytes == nil || *s.DirtyBytes != 0 ||
			s.SizeBytes != 64<<20 || s.ImageID != "10ab" {
			t.Errorf("%s: %+v", what, s)
		}
		if all, err := engine.Status(t.Context(), nil); err != nil || len(all.Volumes) != 1 || all.Volumes[0].Device != answer.Device {
			t.Errorf("%s: all: %+v %v", what, all, err)
		}
	}
	if flushed, err := e.Flush(t.Context(), escache.FlushRequest{VolumeRef: ref, TimeoutSeconds: 1}); err != nil || !flushed.Clean {
		t.Errorf("flush: %+v %v", flushed, err)
	}
	for range 2 {
		if err := e.Stop(t.Context(), escache.StopRequest{VolumeRef: ref}); err != nil && code(err) != escache.CodeNotFound {
			t.Fatal(err)
		}
	}
	if _, err := os.Lstat(answer.Device); err == nil || len(w.maps) > 0 || one(t, e).State != escache.StateAbsent {
		t.Errorf("after stop: link %v, maps %v, %+v", err, w.maps, one(t, e))
	}
}

func TestARepeatedConnectKeepsTheMapAndStoresTheEpoch(t *testing.T) {
	w := newWorld(t)
	e := w.engine()
	first, err := e.DevConnect(t.Context(), uncachedOf(3))
	if err != nil {
		t.Fatal(err)
	}
	for _, epoch := range []int64{3, 5} {
		if again, err := e.DevConnect(t.Context(), uncachedOf(epoch)); err != nil || again != first || one(t, e).Epoch != epoch {
			t.Errorf("%d: %+v %v, status %+v", epoch, again, err, one(t, e))
		}
	}
	if _, err := e.DevConnect(t.Context(), uncachedOf(4)); code(err) != escache.CodeStaleEpoch || one(t, e).Epoch != 5 {
		t.Errorf("an older epoch: %v", err)
	}
	other := uncachedOf(6)
	other.ImageID = "20cd"
	if _, err := e.DevConnect(t.Context(), other); code(err) != escache.CodeIdentityMismatch || one(t, e).Epoch != 5 || len(w.maps) != 1 {
		t.Errorf("another image: %v", err)
	}
}

func TestAFencedMapWithoutACacheIsMadeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := w.engine()
		w.image.ClientAddress = ofKernel
		if _, err := e.DevConnect(t.Context(), uncachedOf(3)); err != nil {
			t.Fatal(err)
		}
		w.image.ClientAddress = "10.0.0.1:0/10"
		w.mapOpen = true
		if _, err := e.DevConnect(t.Context(), uncachedOf(4, ofCeph)); code(err) != escache.CodeDeviceOpen || !one(t, e).Uncached {
			t.Errorf("while it is open: %v", err)
		}
		w.mapOpen = false
		if again, err := e.DevConnect(t.Context(), uncachedOf(4, ofCeph)); err != nil || again.ClientAddress != "10.0.0.1:0/10" {
			t.Errorf("%+v %v", again, err)
		}
	})
}

func TestAMapThatFailsLeavesNothingUnknown(t *testing.T) {
	for name, c := range map[string]struct {
		breakIt func(w *world)
		want    escache.Code
	}{
		"image held elsewhere":       {func(w *world) { w.mapErr = krbd.ErrInUse }, escache.CodeImageInUse},
		"no image":                   {func(w *world) { w.mapErr = krbd.ErrNotFound }, escache.CodeImageNotFound},
		"another image of that name": {func(w *world) { w.image.ImageID = "20cd" }, escache.CodeIdentityMismatch},
		"no Ceph":                    {func(w *world) { w.mapErr = krbd.ErrUnavailable }, escache.CodeCephUnavailable},
	} {
		w := newWorld(t)
		e := w.engine()
		c.breakIt(w)
		if _, err := e.DevConnect(t.Context(), uncachedOf(3)); code(err) != c.want || len(w.maps) > 0 || one(t, e).State != escache.StateAbsent {
			t.Errorf("%s: %v, %+v", name, err, one(t, e))
		}
		if left, _ := filepath.Glob(filepath.Join(w.dir, "run", "uncached", "*")); len(left) > 0 {
			t.Errorf("%s: left %v", name, left)
		}
	}
}

// A host has a replica of a volume or its plain image, never both.
func TestAReplicaAndAMapWithoutACacheKeepEachOtherOut(t *testing.T) {
	w := newWorld(t)
	e := w.engine()
	if _, err := e.DevConnect(t.Context(), uncachedOf(3)); err != nil {
		t.Fatal(err)
	}
	if err := e.PutReplica(t.Context(), putReq); code(err) != escache.CodeConnected || len(w.lvs) > 0 {
		t.Errorf("a replica beside the map: %v", err)
	}
	w.maps = nil // half of a call
	if err := e.PutReplica(t.Context(), putReq); err != nil {
		t.Errorf("a replica beside a record: %v", err)
	}
	if _, err := e.DevConnect(t.Context(), uncachedOf(4)); code(err) != escache.CodeReplicaMismatch || len(w.maps) > 0 {
		t.Errorf("a map beside the replica: %v", err)
	}
	if s := one(t, e); s.Uncached || s.State != escache.StateStandby {
		t.Errorf("%+v", s)
	}
}

func TestADeviceThatIsOpenIsNotUnmapped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := w.engine()
		if _, err := e.DevConnect(t.Context(), uncachedOf(3)); err != nil {
			t.Fatal(err)
		}
		w.mapOpen = true
		w.record, w.recordErr = escache.VolumeRecord{Epoch: 4, AttachedNode: "n2"}, nil
		for verb, err := range map[string]error{
			"stop":    e.Stop(t.Context(), escache.StopRequest{VolumeRef: ref}),
			"abandon": e.Abandon(t.Context(), escache.AbandonRequest{VolumeRef: ref, Epoch: 4}),
		} {
			if s := one(t, e); code(err) != escache.CodeDeviceOpen || s.State != escache.StateConnected || s.Device == "" {
				t.Errorf("%s: %v, %+v", verb, err, s)
			}
		}
	})
}

func TestAMapIsGivenUpOnlyIfTheRecordSaysSo(t *testing.T) {
	for name, c := range map[string]struct {
		record escache.VolumeRecord
		err    error
		epoch  int64
		gone   bool
	}{
		"taken by another node":       {escache.VolumeRecord{Epoch: 4, AttachedNode: "n2", ImageID: "10ab"}, nil, 4, true},
		"taken, and nobody's":         {escache.VolumeRecord{Epoch: 3}, nil, 3, true},
		"its own":                     {escache.VolumeRecord{Epoch: 4, AttachedNode: "n1"}, nil, 4, false},
		"no answer":                   {escache.VolumeRecord{}, errors.New("no answer"), 4, false},
		"an older record":             {escache.VolumeRecord{Epoch: 3, AttachedNode: "n2"}, nil, 4, false},
		"an older request":            {escache.VolumeRecord{Epoch: 4, AttachedNode: "n2"}, nil, 2, false},
		"a record of another image":   {escache.VolumeRecord{Epoch: 4, AttachedNode: "n2", ImageID: "20cd"}, nil, 4, false},
		"an attachment of its own ID": {escache.VolumeRecord{Epoch: 3, AttachedNode: "n1"}, nil, 3, false},
	} {
		w := newWorld(t)
		e := w.engine()
		if _, err := e.DevConnect(t.Context(), uncachedOf(3)); err != nil {
			t.Fatal(err)
		}
		w.record, w.recordErr = c.record, c.err
		err := e.Abandon(t.Context(), escache.AbandonRequest{VolumeRef: ref, Epoch: c.epoch})
		if gone := len(w.maps) == 0; gone != c.gone || !gone && code(err) != escache.CodeNotSuperseded || gone && err != nil {
			t.Errorf("%s: %v, gone %v", name, err, gone)
		}
	}
}

func TestTheDeviceGrowsWithTheImage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := w.engine()
		resize := func(bytes int64) error {
			return e.Resize(t.Context(), escache.ResizeRequest{VolumeRef: ref, SizeBytes: bytes})
		}
		if _, err := e.DevConnect(t.Context(), uncachedOf(3)); err != nil {
			t.Fatal(err)
		}
		if err := resize(128 << 20); code(err) != escache.CodeInvalidRequest {
			t.Errorf("before the image has grown: %v", err)
		}
		w.maps[0].Bytes = 128 << 20
		if err := resize(128 << 20); err != nil || one(t, e).SizeBytes != 128<<20 {
			t.Errorf("%v, %+v", err, one(t, e))
		}
		if err := resize(64 << 20); code(err) != escache.CodeInvalidRequest {
			t.Errorf("smaller: %v", err)
		}
	})
}

// After a reboot the kernel has no map, and the record below /run is gone or, if that is on a disk,
// there without a map.
func TestNothingIsLeftAfterAReboot(t *testing.T) {
	w := newWorld(t)
	answer, err := w.engine().DevConnect(t.Context(), uncachedOf(3))
	if err != nil {
		t.Fatal(err)
	}
	w.maps = nil
	e := w.restarted()
	if s := one(t, e); s.State != escache.StateAbsent || s.Uncached {
		t.Errorf("%+v", s)
	}
	if _, err := os.Lstat(answer.Device); err == nil {
		t.Error("the link is still there")
	}
	if left, _ := filepath.Glob(filepath.Join(w.dir, "run", "uncached", "*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestMappingWithoutACacheCanBeKilledAnywhere(t *testing.T) {
	for n := 1; ; n++ {
		w := newWorld(t)
		e := w.engine()
		hit := false
		for _, verb := range []struct {
			name string
			do   func(e *Engine) error
		}{
			{"connect", func(e *Engine) error { _, err := e.DevConnect(t.Context(), uncachedOf(3)); return err }},
			{"stop", func(e *Engine) error {
				if err := e.Stop(t.Context(), escache.StopRequest{VolumeRef: ref}); code(err) != escache.CodeNotFound {
					return err
				}
				return nil
			}},
		} {
			w.killAt = len(w.steps) + n
			died, err := dieAt(func() error { return verb.do(e) })
			w.killAt = 0
			if died {
				hit, e = true, w.restarted()
				err = verb.do(e)
			}
			if err != nil {
				t.Fatalf("%s, killed at step %d: %v", verb.name, n, err)
			}
		}
		if left := fmt.Sprint(w.left()); left != "[]" || one(t, e).State != escache.StateAbsent {
			t.Fatalf("killed at step %d: left %s, %+v", n, left, one(t, e))
		}
		if !hit {
			return
		}
	}
}
