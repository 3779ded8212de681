package engine

import (
	"slices"
	"testing"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/host"
	"github.com/escache/escache-csi/internal/escached/volume"
)

// withPartner is the usual request with another second host.
func withPartner(name, address string) escache.ReplicaRequest {
	req := putReq
	req.Nodes = []escache.ReplicaNode{putReq.Nodes[0], {Name: name, Address: address}}
	return req
}

// running is a host with the device, of a volume that has lost its partner and goes on alone.
func running(t *testing.T) (*world, *Engine) {
	t.Helper()
	w := newWorld(t)
	e := w.engine()
	if err := e.PutReplica(t.Context(), putReq); err != nil {
		t.Fatal(err)
	}
	if _, err := connectWith(e, 1); err != nil {
		t.Fatal(err)
	}
	st := w.minors[100]
	st.Connection, st.PeerRole, st.PeerDisk = "WFConnection", "Unknown", drbd.Outdated
	w.minors[100] = st
	// Waiting costs no time here.
	begin, looks := time.Now(), 0
	e.Now = func() time.Time { looks++; return begin.Add(time.Duration(looks) * host.Thaw / 4) }
	return w, e
}

func TestARunningPrimaryTakesANewPartner(t *testing.T) {
	w, e := running(t)
	steps := len(w.steps)
	if err := e.PutReplica(t.Context(), withPartner("n3", "10.0.0.3")); err != nil {
		t.Fatal(err)
	}
	if got := w.steps[steps:]; !slices.Equal(got, []string{"disconnect", "retag", "adjust"}) {
		t.Errorf("the record must change after the old partner was left and before the new one is let in: %q", got)
	}
	if st := w.minors[100]; st.Role != drbd.Primary || w.connected() != 1 || w.files[volume.NameOf(ref)].PeerHost != "n3" {
		t.Errorf("%+v, %q", st, w.left())
	}
	steps = len(w.steps)
	if err := e.PutReplica(t.Context(), withPartner("n3", "10.0.0.3")); err != nil || len(w.steps) != steps {
		t.Errorf("repeated: %v, %q", err, w.steps[steps:])
	}
}

func TestFrozenIOKeepsItsPartnerUntilTheVerdict(t *testing.T) {
	for name, freeze := range map[string]func(w *world){
		"frozen already":        func(w *world) { w.freeze(volume.NameOf(ref)) },
		"lost while being left": func(w *world) { w.lostOnLeaving = true },
		"connected until it left": func(w *world) {
			w.minors[100] = primaryWith(linked(drbd.Connected, drbd.UpToDate))
			w.lostOnLeaving = true
		},
	} {
		w, e := running(t)
		freeze(w)
		if err := e.PutReplica(t.Context(), withPartner("n3", "10.0.0.3")); code(err) != escache.CodeStuck {
			t.Errorf("%s: %v", name, err)
		}
		v, err := volume.Parse(w.lvs[volume.NameOf(ref)])
		if err != nil || v.Peer.Name != "n2" || w.files[volume.NameOf(ref)].PeerHost != "n2" || w.minors[100].Connection == drbd.StandAlone {
			t.Errorf("%s: the question would be about %s now: %+v, %v", name, v.Peer.Name, w.minors[100], err)
		}
	}
}

func primaryWith(st drbd.Status) drbd.Status {
	st.Role = drbd.Primary
	return st
}

func TestTheStandbyOfARunningVolumeKeepsItsPartner(t *testing.T) {
	w := newWorld(t)
	e := w.engine()
	if err := e.PutReplica(t.Context(), putReq); err != nil {
		t.Fatal(err)
	}
	st := linked(drbd.Connected, drbd.UpToDate)
	st.PeerRole = drbd.Primary
	w.minors[100] = st
	steps := len(w.steps)
	if err := e.PutReplica(t.Context(), withPartner("n3", "10.0.0.3")); code(err) != escache.CodeReplicaMismatch || len(w.steps) != steps {
		t.Errorf("%v, %q", err, w.steps[steps:])
	}
}

