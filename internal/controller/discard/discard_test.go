package discard_test

import (
	"errors"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/test/csitest"
)

func TestAttachWithoutACurrentCopyNamesWhatIsLost(t *testing.T) {
	w := csitest.New(t)
	_, dead, partner := w.Lose("pvc-1")
	csitest.Must(t, w.Unpublish("pvc-1", dead))
	_, err := w.Publish("pvc-1", partner)
	csitest.Wants(t, err, codes.Unavailable, "node "+dead+" has not answered since 20", "4096 bytes", "discard-cache pvc-1")
	csitest.Wants(t, w.Delete("pvc-1"), codes.Unavailable, dead, "4096 bytes", "discard-cache pvc-1")
}

func TestDiscardedCacheIsWhatCephHas(t *testing.T) {
	w := csitest.New(t)
	v, dead, partner := w.Lose("pvc-1")
	request := w.DiscardRequest("pvc-1", v.Status.Epoch)
	w.Images.Fail = volumes.ErrUnavailable
	if _, err := w.Locked.Discard(t.Context(), request); !errors.Is(err, volumes.ErrUnavailable) {
		t.Fatalf("without Ceph nobody can be fenced: %v", err)
	}
	if w.Volume("pvc-1").Status.Discarded != nil {
		t.Fatal("discarded without a fence")
	}
	w.Images.Fail = nil
	loss, err := w.Locked.Discard(t.Context(), request)
	csitest.Must(t, err)
	if !slices.Equal(loss.Nodes, []string{dead}) || loss.BytesAtStake != 4096 || loss.RequestedBy != "alice" || loss.Epoch != 1 {
		t.Errorf("loss %+v", loss)
	}
	s := w.Volume("pvc-1").Status
	if s.Authority != v1alpha1.AuthorityCeph || s.AttachedNode != "" || !s.IsOutdated(dead) || !s.IsOutdated(partner) || s.DirtyBytes != 0 {
		t.Errorf("status %+v", s)
	}
	if !slices.Equal(w.Images.Fenced, []string{"10.0.0.1:0/1"}) {
		t.Errorf("fenced %v", w.Images.Fenced)
	}

	// The next attach lays replicas again on the two hosts that live; the lost copy is removed when
	// its host is back.
	_, err = w.Publish("pvc-1", partner)
	csitest.Must(t, err)
	if now := w.Volume("pvc-1"); now.Spec.HasReplica(dead) || len(now.Status.Outdated) > 0 {
		t.Errorf("replicas %v, outdated %v", now.Spec.Replicas, now.Status.Outdated)
	}
	again, err := w.Locked.Discard(t.Context(), request)
	csitest.Must(t, err)
	if again.Time != loss.Time && !again.Time.Equal(&loss.Time) || w.Volume("pvc-1").Status.Authority != v1alpha1.AuthorityCache {
		t.Errorf("the repeated request discarded again: %+v", again)
	}
	w.Host(dead).Release(csitest.Ref(v))
	w.Host(dead).Restart(t)
	w.Poll()
	if w.Host(dead).Has(csitest.Ref(v)) {
		t.Error("the lost copy is still there")
	}
}

func TestDiscardIsRefusedWhileTheCopyCanBeHad(t *testing.T) {
	w := csitest.New(t)
	v, dead, _ := w.Lose("pvc-1")
	w.Host(dead).Restart(t)
	if _, err := w.Locked.Discard(t.Context(), w.DiscardRequest("pvc-1", v.Status.Epoch)); !errors.Is(err, authority.ErrRefused) {
		t.Errorf("got %v", err)
	}
	if len(w.Images.Fenced) > 0 || w.Volume("pvc-1").Status.Authority != v1alpha1.AuthorityCache {
		t.Error("something was changed")
	}
}
