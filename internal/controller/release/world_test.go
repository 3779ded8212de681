package release_test

import (
	"context"
	"testing"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/test/csitest"
)

// world is the whole service, and volumes that are given up.
type world struct{ *csitest.World }

func newWorld(t *testing.T) *world {
	t.Helper()
	return &world{csitest.New(t)}
}

// releasing is the record of a volume whose release has begun.
func (w *world) releasing(id string) *v1alpha1.CacheVolume {
	w.T.Helper()
	w.AskRelease(id, true)
	v := w.Volume(id)
	v.Status.Phase = v1alpha1.VolumeReleasing
	csitest.Must(w.T, w.API.Status().Update(context.Background(), v))
	return w.Volume(id)
}
