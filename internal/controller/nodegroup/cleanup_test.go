package nodegroup

import (
	"context"
	"errors"
	"testing"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
)

// TestNoPollWaitsForTheRemovalOfReplicas: a host that is back may take long for each of many.
func TestNoPollWaitsForTheRemovalOfReplicas(t *testing.T) {
	g := group("g", 0, "n1", "n2", "n3")
	for _, image := range []string{"i", "j"} {
		g.Status.StaleReplicas = append(g.Status.StaleReplicas, v1alpha1.StaleReplica{Node: "n1", Volume: image, Pool: "p", Image: image})
	}
	b := newBench(t, g)
	b.reconcile("g")
	asked, end := make(chan string), make(chan error)
	b.removing = func(ctx context.Context, node string) error {
		select {
		case asked <- node:
			return <-end
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	request := ctrl.Request{NamespacedName: client.ObjectKey{Name: "g"}}
	ended := make(chan error)
	go func() {
		_, err := b.r.CleanUp(t.Context(), request)
		ended <- err
	}()
	<-asked

	delete(b.hosts, "n1")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err := b.r.Reconcile(ctx, request)
	b.must(errors.Join(err, ctx.Err()))
	if b.book.Ready("g", "n1") || b.group("g").Status.Members[0].Ready {
		t.Error("nobody has seen that the host fell silent")
	}
	end <- errors.New("connection reset")
	select {
	case node := <-asked:
		t.Fatalf("node %s is silent, and is asked to remove the next replica", node)
	case err := <-ended:
		b.must(err)
	}
}

// TestAReplicaThatIsGivenUpDuringAPollKeepsItsPort: the poll has read the list of such replicas before.
func TestAReplicaThatIsGivenUpDuringAPollKeepsItsPort(t *testing.T) {
	b := newBench(t, group("g", 0, "n1", "n2", "n3"))
	b.poll("g")
	first, err := b.book.Reserve("v1", 1, "", nil)
	b.must(err)
	away := b.hosts["n2"]
	delete(b.hosts, "n2")
	b.asking = func(node string) {
		if node != "n3" {
			return
		}
		g := b.group("g")
		g.Status.StaleReplicas = []v1alpha1.StaleReplica{{Node: "n2", Volume: "v1", Pool: "p", Image: "i", Port: first.Port}}
		b.must(b.api.Status().Update(t.Context(), g))
		b.book.HoldStale("g", g.Status.StaleReplicas)
	}
	b.reconcile("g")
	b.asking = nil
	b.book.Forget("v1")
	reserved := func(when string, want int32) {
		t.Helper()
		if r, err := b.book.Reserve("v2", 1, "", nil); err != nil || r.Port != want {
			t.Errorf("%s: port %d, want %d: %v", when, r.Port, want, err)
		}
		b.book.Forget("v2")
	}
	reserved("after that poll", first.Port+1)
	b.poll("g")
	reserved("its host is silent", first.Port+1)
	b.hosts["n2"] = away
	b.poll("g")
	reserved("it is removed", first.Port)
}
