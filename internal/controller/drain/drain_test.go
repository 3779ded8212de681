package drain

import (
	"context"
	"errors"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
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
