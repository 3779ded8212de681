package modification_test

import (
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/internal/placement"
	"github.com/escache/escache-csi/test/csitest"
)

const (
	small = 64 << 20 // of createRequest
	large = 256 << 20
)

// wanted makes a volume that was attached once and is to get the large cache.
func (w *world) wanted(id string) (v *v1alpha1.CacheVolume) {
	w.T.Helper()
	w.UsedBefore(id)
	csitest.Must(w.T, w.Modify(id, "cacheSize", "256Mi"))
	return w.Volume(id)
}

// hasCache fails unless the volume is attached, nothing more is to change, and both copies have the size.
func (w *world) hasCache(id string, bytes int64) {
	w.T.Helper()
	v := w.Volume(id)
	if v.Spec.CacheBytes != bytes || v.Spec.WantedCacheBytes != 0 || v.Status.Summary.Cache != v1alpha1.HumanBytes(bytes) ||
		w.resized(id) != "" || v.Status.Authority != v1alpha1.AuthorityCache || len(v.Status.Outdated) > 0 {
		w.T.Errorf("record %+v, %+v", v.Spec, v.Status)
	}
	for _, node := range v.Spec.Replicas {
		if got := w.CacheSizes(v)[node]; got != bytes {
			w.T.Errorf("the copy on %s has %d bytes, not %d", node, got, bytes)
		}
	}
	if note := w.Images.Notes[volumes.ImageOf(v)]; note.Spec.CacheBytes != bytes {
		w.T.Errorf("the image says %d bytes", note.Spec.CacheBytes)
	}
	if used := w.allocated(); used != 2*bytes {
		w.T.Errorf("%d bytes are counted as used, not %d", used, 2*bytes)
	}
}

// resized is the reason of the condition; "" without one.
func (w *world) resized(id string) string {
	if c := meta.FindStatusCondition(w.Volume(id).Status.Conditions, v1alpha1.ConditionCacheResized); c != nil {
		return c.Reason
	}
	return ""
}

// allocated is what placement counts as used in the group.
func (w *world) allocated() int64 {
	at := slices.IndexFunc(w.Book.Usage(), func(u placement.Usage) bool { return u.Group == "g1" })
	return w.Book.Usage()[at].AllocatedBytes
}

func (w *world) report(id string) (waits bool) {
	w.T.Helper()
	_, waits, err := w.Locked.ReportResize(w.T.Context(), id)
	csitest.Must(w.T, err)
	return waits
}

func TestTheCacheGetsItsSizeWhenTheVolumeIsAttached(t *testing.T) {
	for name, tc := range map[string]struct {
		size  string
		bytes int64
	}{
		"larger": {"256Mi", large}, "smaller": {"16Mi", 16 << 20}, "a percentage with bounds": {"10%,min=32Mi,max=128Mi", 104 << 20},
		"a percentage at its minimum": {"1%,min=96Mi", 96 << 20}, "rounded up": {"250Mi", 252 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			before, node, _ := w.UsedBefore("pvc-1")
			for range 2 { // the second time it wants that already
				csitest.Must(t, w.Modify("pvc-1", "cacheSize", tc.size))
				v := w.Volume("pvc-1")
				if v.Spec.CacheBytes != small || v.Spec.WantedCacheBytes != tc.bytes || v.Spec.Modifications != 1 {
					t.Errorf("record %+v", v.Spec)
				}
				if used := w.allocated(); used != 2*max(small, tc.bytes) {
					t.Errorf("%d bytes are counted as used", used)
				}
				w.Restart()
			}
			if sizes := w.CacheSizes(before); len(sizes) != 2 || sizes[node] != small {
				t.Errorf("hosts were changed: %v", sizes)
			}
			_, err := w.Publish("pvc-1", node)
			csitest.Must(t, err)
			w.hasCache("pvc-1", tc.bytes)
			if v := w.Volume("pvc-1"); v.Spec.LinkGeneration != before.Spec.LinkGeneration+1 || len(w.CacheSizes(v)) != 2 {
				t.Errorf("record %+v, copies %v", v.Spec, w.CacheSizes(v))
			}
		})
	}
}

func TestAVolumeThatWasNeverAttachedBeginsWithTheNewSize(t *testing.T) {
	w := newWorld(t)
	v := w.Create("pvc-1")
	csitest.Must(t, w.Modify("pvc-1", "cacheSize", "256Mi"))
	_, err := w.Publish("pvc-1", csitest.Other(v))
	csitest.Must(t, err)
	w.hasCache("pvc-1", large)
	_, err = w.Service.CreateVolume(t.Context(), csitest.CreateRequest("pvc-1")) // external-provisioner has not got the first answer
	csitest.Must(t, err)
}

