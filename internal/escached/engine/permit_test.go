package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/engine/watch"
	"github.com/escache/escache-csi/internal/escached/permit"
	"github.com/escache/escache-csi/internal/escached/volume"
)

func peerDisk(w *world, disk escache.DiskState) {
	st := w.minors[100]
	st.Connection, st.PeerDisk = drbd.Connected, disk
	w.minors[100] = st
}

func mayGoOnAlone(t *testing.T, e *Engine) bool {
	t.Helper()
	status, err := e.Status(context.Background(), nil)
	if err != nil || len(status.Volumes) != 1 {
		t.Fatalf("%+v, %v", status, err)
	}
	return status.Volumes[0].MayGoOnAlone
}

// diskless is a host that has the volume, and whose peer has lost its disk.
func diskless(t *testing.T) (*world, *Engine) {
	t.Helper()
	w, e := inUse(t)
	peerDisk(w, drbd.Diskless)
	return w, e
}

func settle(e *Engine) error { return e.watcher.SettlePermit(context.Background(), ref, false) }

// A removal of the peer from the list of outdated nodes reads the record, then the status, and then
// writes the record if that has not changed. So whoever reads the status before the arbiter's answer
// must find the permit there already, and whoever reads it after DRBD was told to freeze again, too.
func TestThePermitIsInTheStatusForAsLongAsDRBDMayNotFreeze(t *testing.T) {
	w, e := diskless(t)
	asked := 0
	w.outdatePeer = func(req escache.OutdatePeerRequest) {
		asked++
		want := escache.OutdatePeerRequest{VolumeRef: ref, ImageID: "10ab", Node: "n1", Peer: "n2", Epoch: 1}
		if req != want || w.unfrozen[100] || !mayGoOnAlone(t, e) {
			t.Errorf("asked %+v; freezes %v, in the status %v", req, !w.unfrozen[100], mayGoOnAlone(t, e))
		}
	}
	if err := settle(e); err != nil || asked != 1 || !w.unfrozen[100] || !mayGoOnAlone(t, e) {
		t.Fatalf("%v: asked %d times, freezes %v", err, asked, !w.unfrozen[100])
	}
	peerDisk(w, drbd.UpToDate) // a resync can end between two looks
	if !mayGoOnAlone(t, e) {
		t.Error("the peer counts before DRBD freezes for it")
	}
	w.failAt = len(w.steps) + 1
	if err := settle(e); err == nil || !mayGoOnAlone(t, e) {
		t.Errorf("DRBD was not told to freeze again (%v), and the status says it was", err)
	}
	if err := settle(e); err != nil || w.unfrozen[100] || mayGoOnAlone(t, e) || asked != 1 {
		t.Errorf("%v: asked %d times, freezes %v, in the status %v", err, asked, !w.unfrozen[100], mayGoOnAlone(t, e))
	}
}

// A status is made of what DRBD says and of the permit's record, one read after the other. In between,
// the peer can be lost without a freeze, and the permit be dropped. The status must not then say both
// that the peer is current and that there is no permit: csi-node would count a copy that lacks writes.
func TestAStatusDoesNotMissAPermitThatIsDroppedWhileItIsMade(t *testing.T) {
	w, e := diskless(t)
	if err := settle(e); err != nil {
		t.Fatal(err)
	}
	peerDisk(w, drbd.UpToDate)
	w.drbdRead = func() { // DRBD's state was read, and nothing else yet
		w.drbdRead = func() {}
		if err := settle(e); err != nil || w.unfrozen[100] {
			t.Errorf("the permit was not dropped: %v", err)
		}
	}
	if !mayGoOnAlone(t, e) {
		t.Error("by the status the peer is current, and there was no permit when DRBD said so")
	}
	if mayGoOnAlone(t, e) {
		t.Error("the permit is gone, and the status still tells of it")
	}
}

func TestWithoutTheArbitersConsentIOIsFrozen(t *testing.T) {
	w, e := diskless(t)
	w.outdatePeerErr = errors.New("connection refused")
	if err := settle(e); err == nil || w.unfrozen[100] || mayGoOnAlone(t, e) {
		t.Errorf("%v: freezes %v, in the status %v", err, !w.unfrozen[100], mayGoOnAlone(t, e))
	}
	if slices.ContainsFunc(w.steps, func(s string) bool { return s == "freeze true" || s == "freeze false" }) {
		t.Errorf("DRBD was told something: %q", w.steps)
	}
}

// Whatever kills escached, and whatever the peer's disk does meanwhile, the status tells of what DRBD
// does, and it is settled after a restart.
func TestAPermitIsSettledAfterAKillAtEveryStep(t *testing.T) {
	for _, then := range []escache.DiskState{drbd.Diskless, drbd.UpToDate} {
		for n := 1; ; n++ {
			w, e := diskless(t)
			granted := false
			w.outdatePeer = func(escache.OutdatePeerRequest) { granted = true }
			w.killAt = len(w.steps) + n
			died, err := dieAt(func() error {
				err := settle(e)
				peerDisk(w, then)
				return errors.Join(err, settle(e))
			})
			if err != nil {
				t.Fatal(err)
			}
			at := fmt.Sprintf("killed at step %d (%s), the peer's disk then %s", n, w.steps[len(w.steps)-1], then)
			w.killAt = 0
			peerDisk(w, then)
			if died {
				e = w.restarted()
			}
			if w.unfrozen[100] && (!granted || !mayGoOnAlone(t, e)) {
				t.Errorf("%s: not frozen, granted %v, in the status %v", at, granted, mayGoOnAlone(t, e))
			}
			if err := settle(e); err != nil || w.unfrozen[100] != (then == drbd.Diskless) || mayGoOnAlone(t, e) != w.unfrozen[100] {
				t.Errorf("%s: %v: freezes %v, in the status %v", at, err, !w.unfrozen[100], mayGoOnAlone(t, e))
			}
			if !died {
				break
			}
		}
	}
}

