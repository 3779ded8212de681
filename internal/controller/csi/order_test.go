package csi_test

import (
	"context"
	"testing"

	"google.golang.org/grpc/codes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/test/csitest"
)

func TestTheOrderOfWriteBackIsOnRecordAndIsChangedByAClass(t *testing.T) {
	w := newWorld(t)
	w.Create("a") // of writecache
	r := csitest.CreateRequest("b")
	r.Parameters["cacheEngine"], r.Parameters["writeBackOrder"] = "log", "strict"
	for range 2 { // a repeated call finds the same volume
		_, err := w.Service.CreateVolume(t.Context(), r)
		csitest.Must(t, err)
	}
	recorded := func(id string, want v1alpha1.WriteBackOrder, changes int64) {
		t.Helper()
		if s := w.Volume(id).Spec; s.CacheOptions.WriteBackOrder != want || s.Modifications != changes {
			t.Errorf("%s has order %q on record after %d changes, not %q after %d", id, s.CacheOptions.WriteBackOrder, s.Modifications,
				want, changes)
		}
	}
	recorded("b", v1alpha1.WriteBackOrderStrict, 0)
	csitest.Must(t, w.Modify("b", "maxDirtyAge", "30s"))
	recorded("b", v1alpha1.WriteBackOrderStrict, 1)
	csitest.Must(t, w.Modify("b", "writeBackOrder", "merged"))
	recorded("b", "", 2)
	csitest.Must(t, w.Modify("b", "writeBackOrder", "strict"))
	recorded("b", v1alpha1.WriteBackOrderStrict, 3)

	csitest.Wants(t, w.Modify("a", "writeBackOrder", "strict"), codes.InvalidArgument, "needs cacheEngine log", "a")
	recorded("a", "", 0)
	csitest.Must(t, w.Modify("a", "writeBackOrder", "merged")) // it has no other
	recorded("a", "", 0)
}

// pruning is an API server whose CRD does not have the order.
type pruning struct{ client.Client }

func (p pruning) Create(ctx context.Context, object client.Object, opts ...client.CreateOption) error {
	return p.Client.Create(ctx, pruned(object), opts...)
}

func (p pruning) Update(ctx context.Context, object client.Object, opts ...client.UpdateOption) error {
	return p.Client.Update(ctx, pruned(object), opts...)
}

func pruned(object client.Object) client.Object {
	if v, ok := object.(*v1alpha1.CacheVolume); ok {
		v.Spec.CacheOptions.WriteBackOrder = ""
	}
	return object
}

// Otherwise the user would take it for strict.
func TestWithAnOlderCRDNoVolumeIsSilentlyMerged(t *testing.T) {
	w := newWorld(t)
	r := csitest.CreateRequest("b")
	r.Parameters["cacheEngine"] = "log"
	_, err := w.Service.CreateVolume(t.Context(), r)
	csitest.Must(t, err)
	w.Cached = pruning{w.API}
	w.Restart()
	csitest.Wants(t, w.Modify("b", "writeBackOrder", "strict"), codes.FailedPrecondition, "writeBackOrder", "apply the chart's CRDs")

	r = csitest.CreateRequest("c")
	r.Parameters["cacheEngine"], r.Parameters["writeBackOrder"] = "log", "strict"
	_, err = w.Service.CreateVolume(t.Context(), r)
	csitest.Wants(t, err, codes.FailedPrecondition, "writeBackOrder", "apply the chart's CRDs")
}