func TestASizeThatCannotBeIsRefusedAndChangesNothing(t *testing.T) {
	for name, tc := range map[string]struct {
		size    string
		prepare func(*world)
		code    codes.Code
		says    []string
	}{
		"too small": {"8Mi", nil, codes.InvalidArgument, []string{"16Mi to 64Ti"}},
		"too large": {"65Ti", nil, codes.InvalidArgument, []string{"16Mi to 64Ti"}},
		"no size":   {"much", nil, codes.InvalidArgument, []string{"cacheSize"}},
		"no room":   {"200Gi", nil, codes.InvalidArgument, []string{"pvc-1", "keeps its cache of 64Mi", "200Gi", "n1 too full"}},
		"no memory on two hosts": {"256Mi", func(w *world) {
			w.Host("n1").SetConnectable(large - 1)
			w.Host("n2").SetConnectable(large - 1)
			w.Poll()
		}, codes.InvalidArgument, []string{"without memory"}},
		"two hosts are away": {"256Mi", func(w *world) {
			w.Host("n1").Stop()
			w.Host("n2").Stop()
			w.Poll()
		}, codes.InvalidArgument, []string{"n1 not ready"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			before := w.Create("pvc-1")
			if tc.prepare != nil {
				tc.prepare(w)
			}
			csitest.Wants(t, w.Modify("pvc-1", "cacheSize", tc.size, "maxDirtyAge", "30s"), tc.code, tc.says...)
			if v := w.Volume("pvc-1"); v.ResourceVersion != before.ResourceVersion || w.allocated() != 2*small {
				t.Errorf("record %+v, %d bytes are counted", v, w.allocated())
			}
		})
	}
}

// TestRoomForALargerCacheIsKept: what the cache is to get is counted for others from then on.
func TestRoomForALargerCacheIsKept(t *testing.T) {
	w := newWorld(t)
	w.Create("pvc-1")
	csitest.Must(t, w.Modify("pvc-1", "cacheSize", "99Gi"))
	r := csitest.CreateRequest("pvc-2")
	r.Parameters["cacheSize"] = "2Gi"
	_, err := w.Service.CreateVolume(t.Context(), r)
	csitest.Wants(t, err, codes.ResourceExhausted, "too full")
	csitest.Must(t, w.Modify("pvc-1", "cacheSize", "64Mi"))
	_, err = w.Service.CreateVolume(t.Context(), r)
	csitest.Must(t, err)
}

func TestAnAttachedVolumeKeepsItsCacheUntilItIsAttachedAgain(t *testing.T) {
	w := newWorld(t)
	v, holder, partner := w.UsedBefore("pvc-1")
	_, err := w.Publish("pvc-1", holder)
	csitest.Must(t, err)
	w.Host(holder).Stage(csitest.Ref(v), csitest.OldClient, 2, escache.ModeWriteback)
	csitest.Must(t, w.Modify("pvc-1", "cacheSize", "256Mi"))
	if !w.report("pvc-1") || w.resized("pvc-1") != v1alpha1.ReasonResizeAttached ||
		w.Volume("pvc-1").Status.Summary.Cache != "64Mi (256Mi wanted)" {
		t.Errorf("status %+v", w.Volume("pvc-1").Status)
	}
	if w.report("pvc-1") {
		t.Error("it says again what it has said")
	}
	for range 2 {
		_, err = w.Publish("pvc-1", holder)
		csitest.Must(t, err)
	}
	if sizes := w.CacheSizes(v); sizes[holder] != small || sizes[partner] != small || w.Volume("pvc-1").Spec.CacheBytes != small {
		t.Errorf("the cache was changed in use: %v", sizes)
	}
	w.Host(holder).Release(csitest.Ref(v))
	csitest.Must(t, w.Unpublish("pvc-1", holder))
	if !w.report("pvc-1") || w.resized("pvc-1") != v1alpha1.ReasonResizeDetached {
		t.Errorf("it waits for %q", w.resized("pvc-1"))
	}
	_, err = w.Publish("pvc-1", holder)
	csitest.Must(t, err)
	w.hasCache("pvc-1", large)
}

// leftDirty makes a volume with dirty bytes on both hosts that no node has, and that is to get the large cache.
func (w *world) leftDirty(id string) (v *v1alpha1.CacheVolume, holder string) {
	w.T.Helper()
	v, holder, partner := w.UsedBefore(id)
	_, err := w.Publish(id, holder)
	csitest.Must(w.T, err)
	w.Host(holder).Stage(csitest.Ref(v), csitest.OldClient, 2, escache.ModeWriteback)
	w.Host(holder).Write(csitest.Ref(v), csitest.DirtyBytes)
	w.Host(partner).Write(csitest.Ref(v), csitest.DirtyBytes)
	w.Host(holder).Release(csitest.Ref(v))
	csitest.Must(w.T, w.Unpublish(id, holder))
	csitest.Must(w.T, w.Modify(id, "cacheSize", "256Mi"))
	return w.Volume(id), holder
}

