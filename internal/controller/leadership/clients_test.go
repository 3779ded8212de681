package leadership

import (
	"errors"
	"slices"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	typed "k8s.io/client-go/kubernetes/typed/coordination/v1"

	"github.com/escache/escache-csi/internal/controller/volumes"
)

const leaseName = "lease"

// hold makes somebody the holder of the lease, as an election does: what else is in the lease
// stays.
func hold(t *testing.T, leases typed.LeaseInterface, identity string) {
	t.Helper()
	lease, err := leases.Get(t.Context(), leaseName, metav1.GetOptions{})
	if err != nil {
		lease = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: leaseName}}
		if lease, err = leases.Create(t.Context(), lease, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	lease.Spec.HolderIdentity = &identity
	if _, err := leases.Update(t.Context(), lease, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestALeaderFencesTheClientsOfEarlierOnes(t *testing.T) {
	leases := fake.NewClientset().CoordinationV1().Leases("n")
	var fenced []string
	fence := func(addresses []string) error { fenced = append(fenced, addresses...); return nil }
	broken := errors.New("no Ceph")
	noFence := func([]string) error { return broken }
	a, b, c := NewClients(leases, leaseName, "a"), NewClients(leases, leaseName, "b"), NewClients(leases, leaseName, "c")
	admit := func(by *Clients, cluster, address string, fence func([]string) error, want error, now ...string) {
		t.Helper()
		fenced = nil
		if err := by.Admit(t.Context(), cluster, address, fence); !errors.Is(err, want) {
			t.Errorf("%s at %s: got %v, want %v", address, cluster, err, want)
		}
		if slices.Sort(fenced); !slices.Equal(fenced, now) {
			t.Errorf("%s at %s: fenced %v, want %v", address, cluster, fenced, now)
		}
	}

	hold(t, leases, "a")
	admit(a, "one", "a1", fence, nil)
	admit(a, "one", "a2", fence, nil) // one's own are not fenced
	admit(a, "two", "a3", fence, nil)
	admit(b, "one", "b1", fence, volumes.ErrUnavailable)

	hold(t, leases, "b")
	admit(a, "one", "a4", fence, volumes.ErrUnavailable)
	admit(b, "one", "b1", noFence, broken)
	admit(b, "one", "b2", fence, nil, "a1", "a2")
	admit(b, "one", "b3", fence, nil) // each once

	hold(t, leases, "c")
	admit(c, "two", "c1", fence, nil, "a3") // b never came there
	admit(c, "one", "c2", fence, nil, "b1", "b2", "b3")
	admit(c, "one", "c2", fence, nil) // the same again is no other
}
