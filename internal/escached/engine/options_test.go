package engine

import (
	"context"
	"testing"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/volume"
)

// thirty is what most tests set.
var thirty = escache.CacheOptions{HighWatermark: 60, LowWatermark: 40, MaxDirtyAgeSeconds: 30}

func optionsWith(e *Engine, epoch int64, o escache.CacheOptions) (escache.OptionsResponse, error) {
	return e.SetOptions(context.Background(), escache.OptionsRequest{VolumeRef: ref, Epoch: epoch, Options: o})
}

func (w *world) options(e *Engine) cache.Options {
	w.t.Helper()
	dev, ok, err := e.Device(w.t.Context(), volume.NameOf(ref))
	if err != nil || !ok {
		w.t.Fatalf("the device is there: %v, %v", ok, err)
	}
	return dev.Options
}

func TestOptionsOfARunningCacheAreReplacedAndItsModeStays(t *testing.T) {
	w := newWorld(t)
	e := w.engine()
	if err := e.PutReplica(t.Context(), putReq); err != nil {
		t.Fatal(err)
	}
	connect := escache.ConnectRequest{VolumeRef: ref, Epoch: 4, Options: escache.ConnectOptions{
		Mode: escache.ModeWritethrough, CacheOptions: escache.CacheOptions{MaxDirtyAgeSeconds: 600},
	}}
	if _, err := e.DevConnect(t.Context(), connect); err != nil {
		t.Fatal(err)
	}
	for _, want := range []escache.CacheOptions{thirty, thirty, {WriteBackOrder: escache.OrderStrict}, {}} {
		got, err := optionsWith(e, 4, want)
		if err != nil || got.Options != want {
			t.Errorf("%+v: %+v, %v", want, got, err)
		}
		in := w.options(e)
		inForce := escache.CacheOptions{HighWatermark: in.HighWatermark, LowWatermark: in.LowWatermark, MaxDirtyAgeSeconds: in.MaxAgeSeconds}
		if in.StrictOrder {
			inForce.WriteBackOrder = escache.OrderStrict
		}
		if inForce != want || in.Mode != cache.Writethrough {
			t.Errorf("%+v: in force is %+v", want, in)
		}
	}
}

func TestOptionsAreRefusedAndNothingChanges(t *testing.T) {
	w := newWorld(t)
	e := w.engine()
	refused := func(what string, epoch int64, o escache.CacheOptions, want escache.Code) {
		t.Helper()
		if _, err := optionsWith(e, epoch, o); code(err) != want {
			t.Errorf("%s: %v, not %s", what, err, want)
		}
	}
	refused("no replica", 4, thirty, escache.CodeNotFound)
	if err := e.PutReplica(t.Context(), putReq); err != nil {
		t.Fatal(err)
	}
	refused("a standby", 4, thirty, escache.CodeNotConnected)
	if _, err := connectWith(e, 4); err != nil {
		t.Fatal(err)
	}
	before := w.options(e)
	refused("an older attachment", 3, thirty, escache.CodeStaleEpoch)
	refused("crossed watermarks", 4, escache.CacheOptions{HighWatermark: 20, LowWatermark: 30}, escache.CodeInvalidRequest)
	_, err := e.SetOptions(t.Context(), escache.OptionsRequest{
		VolumeRef: escache.VolumeRef{Pool: "rbd", Image: "none"}, Epoch: 4, Options: escache.CacheOptions{HighWatermark: 20, LowWatermark: 30},
	})
	if code(err) != escache.CodeInvalidRequest {
		t.Errorf("crossed watermarks of a volume that is not here: %v", err)
	}
	if _, err := e.Hold(t.Context(), escache.HoldRequest{VolumeRef: ref, MaxSeconds: 60}); err != nil {
		t.Fatal(err)
	}
	refused("a held volume", 4, thirty, escache.CodeHeld)
	if now := w.options(e); now != before {
		t.Errorf("the options were %+v and are %+v", before, now)
	}
	if err := e.Release(t.Context(), escache.ReleaseRequest{VolumeRef: ref}); err != nil {
		t.Fatal(err)
	}
	if _, err := optionsWith(e, 5, thirty); err != nil {
		t.Errorf("a newer attachment: %v", err)
	}
	if v, _ := e.Volumes.Get(volume.NameOf(ref)); v.Epoch != 4 {
		t.Errorf("a change of options stored epoch %d", v.Epoch)
	}
}
