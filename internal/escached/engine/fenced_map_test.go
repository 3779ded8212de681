package engine

import (
	"slices"
	"testing"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/volume"
)

// One client's address, as the kernel and as Ceph write it.
const ofKernel, ofCeph = "[fd00::5efe:10.0.0.1]:0/9", "[fd00::5efe:a00:1]:0/9"

// TestADeviceOnAFencedMapIsMadeAnew: this host lost the volume by force, kept its device, and has the
// volume again. What is dirty stays dirty, on a map that can write.
func TestADeviceOnAFencedMapIsMadeAnew(t *testing.T) {
	w := newWorld(t)
	w.image.ClientAddress = ofKernel
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
			VolumeRef: ref, ImageID: "10ab", Epoch: 2, Fenced: []string{ofCeph},
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

// givenBack is a host that lost the volume by force while it was frozen, and has it again. Its peer has lost its power.
func givenBack(t *testing.T) (*world, *Engine, escache.ConnectResponse) {
	t.Helper()
	w := newWorld(t)
	w.groupID = "machine-1"
	e := w.restarted()
	mustPut(t, e, putReq)
	before, err := connectWith(e, 1)
	if err != nil {
		t.Fatal(err)
	}
	w.freeze(volume.NameOf(ref))
	w.image.ClientAddress = "10.0.0.1:0/10"
	w.recordErr = nil
	w.record = escache.VolumeRecord{
		ImageID: "10ab", AttachedNode: "n1", AttachedHostID: "machine-1", Epoch: 3, Replicas: []string{"n1", "n2"}, Fenced: []string{"n1"},
	}
	return w, e, before
}

// askedAbout is what the host does at the next question about frozen I/O, and the epochs for which it asks.
func askedAbout(t *testing.T, w *world, e *Engine) (steps []string, epochs []int64) {
	t.Helper()
	w.outdatePeer = func(req escache.OutdatePeerRequest) { epochs = append(epochs, req.Epoch) }
	before := len(w.steps)
	e.watcher.AskAll(t.Context(), map[string]time.Time{volume.NameOf(ref): e.Now().Add(-time.Minute)})
	return w.steps[before:], epochs
}

// TestAHostThatIsFrozenAndHasItsVolumeAgainAsksInTheNewAttachment: the kubelet may not stage the volume, and dev_connect touches no frozen
// device. In the attachment of its tags the arbiter always refuses, and a booted peer does not come back before the map is gone.
func TestAHostThatIsFrozenAndHasItsVolumeAgainAsksInTheNewAttachment(t *testing.T) {
	w, e, before := givenBack(t)
	steps, epochs := askedAbout(t, w, e)
	if want := []string{"outdate-peer", "retag", "disconnect", "connect"}; !slices.Equal(steps, want) || !slices.Equal(epochs, []int64{3}) {
		t.Fatalf("it did %q, in epochs %v", steps, epochs)
	}
	if v, err := volume.Parse(w.lvs[volume.NameOf(ref)]); err != nil || v.Epoch != 3 || statusOf(e, t).Epoch != 3 {
		t.Errorf("the handler asks with %+v, %v; status %+v", v, err, statusOf(e, t))
	}
	if steps, epochs := askedAbout(t, w, e); !slices.Equal(steps, []string{"disconnect", "connect"}) || len(epochs) > 0 {
		t.Errorf("then it did %q, in epochs %v", steps, epochs)
	}
	st := w.minors[100]
	st.Suspended, st.PeerDisk = false, drbd.Outdated
	w.minors[100] = st
	after, err := e.DevConnect(t.Context(), escache.ConnectRequest{
		VolumeRef: ref, ImageID: "10ab", Epoch: 3, Fenced: []string{before.ClientAddress},
	})
	if err != nil || after.ClientAddress == before.ClientAddress {
		t.Errorf("%+v, %v; the client of %+v is fenced", after, err, before)
	}
}

func TestTheEpochOfAFrozenDeviceStaysWithoutProof(t *testing.T) {
	asks, waits := []string{"disconnect", "connect"}, []string{"outdate-peer"}
	for name, c := range map[string]struct {
		change func(w *world)
		want   []string
	}{
		"the record is away":             {func(w *world) { w.recordErr = errInjected }, asks},
		"no record":                      {func(w *world) { w.recordErr = errNoRecord }, asks},
		"the same attachment":            {func(w *world) { w.record.Epoch = 1 }, asks},
		"no node has it":                 {func(w *world) { w.record.AttachedNode = "" }, asks},
		"another node has it":            {func(w *world) { w.record.AttachedNode = "n2" }, asks},
		"another machine of the name":    {func(w *world) { w.record.AttachedHostID = "machine-2" }, asks},
		"nobody knows which machine":     {func(w *world) { w.record.AttachedHostID = "" }, asks},
		"only the peer is fenced":        {func(w *world) { w.record.Fenced = []string{"n2"} }, asks},
		"the disk has failed":            {func(w *world) { st := w.minors[100]; st.Disk = drbd.Diskless; w.minors[100] = st }, asks},
		"the arbiter refuses":            {func(w *world) { w.outdatePeerErr = &escache.Problem{Code: escache.CodeOutdated} }, waits},
		"the arbiter has not looked yet": {func(w *world) { w.outdatePeerErr = errInjected }, waits},
	} {
		t.Run(name, func(t *testing.T) {
			w, e, _ := givenBack(t)
			c.change(w)
			if steps, _ := askedAbout(t, w, e); !slices.Equal(steps, c.want) {
				t.Errorf("it did %q, want %q", steps, c.want)
			}
			if s := statusOf(e, t); s.Epoch != 1 {
				t.Errorf("epoch %d", s.Epoch)
			}
		})
	}
}

// A verb that hangs in the frozen I/O has the volume locked, and may change the tags itself.
func TestTheEpochOfAFrozenDeviceStaysWhileAVerbHasTheVolume(t *testing.T) {
	w, e, _ := givenBack(t)
	release, err := e.Lock(ref, "resize")
	if err != nil {
		t.Fatal(err)
	}
	if steps, _ := askedAbout(t, w, e); !slices.Equal(steps, []string{"disconnect", "connect"}) {
		t.Errorf("it did %q", steps)
	}
	release()
	if askedAbout(t, w, e); statusOf(e, t).Epoch != 3 {
		t.Errorf("afterwards: %+v", statusOf(e, t))
	}
}
