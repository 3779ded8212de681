package csi_test

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
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
