package csi_test

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/internal/placement"
	"github.com/escache/escache-csi/test/csitest"
)

func TestAVolumeHasTheEngineOfItsClassOnRecordAndOnItsHosts(t *testing.T) {
	w := newWorld(t)
	w.Create("a") // of the default
	r := csitest.FromVolume("b", "a")
	r.Parameters["cacheEngine"] = "log"
	for range 2 { // a repeated call finds the same volume
		_, err := w.Service.CreateVolume(t.Context(), r)
		csitest.Must(t, err)
	}
	back := csitest.FromVolume("c", "b")
	_, err := w.Service.CreateVolume(t.Context(), back)
	csitest.Must(t, err)
	for name, want := range map[string]escache.Engine{"a": escache.EngineWritecache, "b": escache.EngineLog,
		"c": escache.EngineWritecache} {
		v := w.Volume(name)
		if got := v.Spec.Engine(); string(got) != string(want) {
			t.Errorf("%s has engine %s on record, want %s", name, got, want)
		}
		_, err := w.Publish(name, v.Spec.Replicas[0])
		csitest.Must(t, err)
		for _, node := range v.Spec.Replicas {
			if got := w.Host(node).Status(csitest.Ref(v)).Engine; got != want {
				t.Errorf("%s was laid on %s for engine %q, want %q", name, node, got, want)
			}
		}
	}
	if recorded := w.Volume("a").Spec.CacheEngine; recorded != "" {
		t.Errorf("the record of a names %q: a csi-controller that does not know the field could not change it", recorded)
	}
}

func TestTheEngineIsNotChangedByAClass(t *testing.T) {
	w := newWorld(t)
	w.Create("a")
	csitest.Wants(t, w.Modify("a", "cacheEngine", "log"), codes.InvalidArgument, "cacheEngine", "clone the claim")
	if got := w.Volume("a").Spec.Engine(); got != v1alpha1.CacheEngineWritecache {
		t.Errorf("it is %s now", got)
	}
}

func TestWithAnOlderCRDNoVolumeGetsAnotherEngineThanItsClassSays(t *testing.T) {
	w := newWorld(t)
	w.Cached = csitest.OlderCRD{Client: w.API}
	w.Restart()
	r := csitest.CreateRequest("b")
	r.Parameters["cacheEngine"] = "log"
	_, err := w.Service.CreateVolume(t.Context(), r)
	csitest.Wants(t, err, codes.FailedPrecondition, "apply the chart's CRDs")
	w.unfinished()
}

func TestWithoutHostsThatHaveTheEngineNothingIsMadeAndTheReasonSaysSo(t *testing.T) {
	w := newWorld(t)
	csitest.Must(t, w.Book.SetGroup(placement.Group{Name: "g1", Members: []placement.Member{
		{Name: "n1", Ready: true, CapacityBytes: 1 << 40, Engines: []string{"log"}},
		{Name: "n2", Ready: true, CapacityBytes: 1 << 40},
		{Name: "n3", Ready: true, CapacityBytes: 1 << 40},
	}}, nil))
	r := csitest.CreateRequest("b")
	r.Parameters["cacheEngine"] = "log"
	_, err := w.Service.CreateVolume(t.Context(), r)
	csitest.Wants(t, err, codes.ResourceExhausted, "the cache engine log", "n2 without the cache engine log")
	capacity := func(parameters map[string]string) int64 {
		answer, err := w.Service.GetCapacity(t.Context(), &csi.GetCapacityRequest{Parameters: parameters})
		csitest.Must(t, err)
		return answer.GetAvailableCapacity()
	}
	if n := capacity(r.GetParameters()); n != 0 {
		t.Errorf("a volume of log can have %d bytes", n)
	}
	if n := capacity(csitest.CreateRequest("b").GetParameters()); n == 0 {
		t.Error("there is no room for other volumes either")
	}
	w.unfinished()
}

// TestAVolumeOfTheEngineLogStaysBelow16TiB: the engine does not serve a larger image, and an image does not
// shrink. What is dirty could not even be written back.
func TestAVolumeOfTheEngineLogStaysBelow16TiB(t *testing.T) {
	const tib = 1 << 40
	w := newWorld(t)
	create := func(name, engine string, bytes int64) error {
		r := csitest.CreateRequest(name)
		r.Parameters["cacheEngine"], r.Parameters["maxOvercommit"], r.CapacityRange.RequiredBytes = engine, "1000", bytes
		_, err := w.Service.CreateVolume(t.Context(), r)
		return err
	}
	expand := func(name string, bytes int64) error {
		_, err := w.Service.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
			VolumeId: name, CapacityRange: &csi.CapacityRange{RequiredBytes: bytes},
		})
		return err
	}
	csitest.Wants(t, create("large", "log", 16*tib), codes.OutOfRange, "volume large", "16 TiB", "writecache")
	if len(w.Images.Sizes) > 0 || !w.Gone("large") {
		t.Errorf("left: %v", w.Images.Sizes)
	}
	r := csitest.CreateRequest("")
	r.Parameters["cacheEngine"], r.Parameters["maxOvercommit"] = "log", "1000"
	has, err := w.Service.GetCapacity(t.Context(), &csi.GetCapacityRequest{Parameters: r.GetParameters()})
	csitest.Must(t, err)
	if has.GetMaximumVolumeSize().GetValue() != 16*tib-1<<20 {
		t.Errorf("capacity %d", has.GetMaximumVolumeSize().GetValue())
	}
	csitest.Must(t, create("a", "log", 10*tib))
	image := volumes.ImageOf(w.Volume("a"))
	csitest.Wants(t, expand("a", 16*tib), codes.OutOfRange, "volume a", "16 TiB", "writecache")
	if w.Images.Sizes[image] != 10*tib || w.Volume("a").Spec.SizeBytes != 10*tib {
		t.Errorf("the image has %d bytes", w.Images.Sizes[image])
	}
	csitest.Must(t, expand("a", 16*tib-1<<20))
	csitest.Must(t, create("b", "writecache", 16*tib))
	csitest.Must(t, expand("b", 17*tib))
}
