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
