package engine

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/command"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/volume"
)

// A process that maps an image can hang in the kernel, where no signal ends it. It may make the map when
// escached has given up waiting, or when the escached that started it is gone.

// hang is the process that hangs, as escached tells of it.
func (w *world) hang() error {
	hangs := &command.StuckError{
		Command: "exe child sysfs-write /sys/bus/rbd/add_single_major", Pid: 7, Since: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
	}
	w.stuck = map[string]*command.StuckError{volume.NameOf(ref): hangs}
	return hangs
}

// killedWhileMapping kills escached while the kernel maps the image for a call, and starts it again. The
// process that maps it goes on.
func (w *world) killedWhileMapping(call func() error) *Engine {
	w.t.Helper()
	w.mapping = func() { panic(killed{"map"}) }
	if died, err := dieAt(call); !died {
		w.t.Fatalf("it has not died: %v", err)
	}
	w.mapping = func() {}
	_ = w.hang()
	return w.restarted()
}

// mapped lets the process end that hangs. It has made the map.
func (w *world) mapped() { w.stuck, w.maps = nil, append(w.maps, w.image) }

func TestAMapWithoutACacheThatOutlivesEscachedIsNotAbsent(t *testing.T) {
	w, e := groupWorld(t)
	e = w.killedWhileMapping(func() error { _, err := e.DevConnect(t.Context(), uncachedOf(3)); return err })
	s := one(t, e)
	mayHaveIt(t, "after the restart", s)
	if s.Epoch != 3 || s.Error == nil || s.Error.Code != escache.CodeStuck {
		t.Errorf("after the restart: %+v", s)
	}
	for verb, err := range map[string]error{
		"stop":        e.Stop(t.Context(), escache.StopRequest{VolumeRef: ref}),
		"put_replica": e.PutReplica(t.Context(), putReq),
	} {
		if code(err) != escache.CodeStuck {
			t.Errorf("%s: %v", verb, err)
		}
	}
	mayHaveIt(t, "after a second restart", one(t, w.restarted()))
	w.mapped()
	if s := one(t, e); s.State != escache.StateConnected || s.ClientAddress != w.image.ClientAddress || s.Epoch != 3 {
		t.Errorf("mapped since: %+v", s)
	}
	if err := e.Stop(t.Context(), escache.StopRequest{VolumeRef: ref}); err != nil || len(w.maps) > 0 || one(t, e).State != escache.StateAbsent {
		t.Errorf("stop: %v, maps %v, %+v", err, w.maps, one(t, e))
	}
}

// Without a record it is all the same not known that there is no map.
func TestAMapThatHangsWithoutARecordIsNotAbsent(t *testing.T) {
	w, e := groupWorld(t)
	_ = w.hang()
	if s := one(t, e); s.State == escache.StateAbsent || !authority.HasDevice(s) || s.Error == nil || s.Error.Code != escache.CodeStuck {
		t.Errorf("%+v", s)
	}
	w.stuck = nil
	if s := one(t, e); s.State != escache.StateAbsent || authority.HasDevice(s) {
		t.Errorf("the process has ended: %+v", s)
	}
}

func TestUnmapDoesNotSucceedWhileAMapMayCome(t *testing.T) {
	for _, outlives := range []bool{false, true} {
		w, e := groupWorld(t)
		call := func() error { _, err := e.Map(context.Background(), mapReq(false)); return err }
		if outlives {
			e = w.killedWhileMapping(call)
		} else {
			w.mapErr = w.hang()
			if err := call(); code(err) != escache.CodeStuck {
				t.Fatal(err)
			}
		}
		if err := e.Unmap(t.Context(), escache.UnmapRequest{VolumeRef: ref}); code(err) != escache.CodeStuck {
			t.Errorf("escached was killed: %v: %v", outlives, err)
		}
		w.mapped()
		if err := e.Unmap(t.Context(), escache.UnmapRequest{VolumeRef: ref}); err != nil || len(w.maps) > 0 {
			t.Errorf("escached was killed: %v: %v, maps %v", outlives, err, w.maps)
		}
	}
}

