package app

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/fake"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/escache/escache-csi/internal/controller/leadership"
)

// cutOff is a lock whose API server can be cut off.
type cutOff struct {
	resourcelock.Interface

	cut atomic.Bool
}

func (c *cutOff) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	if c.cut.Load() {
		return errors.New("no answer")
	}
	return c.Interface.Update(ctx, r)
}

// replica takes part in an election, as the manager does.
type replica struct {
	lock  *cutOff
	lease *leadership.Lease
	leads chan struct{} // closed when it does
	kill  context.CancelFunc
	ended chan struct{}
}

func elect(t *testing.T, o Options, leases coordinationv1.LeasesGetter, identity string) *replica {
	t.Helper()
	ctx, kill := context.WithCancel(t.Context())
	r := &replica{
		lock: &cutOff{Interface: &resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: "n", Name: o.LeaseName}, Client: leases,
			LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
		}},
		leads: make(chan struct{}), kill: kill, ended: make(chan struct{}),
	}
	r.lease = leadership.New(r.lock, o.RenewDeadline, o.LeaseDuration-o.RenewDeadline, time.Now)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: r.lease, LeaseDuration: o.LeaseDuration, RenewDeadline: o.RenewDeadline, RetryPeriod: o.RetryPeriod,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { close(r.leads) }, OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	go func() { defer close(r.ended); elector.Run(ctx) }() // it does not release the lease when it is killed
	return r
}

// pair returns a replica that leads, at any moment between two of its renewals, and one that waits.
// The caller ends both.
func pair(t *testing.T, o Options) (first, second *replica) {
	t.Helper()
	leases := fake.NewClientset().CoordinationV1()
	first = elect(t, o, leases, "first")
	<-first.leads
	second = elect(t, o, leases, "second")
	time.Sleep(10*time.Second + rand.N(10*time.Second))
	if first.lease.Check() != nil || second.lease.Check() == nil {
		t.Fatal("the first replica does not lead alone")
	}
	return first, second
}

func (r *replica) end() {
	r.kill()
	<-r.ended
}

// leads is the time within which another replica leads after the leader's death.
const leads = 19 * time.Second

// TestAnotherReplicaLeadsSoonAfterTheLeadersDeath runs in played time, so a busy machine changes
// nothing.
func TestAnotherReplicaLeadsSoonAfterTheLeadersDeath(t *testing.T) {
	o := defaults()
	var longest, total time.Duration
	const runs = 50
	for range runs {
		synctest.Test(t, func(t *testing.T) {
			first, second := pair(t, o)
			killed := time.Now()
			first.end()
			<-second.leads
			longest, total = max(longest, time.Since(killed)), total+time.Since(killed)
			second.end()
		})
	}
	t.Logf("another leads after %s on average and %s at most", total/runs, longest)
	if longest > leads {
		t.Errorf("it took %s, want %s at most", longest, leads)
	}
	// What no run may have met: the standby sees the last renewal one try late, and that the lease has run out another one.
	tries := time.Duration(2 * float64(o.RetryPeriod) * (1 + leaderelection.JitterFactor))
	if most := o.LeaseDuration + tries; most > leads {
		t.Errorf("at worst it takes %s, want %s at most", most, leads)
	}
}

// TestALeaderThatIsCutOffStopsBeforeAnotherLeads: and long enough before for what it had begun.
func TestALeaderThatIsCutOffStopsBeforeAnotherLeads(t *testing.T) {
	o := defaults()
	for range 10 {
		synctest.Test(t, func(t *testing.T) {
			first, second := pair(t, o)
			first.lock.cut.Store(true)
			for first.lease.Check() == nil {
				time.Sleep(time.Millisecond)
			}
			stopped := time.Now()
			<-second.leads
			if margin := time.Since(stopped); margin < o.LeaseDuration-o.RenewDeadline-time.Millisecond {
				t.Errorf("another leads %s after the leader has stopped, want %s at least", margin, o.LeaseDuration-o.RenewDeadline)
			}
			first.end()
			second.end()
		})
	}
}

// TestTheChartGivesTheLeaseItsDefaults: what is argued and tested here holds for the defaults.
func TestTheChartGivesTheLeaseItsDefaults(t *testing.T) {
	text, err := os.ReadFile("../../../charts/escache-csi/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var values struct {
		Controller struct {
			Lease struct{ Duration, RenewDeadline, RetryPeriod metav1.Duration }
		}
	}
	if err := yaml.Unmarshal(text, &values); err != nil {
		t.Fatal(err)
	}
	o, l := defaults(), values.Controller.Lease
	if l.Duration.Duration != o.LeaseDuration || l.RenewDeadline.Duration != o.RenewDeadline || l.RetryPeriod.Duration != o.RetryPeriod {
		t.Errorf("the chart has %v, the defaults are %s, %s and %s", l, o.LeaseDuration, o.RenewDeadline, o.RetryPeriod)
	}
}

// TestALeaseLastsWholeSeconds: it is on record in whole seconds, and the others would wait for less
// than the leader counts on.
func TestALeaseLastsWholeSeconds(t *testing.T) {
	for duration, want := range map[time.Duration]bool{5 * time.Second: true, 5900 * time.Millisecond: false} {
		o := defaults()
		o.LeaseDuration, o.RenewDeadline = duration, duration-500*time.Millisecond
		if err := o.Validate(); (err == nil || !strings.Contains(err.Error(), "--lease-duration")) != want {
			t.Errorf("%s: %v", duration, err)
		}
	}
}
