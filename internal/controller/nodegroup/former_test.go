package nodegroup

import (
	"context"
	"errors"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/v1alpha1"
)

// replaced is a group that n3 has left, and that n4 has joined. Two replicas wait to be removed from n3, and their ports are the first two.
func replaced(t *testing.T, others ...*v1alpha1.NodeGroup) *bench {
	t.Helper()
	g := group("g", 0, "n1", "n2", "n4")
	for i, image := range []string{"i", "j"} {
		g.Status.StaleReplicas = append(g.Status.StaleReplicas, v1alpha1.StaleReplica{
			Node: "n3", Volume: image, Pool: "p", Image: image, Port: 7800 + int32(i), Epoch: 4,
		})
	}
	b := newBench(t, g)
	for _, other := range others {
		b.must(b.api.Create(t.Context(), other))
	}
	b.join("n4")
	b.book.HoldStale("g", g.Status.StaleReplicas)
	return b
}

// left fails unless that many replicas wait.
func (b *bench) left(want int) {
	b.t.Helper()
	b.poll("g")
	if got := len(b.poll("g").StaleReplicas); got != want {
		b.t.Errorf("%d replicas wait to be removed, want %d", got, want)
	}
}

func (b *bench) deleteNode(name string) {
	b.t.Helper()
	b.must(b.api.Delete(b.t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}))
}

// TestReplicasOnAFormerMemberAreRemoved: the list of the group is all that knows them.
func TestReplicasOnAFormerMemberAreRemoved(t *testing.T) {
	t.Run("it answers", func(t *testing.T) {
		b := replaced(t)
		b.dirty = []string{"n3"}
		b.left(0)
		if !slices.Equal(b.discarded, []string{"n3", "n3"}) || !slices.Equal(b.upTo, []int64{4, 4}) {
			t.Errorf("discarded on %v, up to %v", b.discarded, b.upTo)
		}
	})
	t.Run("it is silent, and answers later", func(t *testing.T) {
		b := replaced(t)
		host := b.hosts["n3"]
		delete(b.hosts, "n3")
		b.left(2)
		b.hosts["n3"] = host
		b.left(0)
	})
	t.Run("another machine answers", func(t *testing.T) {
		b := replaced(t)
		b.hosts["n3"].Name = "n9"
		b.left(2)
	})
	t.Run("it falls silent while it removes them", func(t *testing.T) {
		b := replaced(t)
		removed := 0
		b.removing = func(context.Context, string) error {
			removed++
			delete(b.hosts, "n3")
			return errors.New("connection reset")
		}
		b.left(2)
		if removed != 1 {
			t.Errorf("it was asked %d times to remove one", removed)
		}
	})
	t.Run("Kubernetes has no such node any more", func(t *testing.T) {
		b := replaced(t)
		b.removing = func(context.Context, string) error {
			t.Error("it is asked")
			return nil
		}
		b.deleteNode("n3")
		b.left(0)
	})
	t.Run("Kubernetes has no such node any more, and another group still names it", func(t *testing.T) {
		b := replaced(t, group("h", 0, "n3", "n5", "n6"))
		b.deleteNode("n3")
		b.left(2)
	})
}

// TestReplicasOnAFormerMemberHoldNoPorts: nothing is placed there. They do once it is a member again.
func TestReplicasOnAFormerMemberHoldNoPorts(t *testing.T) {
	b := replaced(t)
	delete(b.hosts, "n3")
	b.left(2)
	first := func(when string, want int32) {
		t.Helper()
		r, err := b.book.Reserve("v", 1, "", nil)
		if err != nil || r.Port != want {
			t.Errorf("%s: port %d, want %d: %v", when, r.Port, want, err)
		}
		b.book.Forget("v")
	}
	first("n3 has left", 7800)
	g := b.group("g")
	g.Spec.Nodes = []string{"n1", "n2", "n3"}
	b.must(b.api.Update(t.Context(), g))
	b.left(2)
	first("n3 is back", 7802)
	g = b.group("g")
	g.Status.StaleReplicas = nil
	b.must(b.api.Status().Update(t.Context(), g))
	b.left(0)
	first("they are off the list", 7800)
}
