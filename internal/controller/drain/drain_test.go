package drain

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/cachevolume"
	"github.com/escache/escache-csi/internal/operation"
)

// silent is a host that has lost its power: a call to it waits until the connection is given up.
type silent struct {
	asked  chan struct{}
	giveUp chan struct{}
}

var errSilent = errors.New("i/o timeout")

func (h silent) Status(context.Context, string, escache.VolumeRef) (escache.VolumeStatus, error) {
	h.asked <- struct{}{}
	<-h.giveUp
	return escache.VolumeStatus{}, errSilent
}

func (h silent) SetOptions(context.Context, cachevolume.Attachment, escache.CacheOptions) error {
	h.asked <- struct{}{}
	<-h.giveUp
	return errSilent
}

func (h silent) SetMode(context.Context, cachevolume.Attachment, escache.Mode) error {
	h.asked <- struct{}{}
	<-h.giveUp
	return errSilent
}

func TestASilentHostDoesNotKeepTheVolumeFromATakeOver(t *testing.T) {
	const name, owner = "v", "cacheflush/f"
	for what, step := range map[string]func(context.Context, *Drainer) error{
		"turn":    func(ctx context.Context, d *Drainer) error { _, err := d.Turn(ctx, name, owner); return err },
		"settle":  func(ctx context.Context, d *Drainer) error { _, _, err := d.Settle(ctx, name); return err },
		"apply":   func(ctx context.Context, d *Drainer) error { return d.Apply(ctx, name) },
		"restore": func(ctx context.Context, d *Drainer) error { return d.Restore(ctx, name, owner) },
	} {
		t.Run(what, func(t *testing.T) {
			scheme := runtime.NewScheme()
			if err := v1alpha1.AddToScheme(scheme); err != nil {
				t.Fatal(err)
			}
			v := &v1alpha1.CacheVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.CacheVolumeSpec{Modifications: 1}}
			v.Status = v1alpha1.CacheVolumeStatus{
				AttachedNode: "n1", Epoch: 1, Authority: v1alpha1.AuthorityCache,
				WriteThrough: []v1alpha1.WriteThroughClaim{{Owner: owner, Epoch: 1}},
			}
			api := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(v).WithObjects(v).Build()
			host := silent{make(chan struct{}), make(chan struct{})}
			locks := operation.NewLocks(time.Now)
			d := New(Config{Client: api, Live: api, Hosts: host, Locks: locks, Now: time.Now})
			ended := make(chan error, 1)
			go func() { ended <- step(t.Context(), d) }()
			<-host.asked
			unlock, err := locks.Begin(name, "taking over")
			if err != nil {
				t.Fatalf("while the host is asked: %v", err)
			}
			unlock()
			close(host.giveUp)
			if err := <-ended; !errors.Is(err, errSilent) {
				t.Errorf("ended with %v", err)
			}
		})
	}
}

// late is a host on which a change of mode takes longer than anybody waits for it, as while Ceph does not take what
// is under way. The change that is under way is in changing. The device changes when the test says so.
type late struct {
	device   escache.VolumeStatus
	changing chan escache.Mode
}

func (h *late) Status(context.Context, string, escache.VolumeRef) (escache.VolumeStatus, error) {
	s := h.device
	if len(h.changing) > 0 { // as the API wants it
		s.Mode, s.State = escache.ModeWriteback, escache.StateConnected
	}
	return s, nil
}

func (h *late) SetOptions(context.Context, cachevolume.Attachment, escache.CacheOptions) error {
	return h.busy()
}

func (h *late) SetMode(ctx context.Context, _ cachevolume.Attachment, mode escache.Mode) error {
	if err := h.busy(); err != nil {
		return err
	}
	h.changing <- mode
	<-ctx.Done()
	return ctx.Err()
}

func (h *late) busy() error {
	if len(h.changing) > 0 {
		return &escache.Problem{Code: escache.CodeBusy}
	}
	return nil
}

// carryOut ends the change that is under way.
func (h *late) carryOut() {
	h.device.Mode, h.device.State = <-h.changing, escache.StateConnected
	if h.device.Mode == escache.ModeWritethrough {
		h.device.State = escache.StateDraining
	}
}