// The address of a fenced client leaves Ceph's blocklist when its host answers that it has no device. A
// client that has the image mapped, or may have, must not come back to life by that.
func TestAMapOfAVolumeWithACacheThatHasNoDeviceIsTold(t *testing.T) {
	for _, outlives := range []bool{false, true} {
		w, e := groupWorld(t)
		if err := e.PutReplica(t.Context(), putReq); err != nil {
			t.Fatal(err)
		}
		call := func() error { _, err := connectWith(e, 1); return err }
		if outlives {
			e = w.killedWhileMapping(call)
		} else {
			w.mapErr = w.hang()
			if err := call(); code(err) != escache.CodeStuck {
				t.Fatal(err)
			}
		}
		if s := one(t, e); !authority.HasDevice(s) || s.Uncached || s.Error == nil || s.Error.Code != escache.CodeStuck {
			t.Errorf("escached was killed: %v: it hangs: %+v", outlives, s)
		}
		w.mapped()
		if s := one(t, e); s.State != escache.StateStandby || s.ClientAddress != w.image.ClientAddress || !authority.HasDevice(s) {
			t.Errorf("escached was killed: %v: it has mapped the image since: %+v", outlives, s)
		}
		for _, left := range e.watcher.FindLeftovers(t.Context()) {
			e.watcher.CleanUp(t.Context(), left)
		}
		if s := one(t, e); len(w.maps) > 0 || s.State != escache.StateStandby || authority.HasDevice(s) || s.Error != nil {
			t.Errorf("escached was killed: %v: cleaned up: %+v, maps %v", outlives, s, w.maps)
		}
	}
}

// Other commands that hang do not make a device.
func TestAStandbyWithAnotherCommandThatHangsHasNoDevice(t *testing.T) {
	w, e := groupWorld(t)
	if err := e.PutReplica(t.Context(), putReq); err != nil {
		t.Fatal(err)
	}
	_ = w.hang()
	w.stuck[volume.NameOf(ref)].Command = "drbdadm adjust"
	if s := one(t, e); s.State != escache.StateStandby || authority.HasDevice(s) || s.Error == nil || s.Error.Code != escache.CodeStuck {
		t.Errorf("%+v", s)
	}
}

// Nobody may be there any more to stop the volume. Nothing is left when the process has ended.
func TestARecordOfAMapThatCannotComeAnyMoreGoes(t *testing.T) {
	w, e := groupWorld(t)
	e = w.killedWhileMapping(func() error { _, err := e.DevConnect(t.Context(), uncachedOf(3)); return err })
	e.uncached.Settle(t.Context())
	mayHaveIt(t, "it hangs", one(t, e))
	w.stuck = nil
	release, err := e.Lock(ref, "dev_connect")
	if err != nil {
		t.Fatal(err)
	}
	e.uncached.Settle(t.Context())
	mayHaveIt(t, "a verb runs", one(t, e))
	release()
	e.uncached.Settle(t.Context())
	if s := one(t, e); s.State != escache.StateAbsent || authority.HasDevice(s) || e.uncached.Has(ref) {
		t.Errorf("it has ended: %+v", s)
	}
}

func TestAMapThatHasComeLateIsALink(t *testing.T) {
	w, e := groupWorld(t)
	e = w.killedWhileMapping(func() error { _, err := e.DevConnect(t.Context(), uncachedOf(3)); return err })
	w.mapped()
	e.uncached.Settle(t.Context())
	s := one(t, e)
	if target, err := os.Readlink(s.Device); err != nil || target != w.image.Path() || s.State != escache.StateConnected {
		t.Errorf("%q, %v, %+v", target, err, s)
	}
}

func TestMapsThatCannotBeListedAreNotAbsent(t *testing.T) {
	w, e := groupWorld(t)
	w.findErr = errInjected
	if s, err := e.Status(t.Context(), &ref); err == nil {
		t.Errorf("no replica: %+v", s)
	}
	w.findErr = nil
	if err := e.PutReplica(t.Context(), putReq); err != nil {
		t.Fatal(err)
	}
	w.findErr = errInjected
	if s, err := e.Status(t.Context(), &ref); err == nil {
		t.Errorf("a standby: %+v", s)
	}
}

// csi-node looks at a Primary, and records the client of its device.
func TestTheClientOfADeviceThatIsNotCompleteIsNotTold(t *testing.T) {
	w, e := groupWorld(t)
	if err := e.PutReplica(t.Context(), putReq); err != nil {
		t.Fatal(err)
	}
	w.maps = append(w.maps, w.image)
	st := w.minors[putReq.Minor]
	st.Role = drbd.Primary
	w.minors[putReq.Minor] = st
	if s := one(t, e); s.ClientAddress != "" || !authority.HasDevice(s) {
		t.Errorf("%+v", s)
	}
}
