package engine

import (
	"testing"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/volume"
)

// TestADeviceOnAFencedMapIsMadeAnew: this host lost the volume by force, kept its device, and has the
// volume again. What is dirty stays dirty, on a map that can write.
func TestADeviceOnAFencedMapIsMadeAnew(t *testing.T) {
	w := newWorld(t)
	e := w.engine()
	if err := e.PutReplica(t.Context(), putReq); err != nil {
		t.Fatal(err)
	}
	before, err := connectWith(e, 1)
	if err != nil {
		t.Fatal(err)
	}
	w.setDirty(4096)
	w.image.ClientAddress = "10.0.0.1:0/10"
	again := func(open int) (escache.ConnectResponse, error) {
		w.caches.Alter(volume.NameOf(ref), func(s *cache.State) { s.Open = open })
		return e.DevConnect(t.Context(), escache.ConnectRequest{
			VolumeRef: ref, ImageID: "10ab", Epoch: 2, Fenced: []string{before.ClientAddress},
		})
	}
	if _, err := again(1); code(err) != escache.CodeDeviceOpen {
		t.Errorf("while it is mounted: %v", err)
	}
	after, err := again(0)
	if err != nil || after.ClientAddress == before.ClientAddress {
		t.Fatalf("%+v, %v; the client of %+v is fenced", after, err, before)
	}
	if s := w.state(); s.Dirty != 4096 || len(w.maps) != 1 {
		t.Errorf("%d bytes are dirty, %d maps", s.Dirty, len(w.maps))
	}
	if same, err := again(0); err != nil || same != after {
		t.Errorf("repeated: %+v, %v", same, err)
	}
}
