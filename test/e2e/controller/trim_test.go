//go:build e2e

package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
)

// firstBite and lastBite are what the played filesystem discards in its two halves.
const firstBite, lastBite = 1 << 20, 2 << 20

// trimScenes are trims of a volume that no node has: to their end, and ended by a pod that wants the volume.
func trimScenes() []scene {
	var generation int64 // of the replicas that are there before the trim
	prepare := func(t *testing.T, w *world, goesOn bool) {
		v := w.one(t)
		generation = v.Spec.LinkGeneration
		w.filesystem(t, third(v), goesOn)
		w.persistentVolume(t, crashed)
	}
	var trimmer string
	var holder *mapped
	detached := func(t *testing.T, w *world, d *driver) {
		until(t, func() error { return d.create(t.Context(), crashed) })
		until(t, func() error { return d.publish(t.Context(), crashed, w.one(t).Spec.Replicas[0]) })
		until(t, func() error { return d.unpublish(t.Context(), crashed, "") })
	}
	trimmed := func(t *testing.T, w *world) {
		v, f := w.one(t), w.trimOf(t)
		if s := v.Status; s.AttachedNode != "" || s.Uncached != nil || s.FlushEpoch != 0 || s.Authority != v1alpha1.AuthorityCeph ||
			!slices.Equal(s.Outdated, v.Spec.Replicas) {
			t.Errorf("the record of a volume that was trimmed: %+v", s)
		}
		if len(f.Status.Volumes) != 1 || f.Status.Volumes[0].TrimmedBytes == nil || *f.Status.Volumes[0].TrimmedBytes != firstBite+lastBite {
			t.Errorf("the trim says %+v", f.Status.Volumes)
		}
		w.noneUncached(t)
	}
	// What the copies hold is older than the image now. Whoever gets the volume next gets new ones.
	cachedAgain := func(t *testing.T, w *world, d *driver) {
		until(t, func() error { return d.publish(t.Context(), crashed, w.one(t).Spec.Replicas[0]) })
		v := w.one(t)
		w.attached(t, v.Spec.Replicas[0])
		if v.Spec.LinkGeneration == generation || len(v.Status.Outdated) > 0 {
			t.Errorf("the copies of before the trim are used: %+v", v)
		}
		w.endTrim(t, d)
	}
	beingTrimmed := func(t *testing.T, w *world, d *driver) {
		detached(t, w, d)
		prepare(t, w, true)
		w.askTrim(t)
		must(t, d.asked(t.Context(), func() (bool, error) {
			f := w.trimOf(t)
			return len(f.Status.Volumes) > 0 && f.Status.Volumes[0].TrimmedBytes != nil, nil
		}))
	}
	publish := func(t *testing.T, w *world, d *driver) error {
		return d.publish(t.Context(), crashed, w.one(t).Spec.Replicas[0])
	}
	taken := func(t *testing.T, w *world) {
		v := w.one(t)
		if s := v.Status; s.AttachedNode != v.Spec.Replicas[0] || s.Authority != v1alpha1.AuthorityCache || s.FlushEpoch != 0 ||
			s.Uncached != nil || len(s.Outdated) > 0 || v.Spec.LinkGeneration == generation {
			t.Errorf("a pod has it, and the record says %+v %+v", v.Spec, v.Status)
		}
	}
	clean := func(t *testing.T, w *world, d *driver) {
		must(t, d.asked(t.Context(), func() (bool, error) { return w.trimOf(t).Status.Phase == v1alpha1.FlushFailed, nil }))
		w.endTrim(t, d)
	}
	return []scene{
		{
			name: "trim of a volume that no node has", clean: cachedAgain, check: trimmed,
			points:  []string{"trim/attached", "trim/noted", "trim/connected", "trim/trimmed", "trim/stopped"},
			prepare: func(t *testing.T, w *world, d *driver) { detached(t, w, d); prepare(t, w, false) },
			call:    func(t *testing.T, w *world, d *driver) error { return w.trim(t, d) },
		},
		{
			name: "trim of a dirty volume", clean: cachedAgain, check: trimmed,
			points:  []string{"flush/attached", "flush/stopped", "trim/attached"},
			prepare: func(t *testing.T, w *world, d *driver) { leaveDirty(t, w, d); prepare(t, w, false) },
			call:    func(t *testing.T, w *world, d *driver) error { return w.trim(t, d) },
		},
		{
			name:   "ControllerPublishVolume of a volume that is being trimmed",
			points: []string{"trim/stopped", "unpublish/detached"}, prepare: beingTrimmed, call: publish, clean: clean,
			check: func(t *testing.T, w *world) {
				taken(t, w)
				w.attached(t, w.one(t).Spec.Replicas[0])
				w.noneUncached(t)
			},
		},
		{
			// Its discards are still under way, and would hit what the pod writes.
			name:   "ControllerPublishVolume of a volume whose host is cut off while it trims",
			points: []string{"unpublish/fence_recorded", "unpublish/fenced", "unpublish/detached"}, call: publish,
			prepare: func(t *testing.T, w *world, d *driver) {
				beingTrimmed(t, w, d)
				v := w.one(t)
				trimmer, holder = v.Status.AttachedNode, w.open(t, v.Spec.Image)
				must(t, errors.Join(holder.write(), holder.discard()))
				w.fleet.Hosts[trimmer].Stop()
				w.kubectl(t, "", "taint", "node", trimmer, "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute")
			},
			check: func(t *testing.T, w *world) {
				taken(t, w)
				if err := holder.discard(); !errors.Is(err, syscall.ESHUTDOWN) || !w.blocklisted(t, holder.address) {
					t.Errorf("the host that was cut off discards: %v", err)
				}
			},
			clean: func(t *testing.T, w *world, d *driver) {
				holder.close()
				w.fleet.Hosts[trimmer].Restart(t)
				w.fleet.Hosts[trimmer].Forget()
				w.kubectl(t, "", "taint", "node", trimmer, "node.kubernetes.io/out-of-service-")
				clean(t, w, d)
				w.ceph.Ceph(t, "osd", "blocklist", "rm", holder.address)
			},
		},
	}
}

