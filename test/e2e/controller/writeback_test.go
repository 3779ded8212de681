//go:build e2e

package controller

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// writeBackScenes are about a volume that csi-controller has written back for nobody.
func writeBackScenes() []scene {
	var holder string
	return []scene{{
		name: "ControllerUnpublishVolume of a pod that was gone before it had staged what is being written back", points: []string{"unpublish/given_back"},
		prepare: func(t *testing.T, w *world, d *driver) {
			leaveDirty(t, w, d)
			w.flushAtMost(1)
			if err := d.publish(t.Context(), crashed, third(w.one(t))); status.Code(err) != codes.Aborted {
				t.Errorf("the node without a copy gets it: %v", err)
			}
			holder = w.one(t).Status.AttachedNode
			until(t, func() error { return d.publish(t.Context(), crashed, holder) })
		},
		call: func(t *testing.T, _ *world, d *driver) error { return d.unpublish(t.Context(), crashed, holder) },
		check: func(t *testing.T, w *world) {
			if s := w.one(t).Status; !s.FlushAttached() || s.AttachedNode != holder {
				t.Errorf("nobody writes it back: %+v", s)
			}
		},
		clean: func(t *testing.T, w *world, d *driver) {
			w.flushAtMost(0)
			until(t, func() error { return d.delete(t.Context(), crashed) })
		},
	}}
}

// flushAtMost limits what a host writes back in a call, in bytes. 0: no limit.
func (w *world) flushAtMost(bytes int64) {
	for _, host := range w.fleet.Hosts {
		host.FlushAtMost(bytes)
	}
}
