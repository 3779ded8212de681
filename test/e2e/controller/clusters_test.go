//go:build e2e

package controller

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/test/hosttest"
	"github.com/escache/escache-csi/test/kubetest"
)

// neighbour is another Kubernetes cluster with hosts of its own, whose driver uses the same pools
// of the same Ceph with the same prefix.
func (w *world) neighbour(t *testing.T) *world {
	t.Helper()
	n := &world{
		ceph: w.ceph, admin: w.admin, kube: kubetest.Start(t), fleet: hosttest.Start(t, 100*gib, nodes[:3]...),
		binary: w.binary, cephDir: w.cephDir, linkKey: w.linkKey,
	}
	n.admit(t)
	n.addGroup(t, "g1", nodes[:3])
	return n
}

const (
	static = "static" // a name that both clusters use
	image  = "escache-" + static
)

// twoClusters has an image of one Kubernetes cluster in a pool that another one uses, too.
func twoClusters(t *testing.T, w *world) {
	n := w.neighbour(t)
	ours, theirs := leader(t, time.Minute, w.launch(t, "a", soon...)), leader(t, time.Minute, n.launch(t, "b", soon...))
	until(t, func() error { return ours.create(t.Context(), static) })
	until(t, func() error { return theirs.create(t.Context(), "pvc-theirs") })

	for name, by := range map[string]*world{image: n, "escache-pvc-theirs": w} {
		out, err := by.orphans()
		if err != nil || strings.Contains(out, name) || !strings.Contains(out, "1 image belongs to another Kubernetes cluster") {
			t.Errorf("orphans of the other cluster: %v\n%s", err, out)
		}
		for _, args := range [][]string{{}, {"--allow-unmarked"}} {
			out, err := by.orphans(append(args, "--remove-image", "lab/rbd/"+name)...)
			if err == nil || !strings.Contains(out, "another Kubernetes cluster") {
				t.Errorf("%s was removed, or refused for another reason: %v\n%s", name, err, out)
			}
		}
	}
	refuses := func(err error) {
		t.Helper()
		wants(t, err, []codes.Code{codes.FailedPrecondition}, "another Kubernetes cluster")
	}
	refuses(theirs.create(t.Context(), static))
	if left := n.volumes(t); len(left) != 1 {
		t.Errorf("the refused volume has left a record: %+v", left)
	}
	copied := n.copyRecord(t, w, static)
	refuses(theirs.publish(t.Context(), static, copied.Spec.Replicas[0]))
	refuses(theirs.expand(t.Context(), static, 2*gib))
	refuses(theirs.delete(t.Context(), static))
	must(t, n.api.Patch(t.Context(), copied, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))))
	if !slices.Contains(w.images(t), image) || !strings.Contains(w.rbd(t, "info", "rbd/"+image), "size 1 GiB") {
		t.Fatalf("the image was touched: %v", w.images(t))
	}
	trashOfOthers(t, w, ours, theirs)
}

// copyRecord writes a volume's record of another cluster into this one, as somebody does who takes
// volumes along to a new cluster while the old one still runs.
func (w *world) copyRecord(t *testing.T, from *world, name string) *v1alpha1.CacheVolume {
	t.Helper()
	v := &v1alpha1.CacheVolume{}
	must(t, from.api.Get(t.Context(), client.ObjectKey{Name: name}, v))
	status := v.Status
	v.ObjectMeta = metav1.ObjectMeta{Name: v.Name, Finalizers: v.Finalizers}
	v.Spec.Group, v.Spec.Replicas, v.Spec.Port, v.Spec.Minor = "g1", nodes[:2], 8000, 300
	must(t, w.api.Create(t.Context(), v))
	v.Status = status
	must(t, w.api.Status().Update(t.Context(), v))
	return v
}

// trashOfOthers has one cluster empty the trash, with an image of the other one in it.
func trashOfOthers(t *testing.T, w *world, ours, theirs *driver) {
	ours.bury()
	w.rbd(t, "trash", "mv", "rbd/"+image)
	until(t, func() error { return theirs.create(t.Context(), "pvc-second") })
	for _, name := range []string{"pvc-theirs", "pvc-second"} { // when the second is gone, the pass that removed the first has ended
		until(t, func() error { return theirs.delete(t.Context(), name) })
		eventually(t, time.Minute, func() bool {
			return !slices.ContainsFunc(w.images(t), func(i string) bool { return strings.HasSuffix(i, name) })
		}, func() string { return "not purged: " + strings.Join(w.images(t), " ") })
	}
	if !slices.Contains(w.images(t), "trash:"+image) {
		t.Errorf("the other cluster has purged it; left: %v", w.images(t))
	}
	d := leader(t, time.Minute, w.launch(t, "c", soon...))
	// Its own cluster leaves it there too: it was not the driver that moved it.
	if out, err := w.orphans(); err != nil || !strings.Contains(out, "/rbd/"+image+" ") || !strings.Contains(out, "rbd trash restore") {
		t.Errorf("orphans: %v\n%s", err, out)
	}
	for line := range strings.Lines(w.rbd(t, "trash", "ls", "rbd")) {
		if id, name, _ := strings.Cut(strings.TrimSpace(line), " "); strings.TrimSpace(name) == image {
			w.rbd(t, "trash", "restore", "rbd/"+id)
		}
	}
	until(t, func() error { return d.delete(context.Background(), static) }) // and its record
}
