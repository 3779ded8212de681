package csi_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/controller/volumes"
)

// lose makes a volume whose only current copy is on a host that died while it wrote, with 4096
// bytes dirty.
func (w *world) lose(name string) (v *v1alpha1.CacheVolume, dead, partner string) {
	w.t.Helper()
	v = w.create(name)
	dead, partner = v.Spec.Replicas[0], v.Spec.Replicas[1]
	_, err := w.publish(name, dead)
	must(w.t, err)
	w.host(dead).Connect(ref(v), "10.0.0.1:0/1")
	w.host(dead).Write(ref(v), 4096)
	v = w.volume(name)
	v.Status.Outdated, v.Status.ClientAddress = []string{partner}, "10.0.0.1:0/1"
	v.Status.SetDirtyBytes(4096)
	must(w.t, w.api.Status().Update(context.Background(), v))
	w.host(dead).Stop()
	w.taint(dead)
	w.poll()
	return w.volume(name), dead, partner
}

func (w *world) request(volume string, epoch int64) *v1alpha1.CacheDiscard {
	r := &v1alpha1.CacheDiscard{Spec: v1alpha1.CacheDiscardSpec{Volume: volume, Confirm: volume, Epoch: epoch, RequestedBy: "alice"}}
	r.UID = "u-1"
	return r
}

func TestAttachWithoutACurrentCopyNamesWhatIsLost(t *testing.T) {
	w := newWorld(t)
	_, dead, partner := w.lose("pvc-1")
	must(t, w.unpublish("pvc-1", dead))
	_, err := w.publish("pvc-1", partner)
	wants(t, err, codes.Unavailable, "node "+dead+" has not answered since 20", "4096 bytes", "discard-cache pvc-1")
	wants(t, w.delete("pvc-1"), codes.Unavailable, dead, "4096 bytes", "discard-cache pvc-1")
}

func TestDiscardedCacheIsWhatCephHas(t *testing.T) {
	w := newWorld(t)
	v, dead, partner := w.lose("pvc-1")
	request := w.request("pvc-1", v.Status.Epoch)
	w.images.fail = volumes.ErrUnavailable
	if _, err := w.locked.Discard(t.Context(), request); !errors.Is(err, volumes.ErrUnavailable) {
		t.Fatalf("without Ceph nobody can be fenced: %v", err)
	}
	if w.volume("pvc-1").Status.Discarded != nil {
		t.Fatal("discarded without a fence")
	}
	w.images.fail = nil
	loss, err := w.locked.Discard(t.Context(), request)
	must(t, err)
	if !slices.Equal(loss.Nodes, []string{dead}) || loss.BytesAtStake != 4096 || loss.RequestedBy != "alice" || loss.Epoch != 1 {
		t.Errorf("loss %+v", loss)
	}
	s := w.volume("pvc-1").Status
	if s.Authority != v1alpha1.AuthorityCeph || s.AttachedNode != "" || !s.IsOutdated(dead) || !s.IsOutdated(partner) || s.DirtyBytes != 0 {
		t.Errorf("status %+v", s)
	}
	if !slices.Equal(w.images.fenced, []string{"10.0.0.1:0/1"}) {
		t.Errorf("fenced %v", w.images.fenced)
	}

	// The next attach lays replicas again on the two hosts that live; the lost copy is removed when
	// its host is back.
	_, err = w.publish("pvc-1", partner)
	must(t, err)
	if now := w.volume("pvc-1"); now.Spec.HasReplica(dead) || len(now.Status.Outdated) > 0 {
		t.Errorf("replicas %v, outdated %v", now.Spec.Replicas, now.Status.Outdated)
	}
	again, err := w.locked.Discard(t.Context(), request)
	must(t, err)
	if again.Time != loss.Time && !again.Time.Equal(&loss.Time) || w.volume("pvc-1").Status.Authority != v1alpha1.AuthorityCache {
		t.Errorf("the repeated request discarded again: %+v", again)
	}
	w.host(dead).Release(ref(v))
	w.host(dead).Restart(t)
	w.poll()
	if w.host(dead).Has(ref(v)) {
		t.Error("the lost copy is still there")
	}
}

func TestDiscardIsRefusedWhileTheCopyCanBeHad(t *testing.T) {
	w := newWorld(t)
	v, dead, _ := w.lose("pvc-1")
	w.host(dead).Restart(t)
	if _, err := w.locked.Discard(t.Context(), w.request("pvc-1", v.Status.Epoch)); !errors.Is(err, authority.ErrRefused) {
		t.Errorf("got %v", err)
	}
	if len(w.images.fenced) > 0 || w.volume("pvc-1").Status.Authority != v1alpha1.AuthorityCache {
		t.Error("something was changed")
	}
}
