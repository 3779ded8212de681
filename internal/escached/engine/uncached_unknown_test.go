package engine

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/command"
	"github.com/escache/escache-csi/internal/escached/volume"
)

// damage makes the record of an image without a cache unreadable.
func (w *world) damage(text string) {
	w.t.Helper()
	dir := filepath.Join(w.dir, "run", "uncached")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, volume.NameOf(ref)), []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// mayHaveIt fails unless csi-controller has to take the host's answer for a device. The tests of package
// authority say what follows from that: a fence, or no detachment.
func mayHaveIt(t *testing.T, when string, s escache.VolumeStatus) {
	t.Helper()
	if s.State == escache.StateAbsent || !s.Uncached || s.Error == nil {
		t.Errorf("%s: %+v", when, s)
	}
	if !authority.HasDevice(s) || !s.Connecting && s.Error.Code == escache.CodeStuck {
		t.Errorf("%s: no device: %+v", when, s)
	}
}

func groupWorld(t *testing.T) (*world, *Engine) {
	t.Helper()
	w := newWorld(t)
	w.groupID = "host-1"
	return w, w.restarted()
}

// The image is mapped, and its device written to.
func TestARecordThatCannotBeReadIsNoProofThatTheMapIsGone(t *testing.T) {
	for _, text := range []string{"", `{"pool":`} {
		w, e := groupWorld(t)
		if _, err := e.DevConnect(t.Context(), uncachedOf(3)); err != nil {
			t.Fatal(err)
		}
		w.damage(text)
		s := one(t, e)
		mayHaveIt(t, "damaged", s)
		if s.ClientAddress != w.image.ClientAddress {
			t.Errorf("the kernel's map is not told: %+v", s)
		}
		if flushed, err := e.Flush(t.Context(), escache.FlushRequest{VolumeRef: ref, TimeoutSeconds: 1}); err == nil {
			t.Errorf("flush: %+v", flushed)
		}
		err := e.Stop(t.Context(), escache.StopRequest{VolumeRef: ref})
		if err != nil || len(w.maps) > 0 || one(t, e).State != escache.StateAbsent {
			t.Errorf("stop: %v, maps %v, %+v", err, w.maps, one(t, e))
		}
		if after := one(t, e); authority.HasDevice(after) {
			t.Errorf("after stop: %+v", after)
		}
	}
}

// A damaged file alone must not keep the volume from this host until it is booted again.
func TestADamagedRecordOfNothingGoesWithStop(t *testing.T) {
	for verb, do := range map[string]func(w *world, e *Engine) error{
		"stop": func(_ *world, e *Engine) error { return e.Stop(t.Context(), escache.StopRequest{VolumeRef: ref}) },
		"abandon": func(w *world, e *Engine) error {
			w.record, w.recordErr = escache.VolumeRecord{Epoch: 4, AttachedNode: "n2", ImageID: "10ab"}, nil
			return abandon(e, 4)
		},
	} {
		w, e := groupWorld(t)
		w.damage("")
		mayHaveIt(t, "damaged", one(t, e))
		if err := do(w, e); err != nil || one(t, e).State != escache.StateAbsent {
			t.Errorf("%s: %v, %+v", verb, err, one(t, e))
		}
		if _, err := e.DevConnect(t.Context(), uncachedOf(5)); err != nil {
			t.Errorf("%s, and connected again: %v", verb, err)
		}
	}
}

// Ceph answers slowly, and nobody waits for the call any more.
func TestAnImageThatIsBeingMappedIsNotAbsent(t *testing.T) {
	w, e := groupWorld(t)
	release, err := e.Lock(ref, "dev_connect")
	if err != nil {
		t.Fatal(err)
	}
	mayHaveIt(t, "before the record", one(t, e))
	release()
	if s := one(t, e); s.State != escache.StateAbsent {
		t.Errorf("nothing is under way: %+v", s)
	}
	w.mapping = func() {
		s := one(t, e)
		mayHaveIt(t, "while it is mapped", s)
		if s.Epoch != 3 || s.ClientAddress != "" {
			t.Errorf("while it is mapped: %+v", s)
		}
		if all, err := e.Status(t.Context(), nil); err != nil || len(all.Volumes) != 1 || all.Volumes[0].State != escache.StateError {
			t.Errorf("while it is mapped, all: %+v %v", all, err)
		}
		if flushed, err := e.Flush(t.Context(), escache.FlushRequest{VolumeRef: ref, TimeoutSeconds: 1}); err == nil && !flushed.Clean {
			t.Errorf("flush: %+v", flushed)
		}
		if err := e.Stop(t.Context(), escache.StopRequest{VolumeRef: ref}); code(err) != escache.CodeBusy {
			t.Errorf("stop: %v", err)
		}
		w.record, w.recordErr = escache.VolumeRecord{Epoch: 4, AttachedNode: "n2"}, nil
		if err := abandon(e, 4); code(err) != escache.CodeBusy {
			t.Errorf("abandon: %v", err)
		}
	}
	if _, err := e.DevConnect(t.Context(), uncachedOf(3)); err != nil {
		t.Fatal(err)
	}
	if err := e.Stop(t.Context(), escache.StopRequest{VolumeRef: ref}); err != nil || one(t, e).State != escache.StateAbsent {
		t.Errorf("%v, %+v", err, one(t, e))
	}
}

