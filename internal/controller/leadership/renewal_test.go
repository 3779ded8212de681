package leadership

import (
	"bytes"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// TestARenewalIsSeenWithinTheSameSecond: a replica that waits starts to count when what it reads has
// changed. If it misses the last renewal, it leads too early.
func TestARenewalIsSeenWithinTheSameSecond(t *testing.T) {
	leases := fake.NewClientset().CoordinationV1()
	l := New(&resourcelock.LeaseLock{
		LeaseMeta: metav1.ObjectMeta{Namespace: "n", Name: leaseName}, Client: leases,
		LockConfig: resourcelock.ResourceLockConfig{Identity: "me"},
	}, 6*time.Second, time.Second, time.Now)
	record := resourcelock.LeaderElectionRecord{HolderIdentity: "me", RenewTime: metav1.NewTime(time.Unix(1000, 0))}
	if err := l.Create(t.Context(), record); err != nil {
		t.Fatal(err)
	}
	read := func() []byte {
		t.Helper()
		_, raw, err := l.Get(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	first := read()
	if again := read(); !bytes.Equal(first, again) {
		t.Errorf("without a renewal %q became %q", first, again)
	}
	record.RenewTime = metav1.NewTime(time.Unix(1000, 400e6))
	if err := l.Update(t.Context(), record); err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(first, read()) {
		t.Error("the renewal is not seen")
	}
}
