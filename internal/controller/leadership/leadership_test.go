package leadership

import (
	"context"
	"errors"
	"testing"
	"time"

	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	corev1 "k8s.io/api/core/v1"

	"github.com/escache/escache-csi/internal/controller/volumes"
)

// fakeLock is a lock that only remembers whether it works.
type fakeLock struct {
	resourcelock.Interface

	fail error
	slow func()
}

func (*fakeLock) Identity() string { return "me" }

func (f *fakeLock) Create(context.Context, resourcelock.LeaderElectionRecord) error { return f.fail }

func (f *fakeLock) Update(context.Context, resourcelock.LeaderElectionRecord) error {
	if f.slow != nil {
		f.slow()
	}
	return f.fail
}

func TestCheckGoesByTheLastRenewal(t *testing.T) {
	now := time.Unix(1000, 0)
	lock := &fakeLock{}
	l := New(lock, 6*time.Second, time.Second, func() time.Time { return now })
	mine, others := resourcelock.LeaderElectionRecord{HolderIdentity: "me"}, resourcelock.LeaderElectionRecord{}
	step := func(name string, leads bool) {
		t.Helper()
		if err := l.Check(); (err == nil) != leads || (err != nil && !errors.Is(err, volumes.ErrUnavailable)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ranOut := func(name string, want bool) {
		t.Helper()
		if _, out := l.ranOut(); out != want {
			t.Errorf("%s: ran out %v", name, out)
		}
	}
	step("before the first renewal", false)
	ranOut("before the first renewal", false)
	must(l.Create(t.Context(), mine))
	step("acquired", true)
	now = now.Add(5 * time.Second)
	step("five seconds later", true)
	ranOut("five seconds later", false)
	lock.fail = errors.New("no answer")
	if l.Update(t.Context(), mine) == nil {
		t.Error("the failed renewal is hidden")
	}
	now = now.Add(time.Second)
	step("a renewal failed", false)
	ranOut("a renewal failed", true)
	var age time.Duration
	l.Watch(t.Context(), time.Hour, func(a time.Duration) { age = a })
	if age != 6*time.Second {
		t.Errorf("lost after %s", age)
	}
	lock.fail = nil
	must(l.Update(t.Context(), mine))
	step("renewed after it had run out: another may have led in between", false)
	ranOut("renewed after it had run out", true)
	must(l.Update(t.Context(), others))
	step("released", false)
	ranOut("released", false)

	must(l.Update(t.Context(), mine))
	now = now.Add(5 * time.Second)
	must(l.Update(t.Context(), mine))
	now = now.Add(5 * time.Second)
	step("renewed in time", true)
	lock.slow = func() { now = now.Add(10 * time.Second) }
	must(l.Update(t.Context(), mine))
	step("the answer took longer than the lease", false)
}

// TestNothingIsChangedWithoutTheLease calls every guarded method; whatever got through would panic,
// for nothing is behind it.
func TestNothingIsChangedWithoutTheLease(t *testing.T) {
	l := New(&fakeLock{}, time.Second, time.Second, time.Now)
	images, objects := l.Images(nil), l.Client(fake.NewClientBuilder().Build())
	ctx, image := t.Context(), volumes.ImageRef{}
	node := &corev1.Node{}
	node.Name = "n"
	for name, call := range map[string]func() error{
		"EnsurePool":    func() error { return images.EnsurePool(ctx, "", "", true) },
		"Create image":  func() error { _, err := images.Create(ctx, volumes.ImageSpec{}); return err },
		"Mark":          func() error { _, err := images.Mark(ctx, image, ""); return err },
		"Resize":        func() error { _, err := images.Resize(ctx, image, 1); return err },
		"Delete image":  func() error { return images.Delete(ctx, image) },
		"Fence":         func() error { return images.Fence(ctx, "", "", 1) },
		"Unfence":       func() error { return images.Unfence(ctx, "", "") },
		"Create":        func() error { return objects.Create(ctx, node) },
		"Update":        func() error { return objects.Update(ctx, node) },
		"Patch":         func() error { return objects.Patch(ctx, node, client.MergeFrom(node)) },
		"Delete":        func() error { return objects.Delete(ctx, node) },
		"Status update": func() error { return objects.Status().Update(ctx, node) },
		"Status patch":  func() error { return objects.Status().Patch(ctx, node, client.MergeFrom(node)) },
	} {
		t.Run(name, func(t *testing.T) {
			if err := call(); !errors.Is(err, volumes.ErrUnavailable) {
				t.Errorf("got %v", err)
			}
		})
	}
}
