package repair_test

import (
	"log/slog"
	"slices"
	"testing"
	"time"

	"k8s.io/client-go/tools/events"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/cachevolume"
	"github.com/escache/escache-csi/internal/controller/drain"
	"github.com/escache/escache-csi/internal/controller/repair"
	"github.com/escache/escache-csi/test/csitest"
)

// TestAVolumeThatWasTakenOverFromADeletedNodeGetsItsSecondCopy: its host died with the volume, and its Node was deleted.
func TestAVolumeThatWasTakenOverFromADeletedNodeGetsItsSecondCopy(t *testing.T) {
	w := csitest.New(t)
	_, dead, survivor, third := w.PowerLoss("pvc-1")
	csitest.Must(t, w.API.Delete(t.Context(), w.Fleet.Node(dead)))
	w.Poll()
	_, err := w.Publish("pvc-1", survivor)
	csitest.Must(t, err)
	v := w.Volume("pvc-1")
	csitest.Must(t, w.Hosts().DevConnect(t.Context(), survivor, v.Status.HostID(survivor), cachevolume.ConnectRequest(v)))
	// The promotion has asked the arbiter.
	grant, err := authority.MayGoOnAlone(v, escache.OutdatePeerRequest{
		VolumeRef: csitest.Ref(v), ImageID: v.Status.ImageID, Node: survivor, Peer: dead, Epoch: v.Status.Epoch,
	}, time.Now())
	csitest.Must(t, err)
	v.Status.Outdated, v.Status.Conditions = grant.Outdated, grant.Conditions
	csitest.Must(t, w.API.Status().Update(t.Context(), v))

	log, later := slog.New(slog.NewTextHandler(t.Output(), nil)), func() time.Time { return time.Now().Add(time.Hour) }
	r := repair.New(repair.Config{
		Policy: repair.Policy{After: time.Minute, Parallel: 1}, Client: w.API, Live: w.API, Volumes: w.Locked,
		Drainer: drain.New(drain.Config{Client: w.API, Live: w.API, Hosts: w.Hosts(), Locks: w.Locks, Now: later}),
		Hosts:   w.Hosts(), Locks: w.Locks, Events: events.NewFakeRecorder(1000), Log: log, Now: later,
		Every: time.Second, Longest: time.Minute, Ask: 10 * time.Second,
	})
	for range 3 { // the repair begins, the copy gets its place, and is created
		csitest.Must(t, r.Poll(t.Context()))
	}
	if on := w.Volume("pvc-1").Spec.Replicas; !slices.Equal(on, []string{third, survivor}) || !w.Host(third).Has(csitest.Ref(v)) {
		t.Fatalf("replicas on %v", on)
	}
	w.Host(survivor).Sync(csitest.Ref(v), 100)
	for range 3 { // it is current, and the repair ends
		csitest.Must(t, r.Poll(t.Context()))
	}
	if s := w.Volume("pvc-1").Status; s.AttachedNode != survivor || len(s.Outdated) > 0 || s.Repair != nil {
		t.Errorf("status %+v", s)
	}
}