// filesystem lets a host find a filesystem on what it trims, of two halves. One that goes on never comes to an end. Each
// time the record must say that this host has the volume without a cache, and that both copies are old.
func (w *world) filesystem(t *testing.T, node string, goesOn bool) {
	t.Helper()
	host := w.fleet.Hosts[node]
	host.OnTrim(func(r escache.TrimRequest) (escache.TrimResponse, error) {
		v := &v1alpha1.CacheVolume{}
		err := w.api.Get(context.Background(), client.ObjectKey{Name: crashed}, v)
		if s := v.Status; err != nil || s.AttachedNode != node || s.Epoch != r.Epoch || !s.UncachedAttached() ||
			s.Authority != v1alpha1.AuthorityCeph || !slices.Equal(s.Outdated, v.Spec.Replicas) {
			t.Errorf("%s trims it in epoch %d, and the record says %+v, %v", node, r.Epoch, s, err)
		}
		if r.StartByte == 0 || goesOn {
			return escache.TrimResponse{NextByte: gib / 2, TrimmedBytes: firstBite}, nil
		}
		return escache.TrimResponse{Done: true, NextByte: gib, TrimmedBytes: lastBite}, nil
	})
	t.Cleanup(func() { host.OnTrim(nil) })
}

// persistentVolume makes the PersistentVolume of a volume, as external-provisioner does for one that has a claim.
func (w *world) persistentVolume(t *testing.T, id string) {
	t.Helper()
	must(t, w.api.Create(t.Context(), &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: id},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: v1alpha1.DriverName, VolumeHandle: id, FSType: "ext4"},
			},
		},
	}))
}

// askTrim asks for the trim of the volume, under a fixed name.
func (w *world) askTrim(t *testing.T) {
	t.Helper()
	f := &v1alpha1.CacheFlush{ObjectMeta: metav1.ObjectMeta{Name: "crash"}}
	f.Spec = v1alpha1.CacheFlushSpec{Volume: crashed, Mode: v1alpha1.FlushModeTrim}
	if err := w.api.Create(t.Context(), f); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
}

// trim has the volume trimmed, and waits until it is. Repeated, it goes on where it was.
func (w *world) trim(t *testing.T, d *driver) error {
	w.askTrim(t)
	return d.asked(t.Context(), func() (bool, error) {
		f := w.trimOf(t)
		if f.Status.Phase == v1alpha1.FlushFailed {
			return true, status.Error(codes.FailedPrecondition, fmt.Sprintf("%+v", f.Status))
		}
		return f.Status.Phase == v1alpha1.FlushComplete, nil
	})
}

func (w *world) trimOf(t *testing.T) *v1alpha1.CacheFlush {
	t.Helper()
	f := &v1alpha1.CacheFlush{}
	must(t, w.api.Get(t.Context(), client.ObjectKey{Name: "crash"}, f))
	return f
}

// endTrim removes the trim, the volume, and what stands for it in Kubernetes.
func (w *world) endTrim(t *testing.T, d *driver) {
	t.Helper()
	f := &v1alpha1.CacheFlush{ObjectMeta: metav1.ObjectMeta{Name: "crash"}}
	must(t, w.api.Delete(t.Context(), f))
	must(t, d.asked(t.Context(), func() (bool, error) {
		err := w.api.Get(t.Context(), client.ObjectKeyFromObject(f), f)
		return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	}))
	must(t, w.api.Delete(t.Context(), &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: crashed}}))
	until(t, func() error { return d.unpublish(t.Context(), crashed, "") })
	until(t, func() error { return d.delete(t.Context(), crashed) })
}

// noneUncached fails if a host has the image mapped without a cache.
func (w *world) noneUncached(t *testing.T) {
	t.Helper()
	for name, host := range w.fleet.Hosts {
		if s := host.Status(imageRef()); s.Uncached {
			t.Errorf("%s still has the image without a cache: %+v", name, s)
		}
	}
}
