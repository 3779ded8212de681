package cacheflush

import (
	"errors"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/cachevolume"
)

// pair makes a volume that is connected on n1 with so much dirty and has its second copy on n2, linked.
func (w *world) pair(name string, dirty int64) *v1alpha1.CacheVolume {
	w.t.Helper()
	v := w.attach(name, "n1", dirty)
	v.Spec.Replicas = []string{"n1", "n2"}
	must(w.t, w.api.Update(w.t.Context(), v))
	for _, node := range []string{"n1", "n2"} {
		h := w.fleet.Hosts[node]
		must(w.t, h.PutReplica(w.t.Context(), escache.ReplicaRequest{
			VolumeRef: cachevolume.Ref(v), CacheBytes: 1 << 30, SizeBytes: 1 << 30, Port: w.port, Minor: w.port,
			Nodes: []escache.ReplicaNode{{Name: "n1", Address: "127.0.0.1"}, {Name: "n2", Address: "127.0.0.2"}},
		}))
	}
	w.link(name, escache.LinkConnected, escache.DiskUpToDate)
	return w.volume(name)
}

// link plays what n1 sees of its peer n2.
func (w *world) link(volume string, link escache.LinkState, disk escache.DiskState) {
	w.fleet.Hosts["n1"].Change(escache.VolumeRef{Pool: "rbd", Image: volume}, func(s *escache.VolumeStatus) {
		s.Peers = []escache.Peer{{Name: "n2", ConnectionState: link, DiskState: disk}}
		s.DiskState, s.SyncedPercent = escache.DiskUpToDate, 100
	})
}

func (w *world) outdated(volume string, nodes ...string) {
	w.t.Helper()
	v := w.volume(volume)
	v.Status.Outdated = nodes
	must(w.t, w.api.Status().Update(w.t.Context(), v))
}

func (w *world) evacuate(secondCopies bool) {
	w.flush(v1alpha1.CacheFlushSpec{Node: "n2", Mode: v1alpha1.FlushModeDrain, SecondCopies: secondCopies})
}

func (w *world) writesThrough(volume string) bool {
	return w.volume(volume).Status.Authority == v1alpha1.AuthorityCeph && w.on("n1", volume).Mode == escache.ModeWritethrough
}

func TestADrainOfANodeTakesSecondCopiesOnlyIfItIsAskedTo(t *testing.T) {
	for _, asked := range []bool{false, true} {
		w := newWorld(t)
		w.pair("second", mib)
		w.attach("here", "n2", mib)
		w.attach("elsewhere", "n1", mib) // its copy is on n3
		w.evacuate(asked)
		f := w.until(v1alpha1.FlushDrained)
		if w.writesThrough("second") != asked || w.writesThrough("elsewhere") || w.volume("here").Status.Authority != v1alpha1.AuthorityCeph {
			t.Errorf("asked %v: %+v", asked, f.Status.Volumes)
		}
	}
}

func TestSecondCopiesWriteBackOnceTheyAreCurrentAgain(t *testing.T) {
	w := newWorld(t)
	w.pair("a", 40*mib)
	w.pair("still", mib)
	w.evacuate(true)
	w.until(v1alpha1.FlushDrained)
	if !w.writesThrough("a") {
		t.Fatal("it is not drained")
	}
	// n2 goes down. "a" is written to, and its holder has the copy put on record; "still" is not.
	for _, name := range []string{"a", "still"} {
		w.link(name, escache.LinkWFConnection, escache.DiskUnknown)
	}
	w.outdated("a", "n2")
	w.restart() // another leader
	if f := w.pass(); f.Status.Phase != v1alpha1.FlushDrained || !w.writesThrough("a") {
		t.Fatalf("without n2: %+v", f.Status)
	}
	w.remove()
	f := w.pass()
	if f == nil || !w.writesThrough("a") || !w.writesThrough("still") {
		t.Fatal("it writes back with one copy")
	}
	for _, says := range []string{"a: it writes through until the copy on node n2 is current", "still: it writes through until node n2 is linked to n1"} {
		if !strings.Contains(complete(f), says) {
			t.Errorf("it does not say %q: %s", says, complete(f))
		}
	}
	// n2 is back and catches up.
	w.restart()
	w.link("a", escache.LinkSyncSource, escache.DiskInconsistent)
	w.link("still", escache.LinkConnected, escache.DiskUpToDate)
	if f = w.pass(); f == nil || !w.writesThrough("a") || w.on("n1", "still").Mode != escache.ModeWriteback {
		t.Fatalf("while a catches up: %+v", f)
	}
	w.link("a", escache.LinkConnected, escache.DiskUpToDate)
	if w.pass() == nil || !w.writesThrough("a") {
		t.Fatal("the record does not count the copy yet")
	}
	w.outdated("a")
	if f = w.pass(); f != nil {
		t.Fatalf("all copies are current: %s", complete(f))
	}
	if v := w.volume("a"); v.Status.Authority != v1alpha1.AuthorityCache || len(v.Status.WriteThrough) > 0 || w.on("n1", "a").Mode != escache.ModeWriteback {
		t.Errorf("it does not write back: %+v", v.Status)
	}
}

