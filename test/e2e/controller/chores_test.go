//go:build e2e

package controller

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
)

// asked waits until the leader has done what an object asks for. It returns an error if the leader dies before, as a
// call does.
func (d *driver) asked(ctx context.Context, done func() (bool, error)) error {
	for end := time.Now().Add(time.Minute); d.alive() && time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		ended, err := done()
		if ended || err != nil {
			return err
		}
	}
	return status.Errorf(codes.Unavailable, "not done: leader alive %v, %v", d.alive(), ctx.Err())
}

// inUse is a volume that is attached, and whose host has the device.
func inUse(t *testing.T, w *world, d *driver) {
	until(t, func() error { return d.create(t.Context(), crashed) })
	node := w.one(t).Spec.Replicas[0]
	until(t, func() error { return d.publish(t.Context(), crashed, node) })
	w.fleet.Hosts[node].Stage(imageRef(), "127.0.0.1:0/4712", w.one(t).Status.Epoch, escache.ModeWriteback)
}

func putAway(t *testing.T, w *world, d *driver) {
	w.fleet.Hosts[w.one(t).Spec.Replicas[0]].Release(imageRef())
	until(t, func() error { return d.unpublish(t.Context(), crashed, "") })
	until(t, func() error { return d.delete(t.Context(), crashed) })
}

// choreScenes are what the leader does because an object asks for it.
func choreScenes() []scene {
	return []scene{
		{
			name: "drain of a volume in use, and its end", prepare: inUse, clean: putAway,
			call: func(t *testing.T, w *world, d *driver) error { return w.drainAndEnd(t.Context(), d) },
			check: func(t *testing.T, w *world) {
				v := w.one(t)
				if host := w.fleet.Hosts[v.Spec.Replicas[0]]; v.Status.Authority != v1alpha1.AuthorityCache || len(v.Status.WriteThrough) > 0 ||
					host.Status(imageRef()).Mode != escache.ModeWriteback {
					t.Errorf("the cache is in %s; status %+v", host.Status(imageRef()).Mode, v.Status)
				}
			},
		},
		{
			name: "ControllerModifyVolume of a volume in use", prepare: inUse, clean: putAway,
			call: func(t *testing.T, w *world, d *driver) error {
				if err := d.modify(t.Context(), crashed, map[string]string{"cacheMode": "writethrough"}); err != nil {
					return err
				}
				return d.asked(t.Context(), func() (bool, error) { return !w.one(t).ModificationPending(), nil })
			},
			check: func(t *testing.T, w *world) {
				if s := w.fleet.Hosts[w.one(t).Spec.Replicas[0]].Status(imageRef()); s.Mode != escache.ModeWritethrough {
					t.Errorf("the cache is in %s", s.Mode)
				}
			},
		},
		{
			name: "discard of a cache whose copies are lost",
			prepare: func(t *testing.T, w *world, d *driver) {
				leaveDirty(t, w, d)
				for _, node := range w.one(t).Spec.Replicas {
					w.fleet.Hosts[node].Stop()
				}
			},
			call: func(t *testing.T, w *world, d *driver) error { return w.discard(t, d) },
			check: func(t *testing.T, w *world) {
				v := w.one(t)
				if v.Status.Authority != v1alpha1.AuthorityCeph || v.Status.Discarded == nil || len(v.Status.Outdated) != 2 {
					t.Errorf("status %+v", v.Status)
				}
			},
			clean: func(t *testing.T, w *world, d *driver) {
				for _, node := range w.one(t).Spec.Replicas {
					w.fleet.Hosts[node].Restart(t)
				}
				must(t, w.api.DeleteAllOf(t.Context(), &v1alpha1.CacheDiscard{}))
				until(t, func() error { return d.delete(t.Context(), crashed) })
			},
		},
	}
}

// drainAndEnd has the volume drained, and ends that once it is. Repeated, it goes on where it was.
func (w *world) drainAndEnd(ctx context.Context, d *driver) error {
	f := &v1alpha1.CacheFlush{ObjectMeta: metav1.ObjectMeta{Name: "crash"}}
	f.Spec = v1alpha1.CacheFlushSpec{Volume: crashed, Mode: v1alpha1.FlushModeDrain}
	if err := w.api.Create(ctx, f.DeepCopy()); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	return d.asked(ctx, func() (bool, error) {
		err := w.api.Get(ctx, client.ObjectKeyFromObject(f), f)
		if err == nil && f.DeletionTimestamp.IsZero() && f.Status.Phase == v1alpha1.FlushDrained {
			err = w.api.Delete(ctx, f.DeepCopy())
		}
		return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	})
}

// discard accepts the loss of a volume's cache, under a fixed name.
func (w *world) discard(t *testing.T, d *driver) error {
	request := &v1alpha1.CacheDiscard{ObjectMeta: metav1.ObjectMeta{Name: "crash"}}
	request.Spec = v1alpha1.CacheDiscardSpec{Volume: crashed, Confirm: crashed, Epoch: w.one(t).Status.Epoch, RequestedBy: "a test"}
	if err := w.api.Create(t.Context(), request.DeepCopy()); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	return d.asked(t.Context(), func() (bool, error) {
		err := w.api.Get(t.Context(), client.ObjectKeyFromObject(request), request)
		if request.Status.Phase == v1alpha1.DiscardRefused {
			return true, status.Error(codes.FailedPrecondition, request.Status.Message)
		}
		return request.Status.Phase == v1alpha1.DiscardDone, err
	})
}
