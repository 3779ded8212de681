package engine

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/host"
	"github.com/escache/escache-csi/internal/escached/volume"
)

func TestReplicasThatDifferAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*escache.ReplicaRequest)
		want   escache.Code
	}{
		"same":             {func(*escache.ReplicaRequest) {}, ""},
		"image grew":       {func(r *escache.ReplicaRequest) { r.SizeBytes += 4096 }, ""},
		"other cache size": {func(r *escache.ReplicaRequest) { r.CacheBytes += 4096 }, escache.CodeReplicaMismatch},
		// The record may be older than the image: an expansion that was cut off, or an administrator.
		"smaller image":    {func(r *escache.ReplicaRequest) { r.SizeBytes = 4096 }, ""},
		"other port":       {func(r *escache.ReplicaRequest) { r.Port++ }, escache.CodeReplicaMismatch},
		"other minor":      {func(r *escache.ReplicaRequest) { r.Minor++ }, escache.CodeReplicaMismatch},
		"other image id":   {func(r *escache.ReplicaRequest) { r.ImageID = "20cd" }, escache.CodeIdentityMismatch},
		"port of another":  {func(r *escache.ReplicaRequest) { r.Image, r.Minor = "v2", 101 }, escache.CodePortInUse},
		"minor of another": {func(r *escache.ReplicaRequest) { r.Image, r.Port = "v2", 7801 }, escache.CodePortInUse},
		"not this host": {func(r *escache.ReplicaRequest) {
			r.Nodes = []escache.ReplicaNode{{Name: "n3", Address: "10.0.0.3"}, r.Nodes[1]}
		}, escache.CodeInvalidRequest},
		"other address": {func(r *escache.ReplicaRequest) {
			r.Nodes = []escache.ReplicaNode{{Name: "n1", Address: "10.0.0.9"}, r.Nodes[1]}
		}, escache.CodeInvalidRequest},
		"names that drbdadm does not read": {func(r *escache.ReplicaRequest) {
			r.Image, r.Port, r.Minor = strings.Repeat("i", 128), 7801, 101
			r.Nodes = []escache.ReplicaNode{r.Nodes[0], {Name: "n2." + strings.Repeat("d", 60) + "." + strings.Repeat("e", 60), Address: "10.0.0.2"}}
		}, escache.CodeInvalidRequest},
		"port not configured":  {func(r *escache.ReplicaRequest) { r.Image, r.Port, r.Minor = "v2", 22, 101 }, escache.CodeInvalidRequest},
		"minor not configured": {func(r *escache.ReplicaRequest) { r.Image, r.Port, r.Minor = "v2", 7801, 7 }, escache.CodeInvalidRequest},
		"no room": {func(r *escache.ReplicaRequest) {
			r.Image, r.Port, r.Minor, r.CacheBytes = "v2", 7801, 101, 2<<30
		}, escache.CodeNoRoom},
	} {
		w := newWorld(t)
		e := w.engine()
		if err := e.PutReplica(t.Context(), putReq); err != nil {
			t.Fatal(err)
		}
		req := putReq
		req.Nodes = slices.Clone(putReq.Nodes)
		c.change(&req)
		before := fmt.Sprint(w.left())
		if err := e.PutReplica(t.Context(), req); code(err) != c.want {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
		if after := fmt.Sprint(w.left()); after != before {
			t.Errorf("%s: changed the host: %s → %s", name, before, after)
		}
	}
}

func TestReplicasAreLaidAFewAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := w.engine()
		const room = 2
		e.Turns = semaphore.NewWeighted(room)
		if err := e.Turns.Acquire(t.Context(), room); err != nil { // by two others
			t.Fatal(err)
		}
		answer := make(chan error, 1)
		go func() { answer <- e.PutReplica(t.Context(), putReq) }()
		time.Sleep(host.ChangeTimeout + time.Second) // waiting is not of its own time
		if left := w.left(); len(left) != 0 {
			t.Errorf("laid %q before its turn", left)
		}
		if err := e.DeleteReplica(t.Context(), ref, nil); code(err) != escache.CodeBusy {
			t.Errorf("another verb on a volume that waits: %v", err)
		}
		e.Turns.Release(1)
		if err := <-answer; err != nil {
			t.Fatalf("when it was its turn: %v", err)
		}

		if err := e.Turns.Acquire(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		if err := e.DeleteReplica(t.Context(), ref, nil); code(err) != escache.CodeBusy {
			t.Errorf("never its turn: %v", err)
		}
		e.Turns.Release(room)
		if err := e.DeleteReplica(t.Context(), ref, nil); err != nil || len(w.left()) != 0 {
			t.Errorf("%v, left %q", err, w.left())
		}
	})
}

func TestANewPartnerIsTakenOnlyByACurrentReplica(t *testing.T) {
	req := putReq
	req.Nodes = []escache.ReplicaNode{putReq.Nodes[0], {Name: "n3", Address: "10.0.0.3"}}
	for disk, want := range map[escache.DiskState]escache.Code{
		drbd.UpToDate: "", drbd.Outdated: escache.CodeReplicaMismatch, drbd.Inconsistent: escache.CodeReplicaMismatch,
	} {
		w := newWorld(t)
		e := w.engine()
		if err := e.PutReplica(t.Context(), putReq); err != nil {
			t.Fatal(err)
		}
		st := w.minors[100]
		st.Disk = disk
		w.minors[100] = st
		err := e.PutReplica(t.Context(), req)
		if code(err) != want {
			t.Errorf("%s: got %v, want %q", disk, err, want)
		}
		if partner := w.files[volume.NameOf(ref)].PeerHost; (partner == "n3") != (want == "") {
			t.Errorf("%s: partner is %s", disk, partner)
		}
	}
}

func TestAReplicaThatMustExistIsNotLaid(t *testing.T) {
	w := newWorld(t)
	e := w.engine()
	must := putReq
	must.MustExist = true
	if err := e.PutReplica(t.Context(), must); code(err) != escache.CodeNotFound || len(w.left()) > 0 {
		t.Errorf("got %v, and %q", err, w.left())
	}
	w.failAt = 3 // the LV is there, and the replica is not complete
	if err := e.PutReplica(t.Context(), putReq); err == nil {
		t.Fatal("no failure")
	}
	w.failAt = 0
	if err := e.PutReplica(t.Context(), must); code(err) != escache.CodeNotFound {
		t.Errorf("half laid: got %v", err)
	}
	for _, req := range []escache.ReplicaRequest{putReq, must} {
		if err := e.PutReplica(t.Context(), req); err != nil {
			t.Errorf("got %v", err)
		}
	}
}
