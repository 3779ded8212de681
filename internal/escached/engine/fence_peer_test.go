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
	a := &fakeArbiter{}
	if got := fencepeer.Run(t.Context(), e.Config, e.Store, a, volume.NameOf(ref), log); got != fencepeer.Fenced {
		t.Errorf("granted: exit %d", got)
	}
	if want := (escache.OutdatePeerRequest{VolumeRef: ref, ImageID: "10ab", Node: "n1", Peer: "n2", Epoch: 4}); a.asked != want {
		t.Errorf("asked %+v", a.asked)
	}
	a.err = errors.New("no")
	if got := fencepeer.Run(t.Context(), e.Config, e.Store, a, volume.NameOf(ref), log); got != fencepeer.Refused {
		t.Errorf("refused: exit %d", got)
	}
	a = &fakeArbiter{}
	if got := fencepeer.Run(t.Context(), e.Config, e.Store, a, "escache-unknown", log); got != fencepeer.Refused || a.asked.Peer != "" {
		t.Errorf("a resource nobody knows: exit %d, asked %+v", got, a.asked)
	}
}
