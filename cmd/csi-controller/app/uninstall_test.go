package app

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/escache/escache-csi/api/v1alpha1"
)

func TestUninstallIsRefusedWhileThereAreVolumes(t *testing.T) {
	scheme, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}
	kube := fake.NewClientBuilder().WithScheme(scheme).Build()
	if err := checkUninstall(t.Context(), kube); err != nil {
		t.Errorf("nothing is there: %v", err)
	}
	readers := &v1alpha1.ReadOnlyVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-r"}}
	if err := kube.Create(t.Context(), readers); err != nil {
		t.Fatal(err)
	}
	if err := checkUninstall(t.Context(), kube); err == nil || !strings.Contains(err.Error(), "1 read-only volumes are left (pvc-r)") {
		t.Errorf("a read-only volume is there: %v", err)
	}
	for i := range 7 {
		v := &v1alpha1.CacheVolume{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pvc-%d", i)}}
		if err := kube.Create(t.Context(), v); err != nil {
			t.Fatal(err)
		}
	}
	err = checkUninstall(t.Context(), kube)
	if err == nil || !strings.Contains(err.Error(), "7 volumes") || !strings.Contains(err.Error(), "pvc-0") ||
		!strings.Contains(err.Error(), "kubectl escache release") || strings.Contains(err.Error(), "pvc-6") {
		t.Errorf("refusal: %v", err)
	}
}

func TestUninstallWaitsUntilNodeGroupsCanBeDeletedWithoutTheDriver(t *testing.T) {
	scheme, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}
	g := &v1alpha1.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: "rack1", Finalizers: []string{v1alpha1.GroupFinalizer}}}
	kube := fake.NewClientBuilder().WithScheme(scheme).WithObjects(g, &v1alpha1.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: "rack2"}}).Build()
	wait := func(longest time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), longest)
		defer cancel()
		return waitForGroups(ctx, kube, time.Millisecond)
	}
	const short = 50 * time.Millisecond
	if err := wait(short); err == nil || !strings.Contains(err.Error(), "NodeGroup rack1") || !strings.Contains(err.Error(), "kubectl patch nodegroup rack1") {
		t.Errorf("csi-controller does not let go: %v", err)
	}
	g.Status.StaleReplicas = []v1alpha1.StaleReplica{{Node: "n2"}, {Node: "n2"}}
	if err := kube.Update(t.Context(), g); err != nil {
		t.Fatal(err)
	}
	if err := wait(short); err == nil || !strings.Contains(err.Error(), "2 replicas") || !strings.Contains(err.Error(), "on n2:") {
		t.Errorf("a host is down: %v", err)
	}
	released := make(chan error, 1)
	go func() {
		time.Sleep(short)
		g.Finalizers = nil
		released <- kube.Update(context.WithoutCancel(t.Context()), g)
	}()
	if err := wait(time.Minute); err != nil {
		t.Errorf("csi-controller has let go: %v", err)
	}
	if err := <-released; err != nil {
		t.Fatal(err)
	}
}

func TestUninstallIsRefusedWhileThereAreSnapshotsOfDeletedVolumes(t *testing.T) {
	scheme, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}
	s := &v1alpha1.CacheSnapshot{ObjectMeta: metav1.ObjectMeta{Name: "snapshot-1"}, Spec: v1alpha1.CacheSnapshotSpec{Volume: "gone"}}
	kube := fake.NewClientBuilder().WithScheme(scheme).WithObjects(s).Build()
	err = checkUninstall(t.Context(), kube)
	if err == nil || !strings.Contains(err.Error(), "1 snapshots") || !strings.Contains(err.Error(), "snapshot-1") ||
		!strings.Contains(err.Error(), "delete the VolumeSnapshots") {
		t.Errorf("refusal: %v", err)
	}
}

// TestUninstallLeavesNoCacheFlush: each has csi-controller's finalizer, also one that is over and a drain, which never
// is. With csi-controller gone, nobody could delete them any more, nor their kind.
func TestUninstallLeavesNoCacheFlush(t *testing.T) {
	scheme, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}
	var flushes []client.Object
	for _, name := range []string{"evacuate-n1", "over"} {
		flushes = append(flushes, &v1alpha1.CacheFlush{ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: []string{v1alpha1.FlushFinalizer}}})
	}
	kube := fake.NewClientBuilder().WithScheme(scheme).WithObjects(flushes...).Build()
	prepare := func(longest time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), longest)
		defer cancel()
		return prepareUninstall(ctx, kube, time.Millisecond)
	}
	err = prepare(50 * time.Millisecond)
	for _, part := range []string{"2 CacheFlushes (evacuate-n1, over)", "check that csi-controller runs", "kubectl patch cacheflush evacuate-n1"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("csi-controller does not let go: %v, want %q", err, part)
		}
	}
	ended := make(chan error, 1)
	go func() { ended <- prepare(time.Minute) }()
	for _, f := range flushes {
		if err := letGo(t.Context(), kube, f); err != nil {
			t.Error(err)
		}
	}
	if err := <-ended; err != nil {
		t.Errorf("csi-controller has let go: %v", err)
	}
	if all := (&v1alpha1.CacheFlushList{}); kube.List(t.Context(), all) != nil || len(all.Items) > 0 {
		t.Errorf("%d are left", len(all.Items))
	}
}

// letGo does what csi-controller does with an object that is marked as deleted.
func letGo(ctx context.Context, kube client.Client, o client.Object) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		if err := kube.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
			return err
		}
		if o.GetDeletionTimestamp() != nil {
			o.SetFinalizers(nil)
			return kube.Update(ctx, o)
		}
		if ctx.Err() != nil {
			return fmt.Errorf("nobody deletes CacheFlush %s", o.GetName())
		}
		time.Sleep(time.Millisecond)
	}
}

func TestUninstallDeletesNoCacheFlushWhileThereAreVolumes(t *testing.T) {
	scheme, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}
	f := &v1alpha1.CacheFlush{ObjectMeta: metav1.ObjectMeta{Name: "evacuate-n1"}}
	v := &v1alpha1.CacheVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-0"}}
	kube := fake.NewClientBuilder().WithScheme(scheme).WithObjects(f, v).Build()
	if err := prepareUninstall(t.Context(), kube, time.Millisecond); err == nil || !strings.Contains(err.Error(), "1 volumes") {
		t.Errorf("a volume is there: %v", err)
	}
	if err := kube.Get(t.Context(), client.ObjectKeyFromObject(f), f); err != nil {
		t.Errorf("a refused uninstall has deleted it: %v", err)
	}
}
