package csi_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/test/csitest"
)

func TestCreateWritesRecordImageAndPlace(t *testing.T) {
	w := newWorld(t)
	r := csitest.CreateRequest("pvc-1")
	r.Parameters["csi.storage.k8s.io/pvc/name"], r.Parameters["csi.storage.k8s.io/pvc/namespace"] = "claim", "space"
	out, err := w.Service.CreateVolume(context.Background(), r)
	csitest.Must(t, err)
	if out.GetVolume().GetVolumeId() != "pvc-1" || out.GetVolume().GetCapacityBytes() != csitest.GiB {
		t.Errorf("got %v", out.GetVolume())
	}
	if g := out.GetVolume().GetAccessibleTopology()[0].GetSegments()[v1alpha1.TopologyKey]; g != "g1" {
		t.Errorf("topology %q", g)
	}
	v := w.Volume("pvc-1")
	if v.Status.Phase != v1alpha1.VolumeReady || v.Spec.CacheBytes != 64<<20 || v.Spec.Port != 7800 || v.Spec.Minor != 100 {
		t.Errorf("record %+v", v)
	}
	if v.Annotations[v1alpha1.AnnotationClaim] != "space/claim" || !slices.Contains(v.Finalizers, v1alpha1.Finalizer) {
		t.Errorf("metadata %+v", v.ObjectMeta)
	}
	if size := w.Images.Sizes[volumes.ImageRef{ClusterID: "ceph", Pool: "rbd", Image: "escache-pvc-1"}]; size != csitest.GiB {
		t.Errorf("image of %d bytes", size)
	}
	for name, h := range w.Fleet.Hosts {
		if h.Calls() > 0 {
			t.Errorf("host %s was asked %d times", name, h.Calls())
		}
	}
}

func TestRepeatedCreateFindsTheFirst(t *testing.T) {
	w := newWorld(t)
	first := w.Create("pvc-1")
	w.Restart()
	second := w.Create("pvc-1")
	if first.ResourceVersion != second.ResourceVersion || w.Images.Made != 1 {
		t.Errorf("the repeated call changed something: %+v, %d images", second, w.Images.Made)
	}
}

// lagging is a cache that has not heard yet that a volume is gone.
type lagging struct {
	client.Client

	gone string
}

func (l lagging) Get(ctx context.Context, key client.ObjectKey, into client.Object, opts ...client.GetOption) error {
	if _, volume := into.(*v1alpha1.CacheVolume); volume && key.Name == l.gone {
		return nil
	}
	return l.Client.Get(ctx, key, into, opts...)
}

func TestCreateOfANameThatWasFreeJustNow(t *testing.T) {
	w := newWorld(t)
	w.Cached = lagging{w.API, "pvc-1"}
	w.Restart()
	if v := w.Create("pvc-1"); v.Status.Phase != v1alpha1.VolumeReady {
		t.Errorf("record %+v", v)
	}
}

func TestCreateWithOtherParametersIsRefused(t *testing.T) {
	for name, change := range map[string]func(*csi.CreateVolumeRequest){
		"size":     func(r *csi.CreateVolumeRequest) { r.CapacityRange.RequiredBytes = 2 * csitest.GiB },
		"pool":     func(r *csi.CreateVolumeRequest) { r.Parameters["pool"] = "fast" },
		"cluster":  func(r *csi.CreateVolumeRequest) { r.Parameters["clusterID"] = "other" },
		"cache":    func(r *csi.CreateVolumeRequest) { r.Parameters["cacheSize"] = "128Mi" },
		"mode":     func(r *csi.CreateVolumeRequest) { r.Parameters["cacheMode"] = "writethrough" },
		"engine":   func(r *csi.CreateVolumeRequest) { r.Parameters["cacheEngine"] = "log" },
		"features": func(r *csi.CreateVolumeRequest) { r.Parameters["imageFeatures"] = "layering,exclusive-lock" },
		"group":    func(r *csi.CreateVolumeRequest) { r.Parameters["nodeGroups"] = "g2" },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.Create("pvc-1")
			r := csitest.CreateRequest("pvc-1")
			change(r)
			_, err := w.Service.CreateVolume(context.Background(), r)
			csitest.Wants(t, err, codes.AlreadyExists, "pvc-1")
		})
	}
}

func TestCreateThatCannotSucceedLeavesNothing(t *testing.T) {
	w := newWorld(t)
	r := csitest.CreateRequest("pvc-1")
	r.Parameters["pool"] = "absent"
	_, err := w.Service.CreateVolume(context.Background(), r)
	csitest.Wants(t, err, codes.InvalidArgument, "absent")
	w.Empty()
}

func TestCreateThatMaySucceedLaterKeepsItsRecord(t *testing.T) {
	w := newWorld(t)
	w.Images.Fail = volumes.ErrUnavailable
	_, err := w.Service.CreateVolume(context.Background(), csitest.CreateRequest("pvc-1"))
	csitest.Wants(t, err, codes.Unavailable)
	before := w.Volume("pvc-1")
	w.Images.Fail = nil
	w.Restart()
	after := w.Create("pvc-1")
	if !slices.Equal(before.Spec.Replicas, after.Spec.Replicas) || before.Spec.Port != after.Spec.Port {
		t.Errorf("the place moved: %+v to %+v", before.Spec, after.Spec)
	}
}

