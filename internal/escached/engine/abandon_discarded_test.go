package engine

import (
	"testing"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/volume"
)

// discarded is a host with the frozen device of epoch 2, which writes back, and the record of a detached volume of which an
// operator has discarded what only the caches had in that epoch.
func discarded(t *testing.T) (*world, *Engine) {
	t.Helper()
	w, e := cutOff(t)
	w.record.AttachedNode, w.record.Epoch, w.record.Outdated = "", 2, []string{"n1", "n2"}
	w.record.InCeph, w.record.DiscardedEpoch = true, 2
	return w, e
}

// linkUp is a host whose link is up again: its peer has all that was written.
func (w *world) linkUp() {
	st := linked(drbd.Connected, drbd.UpToDate)
	st.Role = drbd.Primary
	w.minors[100] = st
}

func (w *world) peerDisk(state escache.DiskState) {
	st := w.minors[100]
	st.PeerDisk = state
	w.minors[100] = st
}

// TestADeviceIsGivenUpIfWhatItHadWasDiscarded: the operator has decided about all that was acknowledged through it. The host goes
// on with the epoch of the device, so that what it has can be discarded up to that epoch.
func TestADeviceIsGivenUpIfWhatItHadWasDiscarded(t *testing.T) {
	given := func(w *world) { w.record.AttachedNode, w.record.Epoch = "n2", 3 }
	for name, c := range map[string]struct {
		change func(w *world)
		epoch  int64
		want   escache.Code
	}{
		"detached":          {func(*world) {}, 2, ""},
		"given to its peer": {given, 2, ""},
		"given to its peer, and asked about that": {given, 3, ""},
		"given to a third node":                   {func(w *world) { w.record.AttachedNode, w.record.Epoch = "n3", 3 }, 2, ""},
		"others have replaced it": {func(w *world) {
			w.record.AttachedNode, w.record.Epoch, w.record.InCeph = "n2", 3, false
			w.record.Replicas, w.record.Outdated = []string{"n2", "n3"}, nil
		}, 3, ""},
		"a later epoch was discarded":           {func(w *world) { w.record.Epoch, w.record.DiscardedEpoch = 4, 4 }, 2, ""},
		"linked, and detached":                  {(*world).linkUp, 2, ""},
		"linked, and given to its peer":         {func(w *world) { w.linkUp(); given(w) }, 2, ""},
		"linked, and its peer is being filled":  {func(w *world) { w.linkUp(); w.peerDisk(drbd.Inconsistent) }, 2, ""},
		"it has written later":                  {func(w *world) { w.record.DiscardedEpoch = 1 }, 2, escache.CodeNotSuperseded},
		"linked, and it has written later":      {func(w *world) { w.linkUp(); w.record.DiscardedEpoch = 1 }, 2, escache.CodeNotSuperseded},
		"the arbiter does not tell":             {func(w *world) { w.record.DiscardedEpoch = 0 }, 2, escache.CodeNotSuperseded},
		"linked, and the arbiter does not tell": {func(w *world) { w.linkUp(); w.record.DiscardedEpoch = 0 }, 2, escache.CodeNotSuperseded},
		"its copy counts":                       {func(w *world) { w.record.Outdated = []string{"n2"} }, 2, escache.CodeNotSuperseded},
		"caches are dirty again":                {func(w *world) { given(w); w.record.InCeph = false }, 2, escache.CodeNotSuperseded},
		"it is this node's": {
			func(w *world) { w.record.AttachedNode, w.record.Epoch = "n1", 3 }, 2, escache.CodeNotSuperseded,
		},
		"another node's in this epoch": {func(w *world) { w.record.AttachedNode = "n2" }, 2, escache.CodeNotSuperseded},
		"an older epoch":               {func(*world) {}, 1, escache.CodeNotSuperseded},
		"newer than the record":        {func(*world) {}, 3, escache.CodeNotSuperseded},
		"another image":                {func(w *world) { w.record.ImageID = "20cd" }, 2, escache.CodeNotSuperseded},
		"no answer":                    {func(w *world) { w.recordErr = errNoRecord }, 2, escache.CodeNotSuperseded},
	} {
		w, e := discarded(t)
		c.change(w)
		steps := len(w.steps)
		err := abandon(e, c.epoch)
		if code(err) != c.want {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
			continue
		}
		if c.want != "" {
			if len(w.steps) != steps {
				t.Errorf("%s: a refusal changes nothing, but there was %q", name, w.steps[steps:])
			}
			continue
		}
		if len(w.maps)+w.connected() > 0 || !w.outdated[volume.NameOf(ref)] || w.minors[100].Role != drbd.Secondary {
			t.Errorf("%s: left: %q, %+v", name, w.left(), w.minors[100])
		}
		if v, err := volume.Parse(w.lvs[volume.NameOf(ref)]); err != nil || v.Epoch != 2 || v.Phase != volume.Ready {
			t.Errorf("%s: its tags say %+v, %v", name, v, err)
		}
		if _, err := connectWith(e, 2); err == nil {
			t.Errorf("%s: a late call has connected it again", name)
		}
	}
}

// TestWhatWasDiscardedIsRemovedUpToTheDiscardedEpoch: csi-controller asks with that epoch, whatever the record says by then.
func TestWhatWasDiscardedIsRemovedUpToTheDiscardedEpoch(t *testing.T) {
	w, e := discarded(t)
	w.record.AttachedNode, w.record.Epoch = "n2", 3
	if err := abandon(e, 3); err != nil { // as csi-node asks
		t.Fatal(err)
	}
	if err := e.DeleteReplica(t.Context(), ref, new(int64(2))); err != nil || len(w.lvs) > 0 {
		t.Errorf("left %v: %v", w.lvs, err)
	}
}
