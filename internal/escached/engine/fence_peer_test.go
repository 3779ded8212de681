package engine

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/fencepeer"
	"github.com/escache/escache-csi/internal/escached/volume"
)

type fakeArbiter struct {
	asked escache.OutdatePeerRequest
	err   error
	told  escache.OutdateSelfRequest
	self  error
}

func (f *fakeArbiter) OutdateSelf(_ context.Context, req escache.OutdateSelfRequest) error {
	f.told = req
	return f.self
}

func (f *fakeArbiter) OutdatePeer(_ context.Context, req escache.OutdatePeerRequest) error {
	f.asked = req
	return f.err
}

func TestFencePeerGoesOnOnlyWhenGranted(t *testing.T) {
	w := newWorld(t)
	e := w.engine()
	if err := e.PutReplica(t.Context(), putReq); err != nil {
		t.Fatal(err)
	}
	if _, err := connectWith(e, 4); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	sound := func(int) bool { return false }
	a := &fakeArbiter{}
	if got := fencepeer.Run(t.Context(), e.Config, e.Store, a, volume.NameOf(ref), sound, log); got != fencepeer.Fenced {
		t.Errorf("granted: exit %d", got)
	}
	if want := (escache.OutdatePeerRequest{VolumeRef: ref, ImageID: "10ab", Node: "n1", Peer: "n2", Epoch: 4}); a.asked != want {
		t.Errorf("asked %+v", a.asked)
	}
	a.err = errors.New("no")
	if got := fencepeer.Run(t.Context(), e.Config, e.Store, a, volume.NameOf(ref), sound, log); got != fencepeer.Refused {
		t.Errorf("refused: exit %d", got)
	}
	a = &fakeArbiter{}
	if got := fencepeer.Run(t.Context(), e.Config, e.Store, a, "escache-unknown", sound, log); got != fencepeer.Refused || a.asked.Peer != "" {
		t.Errorf("a resource nobody knows: exit %d, asked %+v", got, a.asked)
	}
}

func TestACopyWhoseDiskHasFailedIsPromotedOnlyIfItIsTheOnlyCurrentOne(t *testing.T) {
	w := newWorld(t)
	e := w.engine()
	if err := e.PutReplica(t.Context(), putReq); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		self error
		want int
	}{
		"on record now": {nil, fencepeer.Refused},
		"no answer":     {errors.New("connection refused"), fencepeer.Refused},
		"not a replica": {&escache.Problem{Code: escache.CodeFencingRefused}, fencepeer.Refused},
		"the only one":  {&escache.Problem{Code: escache.CodeOutdated}, fencepeer.Fenced},
	} {
		a := &fakeArbiter{self: c.self}
		got := fencepeer.Run(t.Context(), e.Config, e.Store, a, volume.NameOf(ref), func(minor int) bool { return minor == putReq.Minor },
			slog.New(slog.DiscardHandler))
		if got != c.want || (a.asked.Peer != "") != (c.want == fencepeer.Fenced) || a.told.Node != "n1" || a.told.Peer != "n2" {
			t.Errorf("%s: exit %d, told %+v, asked %+v", name, got, a.told, a.asked)
		}
	}
}