func TestAVolumeThatGetsItsSecondCopyElsewhereWritesBackAgain(t *testing.T) {
	w := newWorld(t)
	w.pair("a", mib)
	w.evacuate(true)
	w.until(v1alpha1.FlushDrained)
	v := w.volume("a")
	v.Spec.Replicas = []string{"n1", "n3"} // repair has chosen n3 and fills it
	must(t, w.api.Update(t.Context(), v))
	w.outdated("a", "n3")
	if w.pass(); !w.writesThrough("a") {
		t.Fatal("it writes back, and the new copy is not complete")
	}
	w.outdated("a")
	f := w.pass()
	if s := of(t, f, "a"); s.Phase != v1alpha1.FlushComplete || !strings.Contains(s.Message, "on another host") {
		t.Errorf("%+v", s)
	}
	if w.on("n1", "a").Mode != escache.ModeWriteback || w.volume("a").Status.Authority != v1alpha1.AuthorityCache {
		t.Error("it writes through, although nothing of it is on n2")
	}
}

// A volume that is attached while a host is evacuated may get its second copy there.
func TestASecondCopyThatComesLaterIsDrainedToo(t *testing.T) {
	w := newWorld(t)
	w.evacuate(true)
	w.until(v1alpha1.FlushDrained)
	v := w.pair("late", mib)
	requests := w.r.concerned(t.Context(), v)
	if len(requests) != 1 || requests[0].Name != "f" {
		t.Errorf("nobody is told: %v", requests)
	}
	for range 5 {
		w.pass()
	}
	if !w.writesThrough("late") {
		t.Errorf("it is not drained: %+v", w.record().Status)
	}
}

// An attachment beside an evacuated host claims write-through for the evacuation before that knows of it.
func TestAVolumeThatIsAttachedDrainedStaysSoAndIsTurnedBack(t *testing.T) {
	for _, gone := range []bool{false, true} {
		w := newWorld(t)
		w.evacuate(true)
		w.until(v1alpha1.FlushDrained)
		v := w.pair("v", 0)
		before := v.DeepCopy()
		v.Status.Authority = v1alpha1.AuthorityCeph
		v.Status.WriteThrough = []v1alpha1.WriteThroughClaim{{Owner: v1alpha1.FlushOwner("f"), Epoch: v.Status.Epoch}}
		must(t, w.api.Status().Update(t.Context(), v))
		if !attachments().Update(event.UpdateEvent{ObjectOld: before, ObjectNew: v}) {
			t.Error("nobody is told of the claim")
		}
		w.fleet.Hosts["n1"].Change(cachevolume.Ref(v), func(s *escache.VolumeStatus) { s.Mode = escache.ModeWritethrough })
		if gone { // it ended at the moment of the attachment
			f := w.record()
			f.Finalizers = nil
			must(t, w.api.Update(t.Context(), f))
		} else {
			w.until(v1alpha1.FlushDrained)
			if !w.writesThrough("v") {
				t.Fatalf("%+v", w.volume("v").Status)
			}
		}
		w.remove()
		w.pass()
		if now := w.volume("v"); len(now.Status.WriteThrough) > 0 || now.Status.Authority != v1alpha1.AuthorityCache || w.on("n1", "v").Mode != escache.ModeWriteback {
			t.Errorf("gone %v: %+v", gone, now.Status)
		}
	}
}

func TestNeedsTwo(t *testing.T) {
	linked := escache.VolumeStatus{
		State: escache.StateDraining, Role: escache.RolePrimary, Epoch: 7, Node: "n1", DiskState: escache.DiskUpToDate, SyncedPercent: 100,
		Peers: []escache.Peer{{Name: "n2", ConnectionState: escache.LinkConnected, DiskState: escache.DiskUpToDate}},
	}
	alone := linked
	alone.Peers = []escache.Peer{{Name: "n2", ConnectionState: escache.LinkWFConnection, DiskState: escache.DiskUnknown}}
	for _, tc := range []struct {
		name     string
		at       string
		replicas []string
		outdated []string
		answer   escache.VolumeStatus
		err      error
		says     string
	}{
		{"both current and linked", "n1", []string{"n1", "n2"}, nil, linked, nil, ""},
		{"not current on record", "n1", []string{"n1", "n2"}, []string{"n2"}, linked, nil, "the copy on node n2"},
		{"no link, and the loss is not on record", "n1", []string{"n1", "n2"}, nil, alone, nil, "linked to n1"},
		{"no answer", "n1", []string{"n1", "n2"}, nil, linked, errors.New("no route"), "linked to n1"},
		{"the holder's own disk has failed", "n1", []string{"n1", "n2"}, []string{"n1"}, linked, nil, "the copy on node n1"},
		{"a copy elsewhere, current", "n1", []string{"n1", "n3"}, nil, alone, nil, ""},
		{"a copy elsewhere, being made", "n1", []string{"n1", "n3"}, []string{"n3"}, alone, nil, "the copy on node n3"},
		{"attached to the node itself", "n2", []string{"n1", "n2"}, []string{"n1"}, alone, nil, ""},
		{"detached", "", []string{"n1", "n2"}, []string{"n2"}, alone, nil, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := &v1alpha1.CacheVolume{Spec: v1alpha1.CacheVolumeSpec{Replicas: tc.replicas}}
			v.Status = v1alpha1.CacheVolumeStatus{
				Phase: v1alpha1.VolumeReady, AttachedNode: tc.at, Epoch: 7, Outdated: tc.outdated, Authority: v1alpha1.AuthorityCeph,
			}
			why := needsTwo(v, "n2", authority.Heard(v, tc.at, tc.answer, tc.err))
			if (why == "") != (tc.says == "") || !strings.Contains(why, tc.says) {
				t.Errorf("got %q", why)
			}
		})
	}
}