func TestAPermitEndsWithTheAttachment(t *testing.T) {
	w, e := diskless(t)
	if err := settle(e); err != nil {
		t.Fatal(err)
	}
	if err := e.Stop(t.Context(), escache.StopRequest{VolumeRef: ref}); err != nil {
		t.Fatal(err)
	}
	if w.unfrozen[100] || mayGoOnAlone(t, e) {
		t.Errorf("freezes %v, in the status %v", !w.unfrozen[100], mayGoOnAlone(t, e))
	}
}

// Nothing freezes with a permit, so that alone does not prove that the old partner may be left.
func TestThePartnerIsLeftForGoodOnlyIfTheArbiterAgreesWhateverThePermit(t *testing.T) {
	w, e := diskless(t)
	if err := settle(e); err != nil {
		t.Fatal(err)
	}
	w.outdatePeerErr = errors.New("connection refused")
	if err := e.PutReplica(t.Context(), withPartner("n3", "10.0.0.3")); err == nil {
		t.Error("the partner was left")
	}
	if got := w.files[volume.NameOf(ref)]; got.PeerHost != "n2" || w.minors[100].Connection == drbd.StandAlone {
		t.Errorf("the partner is %s, %+v", got.PeerHost, w.minors[100])
	}
}

func TestWhatIsDueAboutAPermit(t *testing.T) {
	primary := func(change func(*drbd.Status)) drbd.Status {
		st := linked(drbd.Connected, drbd.UpToDate)
		st.Role, st.PeerDisk = drbd.Primary, drbd.Diskless
		change(&st)
		return st
	}
	for name, c := range map[string]struct {
		st    drbd.Status
		state permit.State
		told  bool
		want  watch.Due
	}{
		"the peer has no disk":            {primary(func(*drbd.Status) {}), permit.None, false, watch.Take},
		"granted":                         {primary(func(*drbd.Status) {}), permit.Granted, true, watch.Nothing},
		"granted to an earlier process":   {primary(func(*drbd.Status) {}), permit.Granted, false, watch.Take},
		"not granted":                     {primary(func(*drbd.Status) {}), permit.Asked, true, watch.Take},
		"the peer's disk has just failed": {primary(func(st *drbd.Status) { st.PeerDisk = "Failed" }), permit.None, false, watch.Take},
		"Secondary":                       {primary(func(st *drbd.Status) { st.Role = drbd.Secondary }), permit.None, false, watch.Nothing},
		"demoted":                         {primary(func(st *drbd.Status) { st.Role = drbd.Secondary }), permit.Granted, true, watch.Drop},
		"no disk here":                    {primary(func(st *drbd.Status) { st.Disk = drbd.Diskless }), permit.None, false, watch.Nothing},
		"no disk here any more":           {primary(func(st *drbd.Status) { st.Disk = drbd.Diskless }), permit.Granted, true, watch.Drop},
		"frozen":                          {primary(func(st *drbd.Status) { st.Suspended = true }), permit.None, false, watch.Nothing},
		"the peer is lost": {
			primary(func(st *drbd.Status) { st.Connection, st.PeerDisk = "WFConnection", "DUnknown" }), permit.Granted, true, watch.Nothing,
		},
		"it was lost before": {
			primary(func(st *drbd.Status) { st.Connection, st.PeerDisk = "WFConnection", "Outdated" }), permit.None, false, watch.Nothing,
		},
		"the peer's disk is back": {
			primary(func(st *drbd.Status) { st.Connection, st.PeerDisk = "WFReportParams", "Negotiating" }), permit.Granted, true, watch.Nothing,
		},
		"and waits for the list of blocks": {
			primary(func(st *drbd.Status) { st.Connection, st.PeerDisk = "WFBitMapS", drbd.Consistent }), permit.Granted, true, watch.Nothing,
		},
		"and is filled": {
			primary(func(st *drbd.Status) { st.Connection, st.PeerDisk = "SyncSource", drbd.Inconsistent }), permit.Granted, true, watch.Nothing,
		},
		"and current":             {primary(func(st *drbd.Status) { st.PeerDisk = drbd.UpToDate }), permit.Granted, true, watch.Drop},
		"and nothing was granted": {primary(func(st *drbd.Status) { st.PeerDisk = drbd.UpToDate }), permit.Asked, false, watch.Drop},
		"current all the time":    {primary(func(st *drbd.Status) { st.PeerDisk = drbd.UpToDate }), permit.None, false, watch.Nothing},
	} {
		if got := watch.PermitDue(c.st, c.state, c.told); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