func TestWhileOnlyTheLockIsThereNothingIsTakenForDone(t *testing.T) {
	_, e := groupWorld(t)
	release, err := e.Lock(ref, "dev_connect")
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	_, flush := e.Flush(t.Context(), escache.FlushRequest{VolumeRef: ref, TimeoutSeconds: 1})
	for verb, err := range map[string]error{
		"flush":   flush,
		"stop":    e.Stop(t.Context(), escache.StopRequest{VolumeRef: ref}),
		"abandon": abandon(e, 4),
		"resize":  e.Resize(t.Context(), escache.ResizeRequest{VolumeRef: ref, SizeBytes: 64 << 20}),
	} {
		if code(err) != escache.CodeBusy {
			t.Errorf("%s: %v", verb, err)
		}
	}
}

// The program that maps it hangs in the kernel, and cannot be killed: the map may still come.
func TestAMapThatMayStillComeIsNotAbsent(t *testing.T) {
	w, e := groupWorld(t)
	hangs := &command.StuckError{Command: "map", Pid: 7, Since: time.Now()}
	w.mapErr = hangs
	w.mapping = func() { w.stuck = map[string]*command.StuckError{volume.NameOf(ref): hangs} }
	if _, err := e.DevConnect(t.Context(), uncachedOf(3)); code(err) != escache.CodeStuck {
		t.Fatal(err)
	}
	mayHaveIt(t, "stuck", one(t, e))
	for verb, err := range map[string]error{
		"stop":        e.Stop(t.Context(), escache.StopRequest{VolumeRef: ref}),
		"put_replica": e.PutReplica(t.Context(), putReq),
	} {
		if code(err) != escache.CodeStuck || one(t, e).State == escache.StateAbsent {
			t.Errorf("%s: %v, %+v", verb, err, one(t, e))
		}
	}
	w.maps, w.stuck = append(w.maps, w.image), nil
	if s := one(t, e); s.State != escache.StateConnected || s.ClientAddress == "" || s.Epoch != 3 {
		t.Errorf("mapped since: %+v", s)
	}
	w.maps = nil
	mayHaveIt(t, "half of a call", one(t, e))
	if err := e.Stop(t.Context(), escache.StopRequest{VolumeRef: ref}); err != nil || one(t, e).State != escache.StateAbsent {
		t.Errorf("stop: %v, %+v", err, one(t, e))
	}
}

// The replica of a volume decides, whatever a file of another kind says.
func TestARecordBesideAReplicaDoesNotDisturbIt(t *testing.T) {
	for _, text := range []string{`{"pool":`, `{"pool":"rbd","image":"v1","imageID":"10ab","epoch":1}`} {
		w := newWorld(t)
		e := w.engine()
		if err := e.PutReplica(t.Context(), putReq); err != nil {
			t.Fatal(err)
		}
		answer, err := connectWith(e, 2)
		if err != nil {
			t.Fatal(err)
		}
		before, _ := os.Readlink(answer.Device)
		w.setDirty(4096)
		w.damage(text)
		flushed, err := e.Flush(t.Context(), escache.FlushRequest{VolumeRef: ref, TimeoutSeconds: 5})
		if err != nil || !flushed.Clean || w.state().Dirty != 0 {
			t.Errorf("flush: %+v %v, dirty %d", flushed, err, w.state().Dirty)
		}
		if err := e.PutReplica(t.Context(), putReq); err != nil {
			t.Errorf("the replica confirmed: %v", err)
		}
		if err := e.Resize(t.Context(), escache.ResizeRequest{VolumeRef: ref, SizeBytes: 64 << 20}); err != nil {
			t.Errorf("resize: %v", err)
		}
		if all, err := e.Status(t.Context(), nil); err != nil || len(all.Volumes) != 1 || all.Volumes[0].Uncached {
			t.Errorf("all: %+v %v", all, err)
		}
		if err := abandon(e, 3); code(err) != escache.CodeNotSuperseded || w.connected() != 1 {
			t.Errorf("abandon: %v", err)
		}
		e = w.restarted()
		if after, _ := os.Readlink(answer.Device); after != before || w.connected() != 1 {
			t.Errorf("after a restart %s is %s, before %s", answer.Device, after, before)
		}
		err = e.Stop(t.Context(), escache.StopRequest{VolumeRef: ref})
		if err != nil || w.connected() > 0 || one(t, e).State != escache.StateStandby {
			t.Errorf("stop: %v, %+v", err, one(t, e))
		}
	}
}

// The tags of its replica cannot be read, so nobody knows what is dirty.
func TestARecordBesideAnUnreadableReplicaSaysNothing(t *testing.T) {
	w := newWorld(t)
	if err := w.engine().PutReplica(t.Context(), putReq); err != nil {
		t.Fatal(err)
	}
	delete(w.lvs[volume.NameOf(ref)].Tags, "epoch")
	w.damage(`{"pool":"rbd","image":"v1","imageID":"10ab","epoch":1}`)
	e := w.engine()
	if err := e.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.damage(`{"pool":"rbd","image":"v1","imageID":"10ab","epoch":1}`)
	if flushed, err := e.Flush(t.Context(), escache.FlushRequest{VolumeRef: ref, TimeoutSeconds: 1}); err == nil {
		t.Errorf("flush: %+v", flushed)
	}
	if err := e.Stop(t.Context(), escache.StopRequest{VolumeRef: ref}); err == nil {
		t.Error("stopped")
	}
}