// TestADirtyCacheIsTakenOverAsItIs: nothing that Ceph lacks is dropped. The change waits for the attachment
// after the next one.
func TestADirtyCacheIsTakenOverAsItIs(t *testing.T) {
	w := newWorld(t)
	v, holder := w.leftDirty("pvc-1")
	w.report("pvc-1")
	if w.resized("pvc-1") != v1alpha1.ReasonResizeDirty {
		t.Errorf("it waits for %q", w.resized("pvc-1"))
	}
	_, err := w.Publish("pvc-1", holder)
	csitest.Must(t, err)
	for _, node := range v.Spec.Replicas {
		if !w.Holds(node, v) || w.CacheSizes(v)[node] != small {
			t.Errorf("the copy on %s was changed: %v", node, w.CacheSizes(v))
		}
		w.Host(node).Write(csitest.Ref(v), 0)
	}
	csitest.Must(t, w.Unpublish("pvc-1", holder))
	_, err = w.Publish("pvc-1", holder)
	csitest.Must(t, err)
	w.hasCache("pvc-1", large)
}

// TestADirtyCacheIsWrittenBackForANodeWithoutACopy: after that everything is in Ceph, so the change is made.
func TestADirtyCacheIsWrittenBackForANodeWithoutACopy(t *testing.T) {
	w := newWorld(t)
	v, _ := w.leftDirty("pvc-1")
	_, err := w.Publish("pvc-1", csitest.Other(v))
	csitest.Must(t, err)
	w.hasCache("pvc-1", large)
}

// TestACopyOfTheFormerSizeIsRemovedWhenItsHostIsBack: until then nothing can be linked to it.
func TestACopyOfTheFormerSizeIsRemovedWhenItsHostIsBack(t *testing.T) {
	w := newWorld(t)
	v := w.wanted("pvc-1")
	node, away := v.Spec.Replicas[0], v.Spec.Replicas[1]
	w.Host(away).Stop()
	w.Poll()
	_, err := w.Publish("pvc-1", node)
	csitest.Must(t, err)
	w.hasCache("pvc-1", large)
	now := w.Volume("pvc-1")
	if now.Spec.HasReplica(away) || now.Spec.LinkGeneration == v.Spec.LinkGeneration {
		t.Errorf("record %+v", now.Spec)
	}
	g := &v1alpha1.NodeGroup{}
	csitest.Must(t, w.API.Get(t.Context(), client.ObjectKey{Name: "g1"}, g))
	if s := g.Status.StaleReplicas; len(s) != 1 || s[0].Node != away || s[0].CacheBytes != small {
		t.Errorf("stale replicas %+v", s)
	}
	w.Host(away).Restart(t)
	if w.CacheSizes(v)[away] != small {
		t.Fatalf("copies %v", w.CacheSizes(v))
	}
	w.Poll()
	if sizes := w.CacheSizes(v); len(sizes) != 2 || sizes[away] != 0 {
		t.Errorf("copies %v", sizes)
	}
	csitest.Must(t, w.Unpublish("pvc-1", node))
	_, err = w.Publish("pvc-1", away)
	csitest.Must(t, err)
	w.hasCache("pvc-1", large)
}

// TestARepairKeepsTheSizeThatTheCacheHas: the holder's copy cannot change in use.
func TestARepairKeepsTheSizeThatTheCacheHas(t *testing.T) {
	w := newWorld(t)
	v, holder, lost := w.UsedBefore("pvc-1")
	_, err := w.Publish("pvc-1", holder)
	csitest.Must(t, err)
	csitest.Must(t, w.Modify("pvc-1", "cacheSize", "256Mi"))
	spare := csitest.Other(v)
	v = w.Volume("pvc-1")
	v.Status.Outdated = []string{lost}
	v.Status.Repair = &v1alpha1.ReplicaRepair{Epoch: v.Status.Epoch, Lost: lost}
	csitest.Must(t, w.API.Status().Update(t.Context(), v))
	csitest.Must(t, w.Locked.Substitute(t.Context(), "pvc-1", v.Status.Epoch, lost, spare, volumes.Elsewhere))
	now := w.Volume("pvc-1")
	if !now.Spec.HasReplica(spare) || !now.Spec.HasReplica(holder) || now.Spec.CacheBytes != small || now.Spec.WantedCacheBytes != large {
		t.Errorf("record %+v", now.Spec)
	}
	if used := w.allocated(); used != 2*large {
		t.Errorf("%d bytes are counted as used", used)
	}
}