func TestForeignImageIsNotTaken(t *testing.T) {
	w := newWorld(t)
	w.Images.Sizes[volumes.ImageRef{ClusterID: "ceph", Pool: "rbd", Image: "escache-pvc-1"}] = csitest.GiB
	_, err := w.Service.CreateVolume(context.Background(), csitest.CreateRequest("pvc-1"))
	csitest.Wants(t, err, codes.FailedPrecondition, "escache-pvc-1", "rename or remove")
	if err := w.API.Get(context.Background(), client.ObjectKey{Name: "pvc-1"}, &v1alpha1.CacheVolume{}); err == nil {
		t.Error("the record stayed")
	}
}

func TestParallelCreatesOfOneNameMakeOneVolume(t *testing.T) {
	w := newWorld(t)
	var wait sync.WaitGroup
	var mu sync.Mutex
	got := map[codes.Code]int{}
	for range 100 {
		wait.Go(func() {
			_, err := w.Service.CreateVolume(context.Background(), csitest.CreateRequest("pvc-1"))
			mu.Lock()
			defer mu.Unlock()
			got[volumes.Code(err)]++
		})
	}
	wait.Wait()
	if got[codes.OK] == 0 || got[codes.OK]+got[codes.Aborted] != 100 || w.Images.Made != 1 {
		t.Errorf("%v, %d images", got, w.Images.Made)
	}
}

func TestCreateGoesWhereTopologyAllows(t *testing.T) {
	topology := func(groups ...string) []*csi.Topology {
		var out []*csi.Topology
		for _, g := range groups {
			out = append(out, &csi.Topology{Segments: map[string]string{v1alpha1.TopologyKey: g}})
		}
		return out
	}
	for _, tc := range []struct {
		name  string
		topo  *csi.TopologyRequirement
		class string
		code  codes.Code
	}{
		{"none", nil, "", codes.OK},
		{"requisite", &csi.TopologyRequirement{Requisite: topology("g1")}, "", codes.OK},
		{"preferred has no room, requisite has", &csi.TopologyRequirement{Requisite: topology("g1", "g2"), Preferred: topology("g2")}, "",
			codes.OK},
		{"unknown group", &csi.TopologyRequirement{Requisite: topology("g2")}, "", codes.ResourceExhausted},
		{"class and topology exclude each other", &csi.TopologyRequirement{Requisite: topology("g1")}, "g2", codes.ResourceExhausted},
		{"class alone", nil, "g1", codes.OK},
		{"foreign keys only", &csi.TopologyRequirement{Requisite: []*csi.Topology{{Segments: map[string]string{"zone": "a"}}}}, "",
			codes.ResourceExhausted},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t)
			r := csitest.CreateRequest("pvc-1")
			r.AccessibilityRequirements = tc.topo
			if tc.class != "" {
				r.Parameters["nodeGroups"] = tc.class
			}
			_, err := w.Service.CreateVolume(context.Background(), r)
			csitest.Wants(t, err, tc.code)
		})
	}
}

func TestBadCreateRequestsChangeNothing(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*csi.CreateVolumeRequest)
		code   codes.Code
	}{
		"no name":         {func(r *csi.CreateVolumeRequest) { r.Name = "" }, codes.InvalidArgument},
		"no capabilities": {func(r *csi.CreateVolumeRequest) { r.VolumeCapabilities = nil }, codes.InvalidArgument},
		"shared": {func(r *csi.CreateVolumeRequest) {
			r.VolumeCapabilities[0].AccessMode.Mode = csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
		}, codes.InvalidArgument},
		"reader only": {func(r *csi.CreateVolumeRequest) {
			r.VolumeCapabilities[0].AccessMode.Mode = csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY
		}, codes.InvalidArgument},
		"unknown key": {func(r *csi.CreateVolumeRequest) { r.Parameters["pooll"] = "x" }, codes.InvalidArgument},
		"limit below": {func(r *csi.CreateVolumeRequest) { r.CapacityRange.LimitBytes = 1 }, codes.InvalidArgument},
		"no size fits": {func(r *csi.CreateVolumeRequest) {
			r.CapacityRange = &csi.CapacityRange{RequiredBytes: 1, LimitBytes: 2}
		}, codes.OutOfRange},
		"too large":       {func(r *csi.CreateVolumeRequest) { r.CapacityRange.RequiredBytes = 1 << 51 }, codes.OutOfRange},
		"cache too large": {func(r *csi.CreateVolumeRequest) { r.Parameters["cacheSize"] = "1Ti" }, codes.ResourceExhausted},
		"content source": {func(r *csi.CreateVolumeRequest) { r.VolumeContentSource = &csi.VolumeContentSource{} },
			codes.InvalidArgument},
		"mutable parameter": {func(r *csi.CreateVolumeRequest) { r.MutableParameters = map[string]string{"a": "b"} },
			codes.InvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			r := csitest.CreateRequest("pvc-1")
			tc.change(r)
			_, err := w.Service.CreateVolume(context.Background(), r)
			csitest.Wants(t, err, tc.code)
			w.Empty()
		})
	}
}

func TestVolumesSpreadOverTheGroup(t *testing.T) {
	w := newWorld(t)
	replicas, primaries, ports := map[string]int{}, map[string]int{}, map[int32]bool{}
	for i := range 30 {
		v := w.Create(fmt.Sprintf("pvc-%d", i))
		primaries[v.Spec.Replicas[0]]++
		for _, n := range v.Spec.Replicas {
			replicas[n]++
		}
		ports[v.Spec.Port] = true
	}
	for _, counts := range []map[string]int{replicas, primaries} {
		values := slices.Sorted(maps.Values(counts))
		if len(values) != 3 || values[2]-values[0] > 1 {
			t.Errorf("uneven: %v", counts)
		}
	}
	if len(ports) != 30 {
		t.Errorf("%d ports for 30 volumes", len(ports))
	}
}