func TestCopiesThatAreNotBothNewAreNeverDeclaredEqual(t *testing.T) {
	joined := putReq
	joined.Join = true
	for name, c := range map[string]struct {
		first  escache.ReplicaRequest
		change func(w *world)
		want   escache.Code
	}{
		"both new":                           {putReq, func(*world) {}, ""},
		"this one is to be filled":           {joined, func(*world) {}, escache.CodeOutdated},
		"to be filled, and the peer is away": {joined, func(w *world) { w.minors[100] = cut(drbd.Inconsistent) }, escache.CodeOutdated},
		"filled":                             {joined, func(w *world) { w.minors[100] = linked(drbd.Connected, drbd.UpToDate) }, ""},
		"half a resync left a header": {putReq, func(w *world) {
			block, _ := cache.Header{Identity: cache.Identity{Pool: "rbd", Image: "v1", ImageID: "10ab"}, Formatted: true}.Block()
			copy(w.blocks("/dev/drbd100"), block)
		}, escache.CodeOutdated},
		"half a resync left metadata": {putReq, func(w *world) {
			w.blocks("/dev/drbd100")[cache.HeaderBytes] = 1
		}, escache.CodeOutdated},
	} {
		w := newWorld(t)
		e := w.engine()
		begin, looks := time.Now(), 0
		e.Now = func() time.Time { looks++; return begin.Add(time.Duration(looks) * time.Second) }
		if err := e.PutReplica(t.Context(), c.first); err != nil {
			t.Fatal(name, err)
		}
		e = w.restarted() // what is to be filled is on the disk
		e.Now = func() time.Time { looks++; return begin.Add(time.Duration(looks) * time.Second) }
		c.change(w)
		if _, err := connectWith(e, 1); code(err) != c.want {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
		if skipped := slices.Contains(w.steps, "skip first sync"); skipped != (name == "both new") {
			t.Errorf("%s: declared equal: %v", name, skipped)
		}
	}
}

func TestJoinMeansNothingToACopyThatWasUsed(t *testing.T) {
	joined := putReq
	joined.Join = true
	for name, c := range map[string]struct {
		change func(w *world)
		want   bool
	}{
		"new":           {func(*world) {}, true},
		"current":       {func(w *world) { w.minors[100] = linked(drbd.Connected, drbd.UpToDate) }, false},
		"outdated":      {func(w *world) { w.minors[100] = cut(drbd.Outdated) }, false},
		"half a resync": {func(w *world) { w.blocks("/dev/drbd100")[0] = 'E' }, false},
	} {
		w := newWorld(t)
		e := w.engine()
		if err := e.PutReplica(t.Context(), putReq); err != nil {
			t.Fatal(err)
		}
		c.change(w)
		if err := e.PutReplica(t.Context(), joined); err != nil {
			t.Fatal(name, err)
		}
		if v, _ := e.Volumes.Get(volume.NameOf(ref)); v.Joined != c.want {
			t.Errorf("%s: joined is %v", name, v.Joined)
		}
		if err := e.PutReplica(t.Context(), putReq); err != nil {
			t.Fatal(name, err)
		}
		if v, _ := e.Volumes.Get(volume.NameOf(ref)); v.Joined != c.want {
			t.Errorf("%s: an ordinary repeat made joined %v", name, v.Joined)
		}
	}
}

func TestALinkThatDRBDGaveUpIsMadeAgainUnlessIOIsFrozen(t *testing.T) {
	for name, c := range map[string]struct {
		change func(st *drbd.Status)
		want   bool
	}{
		"a standby":        {func(st *drbd.Status) { st.Role = drbd.Secondary }, true},
		"a running device": {func(*drbd.Status) {}, true},
		"frozen":           {func(st *drbd.Status) { st.Suspended = true }, false},
		"connecting":       {func(st *drbd.Status) { st.Connection = "WFConnection" }, false},
	} {
		w, e := running(t)
		st := w.minors[100]
		st.Connection = drbd.StandAlone
		c.change(&st)
		w.minors[100] = st
		steps := len(w.steps)
		e.watcher.Reconnect(t.Context(), volume.Volume{VolumeRef: ref})
		if again := slices.Contains(w.steps[steps:], "adjust"); again != c.want {
			t.Errorf("%s: connected again: %v", name, again)
		}
	}
	w, e := running(t)
	st := w.minors[100]
	st.Connection = drbd.StandAlone
	w.minors[100] = st
	w.failAt = len(w.steps) + 1
	e.watcher.Reconnect(t.Context(), volume.Volume{VolumeRef: ref})
	if _, err := e.Lock(ref, "test"); err != nil {
		t.Errorf("a failed try keeps the volume: %v", err)
	}
}