// TestAVolumeIsNotInCephWhileItMayStillBeTurnedToWriteBack: csi-controller has given up the call, and the host has not.
func TestAVolumeIsNotInCephWhileItMayStillBeTurnedToWriteBack(t *testing.T) {
	const name, flush, repair = "v", "cacheflush/f", "repair"
	for what, begin := range map[string]func(context.Context, *Drainer) error{
		"restore": func(ctx context.Context, d *Drainer) error { return d.Restore(ctx, name, flush) },
		"apply":   func(ctx context.Context, d *Drainer) error { return d.Apply(ctx, name) },
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v := &v1alpha1.CacheVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.CacheVolumeSpec{
					Modifications: 1, CacheMode: v1alpha1.CacheModeWriteback,
				}}
				v.Status = v1alpha1.CacheVolumeStatus{
					AttachedNode: "n1", Epoch: 1, Authority: v1alpha1.AuthorityCache, Repair: &v1alpha1.ReplicaRepair{Epoch: 1},
				}
				if what == "restore" {
					v.Status.Authority = v1alpha1.AuthorityCeph
					v.Status.WriteThrough = []v1alpha1.WriteThroughClaim{{Owner: flush, Epoch: 1}}
				}
				clean := int64(0)
				host := &late{changing: make(chan escache.Mode, 1), device: escache.VolumeStatus{
					Node: "n1", State: escache.StateDraining, Mode: escache.ModeWritethrough, Role: escache.RolePrimary, Epoch: 1,
					DirtyBytes: &clean, Device: "/dev/escache/p/i",
				}}
				d, authorityNow := drained(t, v, host)
				if err := begin(t.Context(), d); !errors.Is(err, context.DeadlineExceeded) {
					t.Fatalf("it did not give up: %v", err)
				}
				// The second copy is lost, and the repair wants everything in Ceph. The host cannot be turned yet.
				for range 2 {
					_, err := d.Turn(t.Context(), name, repair)
					if problem, is := errors.AsType[*escache.Problem](err); !is || problem.Code != escache.CodeBusy {
						t.Errorf("while the call is under way Turn says %v", err)
					}
					if inCeph, _, err := d.Settle(t.Context(), name); err != nil || inCeph {
						t.Errorf("while the call is under way Settle says %v, %v", inCeph, err)
					}
				}
				host.carryOut()
				dirty := int64(4096)
				host.device.DirtyBytes = &dirty
				if now := authorityNow(); now != v1alpha1.AuthorityCache {
					t.Errorf("the host writes back, and by the record the truth is in %s", now)
				}
				// Now it can.
				if _, err := d.Turn(t.Context(), name, repair); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("Turn: %v", err)
				}
				host.carryOut()
				host.device.DirtyBytes = &clean
				if inCeph, _, err := d.Settle(t.Context(), name); err != nil || !inCeph || authorityNow() != v1alpha1.AuthorityCeph {
					t.Errorf("Settle: %v, %v; the truth is in %s", inCeph, err, authorityNow())
				}
			})
		})
	}
}

// TestApplySetsTheModeThatAnEarlierCallWillNotSet: the host said write-back because that call was under way, and
// then it failed.
func TestApplySetsTheModeThatAnEarlierCallWillNotSet(t *testing.T) {
	v := &v1alpha1.CacheVolume{ObjectMeta: metav1.ObjectMeta{Name: "v"}, Spec: v1alpha1.CacheVolumeSpec{
		Modifications: 1, CacheMode: v1alpha1.CacheModeWriteback,
	}}
	v.Status = v1alpha1.CacheVolumeStatus{AttachedNode: "n1", Epoch: 1, Authority: v1alpha1.AuthorityCache}
	host := &failed{mode: escache.ModeWritethrough}
	d, _ := drained(t, v, host)
	if err := d.Apply(t.Context(), "v"); err != nil {
		t.Fatal(err)
	}
	if host.mode != escache.ModeWriteback {
		t.Errorf("the device has %s", host.mode)
	}
}

// failed is a host on which a change to write-back fails just after it was asked for the status.
type failed struct{ mode escache.Mode }

func (h *failed) Status(context.Context, string, escache.VolumeRef) (escache.VolumeStatus, error) {
	return escache.VolumeStatus{
		Node: "n1", State: escache.StateConnected, Mode: escache.ModeWriteback, Role: escache.RolePrimary, Epoch: 1, Device: "/dev/escache/p/i",
	}, nil
}

func (h *failed) SetOptions(context.Context, cachevolume.Attachment, escache.CacheOptions) error {
	return nil
}

func (h *failed) SetMode(_ context.Context, _ cachevolume.Attachment, mode escache.Mode) error {
	h.mode = mode
	return nil
}

// drained returns a Drainer of one volume, and what tells where its truth is.
func drained(t *testing.T, v *v1alpha1.CacheVolume, hosts Hosts) (*Drainer, func() v1alpha1.Authority) {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	api := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(v).WithObjects(v).Build()
	d := New(Config{Client: api, Live: api, Hosts: hosts, Locks: operation.NewLocks(time.Now), Now: time.Now})
	return d, func() v1alpha1.Authority {
		now := &v1alpha1.CacheVolume{}
		if err := api.Get(t.Context(), client.ObjectKey{Name: v.Name}, now); err != nil {
			t.Fatal(err)
		}
		return now.Status.Authority
	}
}
