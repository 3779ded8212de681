package watch

import (
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/node/blockdev"
)

func TestAConnectedVolumeIsWrittenOnceAndThenLeftAlone(t *testing.T) {
	w := newWorld(t)
	w.polls(1)
	if w.writes != 1 || w.object.Status.ClientAddress != "10.0.0.1:0/7" || w.condition(v1alpha1.ConditionRedundant) != "True TwoCopies" {
		t.Errorf("%d writes, %+v", w.writes, w.object.Status)
	}
	w.polls(1000)
	if w.writes != 1 || w.reads != 1 || len(w.events) != 0 {
		t.Errorf("while nothing changed: %d writes, %d reads, events %q", w.writes, w.reads, w.events)
	}
}

// A host that has its volume again may still have the device of before. The record must not say that the attachment has a client.
func TestAFencedClientIsNotPutOnRecord(t *testing.T) {
	w := newWorld(t)
	w.object.Status.Fenced = []v1alpha1.FencedClient{{Node: "n1", Address: w.status.ClientAddress, Epoch: 2}}
	w.polls(2)
	if w.object.Status.ClientAddress != "" {
		t.Errorf("on record is %q", w.object.Status.ClientAddress)
	}
	w.status.ClientAddress = "10.0.0.1:0/8"
	if w.polls(1); w.object.Status.ClientAddress != "10.0.0.1:0/8" {
		t.Errorf("on record is %q", w.object.Status.ClientAddress)
	}
}

func TestAProblemIsReportedAtOnceAndOnce(t *testing.T) {
	rows := []struct {
		name      string
		begin     func(w *world)
		end       func(w *world)
		condition string
		reason    string
		polls     int // within five seconds: at most two
	}{
		{"peer lost", (*world).lose, (*world).find, v1alpha1.ConditionRedundant, "PeerLost", 1},
		{"frozen", func(w *world) { w.status.IOSuspended = true }, func(w *world) { w.status.IOSuspended = false },
			v1alpha1.ConditionHealthy, "IOFrozen", 1},
		{"error", func(w *world) { w.status.Error = &escache.Fault{Code: escache.CodeCacheError, Detail: "origin EIO"} },
			func(w *world) { w.status.Error = nil }, v1alpha1.ConditionHealthy, "CacheError", 1},
		{"full", func(w *world) { dirty := int64(1 << 30); w.status.DirtyBytes = &dirty }, func(w *world) { w.status.DirtyBytes = new(int64) },
			v1alpha1.ConditionHealthy, "CacheNearlyFull", 1},
		{"Ceph stalls", func(w *world) { w.progress = blockdev.Progress{Completed: 10, InFlight: 4} },
			func(w *world) { w.progress = blockdev.Progress{Completed: 14} }, v1alpha1.ConditionHealthy, "CephStalled", 3},
		{"escached silent", func(w *world) { w.silent = true }, func(w *world) { w.silent = false }, v1alpha1.ConditionHealthy, "EscachedSilent", 3},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			w := healthyWorld(t)
			row.begin(w)
			w.polls(row.polls)
			if w.condition(row.condition) != "False "+row.reason || !slices.Equal(w.events, []string{row.reason}) {
				t.Fatalf("%s, events %q", w.condition(row.condition), w.events)
			}
			w.polls(50)
			if len(w.events) != 1 || w.writes > 2 { // the full cache's number is written once more, ten seconds later
				t.Errorf("while it lasts: events %q, %d writes", w.events, w.writes)
			}
			row.end(w)
			w.polls(misses)
			if got := w.condition(row.condition); got[:4] != "True" || !slices.Equal(w.events, []string{row.reason, "Recovered"}) {
				t.Errorf("%s, events %q", got, w.events)
			}
		})
	}
}

// I/O that completes is no stall, however much is in flight.
func TestABusyCephIsNotStalled(t *testing.T) {
	w := healthyWorld(t)
	for i := range uint64(20) {
		w.progress = blockdev.Progress{Completed: i, InFlight: 64}
		w.polls(1)
	}
	if len(w.events) != 0 {
		t.Errorf("events %q", w.events)
	}
}

func TestWhatComesAndGoesDoesNotFlood(t *testing.T) {
	w := healthyWorld(t)
	for range 50 { // every other poll: one problem
		w.lose()
		w.polls(1)
		w.find()
		w.polls(1)
	}
	if len(w.events) != 1 {
		t.Errorf("flapping fast: events %q", w.events)
	}
	w = healthyWorld(t)
	for range 50 { // slow enough to recover each time
		w.lose()
		w.polls(1)
		w.find()
		w.polls(misses)
	}
	if len(w.events) > 2*eventLimit {
		t.Errorf("flapping slowly: %d events in five minutes", len(w.events))
	}
}

func TestAFreshVolumeMayTakeAMomentToFindItsPeer(t *testing.T) {
	w := newWorld(t)
	w.lose()
	w.polls(1)
	w.find()
	w.polls(5)
	if len(w.events) != 0 {
		t.Errorf("events %q", w.events)
	}
	w = newWorld(t)
	w.lose()
	w.polls(2)
	if !slices.Equal(w.events, []string{"PeerLost"}) {
		t.Errorf("a peer that stays away: events %q", w.events)
	}
}

func TestProblemsThatEndTogetherAreReportedTogether(t *testing.T) {
	w := healthyWorld(t)
	w.lose()
	w.status.IOSuspended = true
	w.polls(1)
	w.find()
	w.status.IOSuspended = false
	w.polls(misses)
	if !slices.Equal(w.events, []string{"IOFrozen", "PeerLost", "Recovered"}) {
		t.Errorf("events %q", w.events)
	}
	if !strings.Contains(w.message, "IOFrozen is over after ") || !strings.Contains(w.message, ", PeerLost is over after ") {
		t.Errorf("message %q", w.message)
	}
}

func TestARestartReportsNothingTwice(t *testing.T) {
	w := healthyWorld(t)
	w.lose()
	w.polls(1)
	w.events = nil
	w.restart()
	w.polls(5)
	if len(w.events) != 0 {
		t.Errorf("again: %q", w.events)
	}
	w.find()
	w.polls(misses)
	if !slices.Equal(w.events, []string{"Recovered"}) || w.condition(v1alpha1.ConditionRedundant) != "True TwoCopies" {
		t.Errorf("events %q, %s", w.events, w.condition(v1alpha1.ConditionRedundant))
	}
}

func TestTroubleIsWrittenOnceTheAPIAnswersAgain(t *testing.T) {
	w := healthyWorld(t)
	w.apiDown = true
	w.lose()
	w.polls(3)
	w.apiDown = false
	w.polls(1)
	if w.condition(v1alpha1.ConditionRedundant) != "False PeerLost" {
		t.Error(w.condition(v1alpha1.ConditionRedundant))
	}
}

func TestNumbersAreWrittenAtMostOnceInTenSeconds(t *testing.T) {
	w := healthyWorld(t)
	w.polls(10)
	for i := range int64(60) { // two minutes of a busy writer
		dirty := 4096 * (i + 1)
		w.status.DirtyBytes = &dirty
		w.polls(1)
	}
	if w.writes < 10 || w.writes > 13 {
		t.Errorf("%d writes in two minutes", w.writes)
	}
	w.status.DirtyBytes = new(int64)
	flushed := w.now
	w.polls(6)
	if w.object.Status.DirtyBytes != 0 || w.object.Status.LastFlushTime == nil || w.object.Status.LastFlushTime.Sub(flushed) > 3*Interval {
		t.Errorf("%+v", w.object.Status)
	}
}

func TestConditionsOfOthersAreKept(t *testing.T) {
	w := newWorld(t)
	w.object.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: "ImageThere"}}
	w.polls(1)
	w.lose()
	// The controller writes between our read and our write.
	meta.SetStatusCondition(&w.object.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: "Deleting"})
	w.touch()
	w.polls(2)
	if w.condition(v1alpha1.ConditionReady) != "False Deleting" || w.condition(v1alpha1.ConditionRedundant) != "False PeerLost" {
		t.Errorf("%+v", w.object.Status.Conditions)
	}
}

// csi-controller knows why the peer is lost; csi-node only sees that it is.
func TestWhyThePeerIsLostStaysOnRecord(t *testing.T) {
	w := healthyWorld(t)
	w.lose()
	w.polls(1)
	meta.SetStatusCondition(&w.object.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionRedundant, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonHostSilent, Message: "since noon",
	})
	w.touch()
	w.polls(3)
	if w.condition(v1alpha1.ConditionRedundant) != "False HostSilent" {
		t.Error(w.condition(v1alpha1.ConditionRedundant))
	}
	w.status.Peers[0].ConnectionState, w.status.Peers[0].DiskState = "Connected", "Diskless"
	w.polls(1)
	if w.condition(v1alpha1.ConditionRedundant) != "False PeerDiskLost" {
		t.Error(w.condition(v1alpha1.ConditionRedundant))
	}
	w.find()
	w.polls(misses)
	if w.condition(v1alpha1.ConditionRedundant) != "True TwoCopies" {
		t.Error(w.condition(v1alpha1.ConditionRedundant))
	}
}

func TestOnlyTheAttachedNodeSpeaksForAVolume(t *testing.T) {
	w := newWorld(t)
	w.object.Status.AttachedNode = "n2"
	w.lose()
	w.polls(5)
	if w.writes != 0 {
		t.Errorf("%d writes", w.writes)
	}
}

func TestAVolumeThatHasLeftHasNoTroubles(t *testing.T) {
	w := healthyWorld(t)
	w.lose()
	w.polls(1)
	w.gone = true
	w.object.Status.AttachedNode = ""
	w.touch()
	w.polls(1)
	if got := w.condition(v1alpha1.ConditionRedundant); got != "True TwoCopies" {
		t.Error(got)
	}
	writes := w.writes
	w.polls(10)
	if w.writes != writes {
		t.Error("goes on writing")
	}
}

// It was taken from this host by force. Nobody has written it back, and nobody fills the other copy.
func TestAVolumeThatWasTakenAwayDirtyStillHasOneCopy(t *testing.T) {
	w := healthyWorld(t)
	w.lose()
	w.polls(1)
	w.gone = true
	w.object.Status.AttachedNode, w.object.Status.Outdated = "", []string{"n2"}
	w.touch()
	w.polls(2)
	if got := w.condition(v1alpha1.ConditionRedundant); got != "False PeerLost" {
		t.Error(got)
	}
}

func TestAHostWithoutVolumesIsLookedAtRarelyUntilAVolumeIsStaged(t *testing.T) {
	w := newWorld(t)
	if got := w.watch.pause(0); got != idleInterval {
		t.Errorf("without volumes: %s", got)
	}
	w.polls(1)
	if got := w.watch.pause(100 * time.Millisecond); got != Interval {
		t.Errorf("with one: %s", got)
	}
	if got := w.watch.pause(3 * time.Second); got != 12*time.Second {
		t.Errorf("on a slow host: %s", got)
	}
	w.watch.Wake()
	w.watch.Wake() // never blocks
	select {
	case <-w.watch.woken:
	default:
		t.Error("not woken")
	}
}
