package csi_test

import (
	"context"
	"reflect"
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/escache/escache-csi/api/v1alpha1"
)

func (w *world) modify(id string, pairs ...string) error {
	attributes := map[string]string{}
	for pair := range slices.Chunk(pairs, 2) {
		attributes[pair[0]] = pair[1]
	}
	_, err := w.service.ControllerModifyVolume(context.Background(), &csi.ControllerModifyVolumeRequest{
		VolumeId: id, MutableParameters: attributes,
	})
	return err
}

func TestModifyIsDeclared(t *testing.T) {
	w := newWorld(t)
	out, err := w.service.ControllerGetCapabilities(context.Background(), &csi.ControllerGetCapabilitiesRequest{})
	must(t, err)
	if !slices.ContainsFunc(out.GetCapabilities(), func(c *csi.ControllerServiceCapability) bool {
		return c.GetRpc().GetType() == csi.ControllerServiceCapability_RPC_MODIFY_VOLUME
	}) {
		t.Errorf("got %v", out)
	}
}

func TestModifyRecordsEachChangeOnce(t *testing.T) {
	w := newWorld(t)
	before := w.create("pvc-1")
	var last string
	for range 2 { // the second time it has that already
		must(t, w.modify("pvc-1", "maxDirtyAge", "30s", "highWatermark", "60", "lowWatermark", "40"))
		v := w.volume("pvc-1")
		want := before.Spec.DeepCopy()
		want.CacheOptions = v1alpha1.CacheOptions{HighWatermark: 60, LowWatermark: 40, MaxDirtyAgeSeconds: 30}
		want.Modifications = 1
		if !reflect.DeepEqual(&v.Spec, want) || last != "" && v.ResourceVersion != last {
			t.Errorf("record %+v", v)
		}
		last = v.ResourceVersion
		w.restart()
	}
	must(t, w.modify("pvc-1", "cacheMode", "writethrough"))
	if v := w.volume("pvc-1"); v.Spec.CacheMode != v1alpha1.CacheModeWritethrough || v.Spec.CacheOptions.HighWatermark != 60 ||
		v.Spec.Modifications != 2 || v.ModificationPending() {
		t.Errorf("record %+v", v)
	}
	for name, h := range w.fleet.Hosts {
		if h.Calls() > 0 {
			t.Errorf("host %s was asked", name)
		}
	}
}

func TestAnAttachedVolumesChangeIsPending(t *testing.T) {
	w := newWorld(t)
	v := w.create("pvc-1")
	_, err := w.publish("pvc-1", v.Spec.Replicas[0])
	must(t, err)
	if w.volume("pvc-1").ModificationPending() {
		t.Error("a change is pending before there is one")
	}
	must(t, w.modify("pvc-1", "maxDirtyAge", "30s"))
	if !w.volume("pvc-1").ModificationPending() {
		t.Errorf("no change is pending: %+v", w.volume("pvc-1"))
	}
}

func TestModifyRefusesAndChangesNothing(t *testing.T) {
	const which = "cacheMode, highWatermark, lowWatermark, maxDirtyAge"
	for name, tc := range map[string]struct {
		in   []string
		says []string
	}{
		"a pool":               {[]string{"pool", "fast", "maxDirtyAge", "30s"}, []string{`"pool" cannot be changed`, which, "pvc-1"}},
		"a key of another":     {[]string{"iops", "3000"}, []string{`"iops" is unknown`, which}},
		"a value":              {[]string{"maxDirtyAge", "25h"}, []string{"maxDirtyAge", "25h", "24h"}},
		"a lonely watermark":   {[]string{"lowWatermark", "10"}, []string{"go together"}},
		"nothing":              {nil, []string{"missing"}},
		"an option that waits": {[]string{"cacheMode", "writethrough", "maxDirtyAge", "30s"}, []string{"never dirty"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			before := w.create("pvc-1")
			wants(t, w.modify("pvc-1", tc.in...), codes.InvalidArgument, tc.says...)
			if v := w.volume("pvc-1"); v.ResourceVersion != before.ResourceVersion {
				t.Errorf("record %+v", v)
			}
		})
	}
}

func TestModifyOfAVolumeThatIsNotThereOrGoing(t *testing.T) {
	w := newWorld(t)
	wants(t, w.modify("pvc-1", "maxDirtyAge", "30s"), codes.NotFound, "pvc-1")
	wants(t, w.modify("", "maxDirtyAge", "30s"), codes.InvalidArgument, "volume id")
	v := w.create("pvc-1")
	v.Spec.Release = true
	must(t, w.api.Update(context.Background(), v))
	wants(t, w.modify("pvc-1", "maxDirtyAge", "30s"), codes.FailedPrecondition, "released")
}

func TestMutableParametersTakePrecedenceOverTheStorageClass(t *testing.T) {
	w := newWorld(t)
	r := createRequest("pvc-1")
	r.Parameters["maxDirtyAge"], r.Parameters["highWatermark"], r.Parameters["lowWatermark"] = "5m", "70", "30"
	fast := map[string]string{"maxDirtyAge": "30s"}
	r.MutableParameters = fast
	create := func() error {
		_, err := w.service.CreateVolume(context.Background(), r)
		return err
	}
	must(t, create())
	v := w.volume("pvc-1")
	if want := (v1alpha1.CacheOptions{HighWatermark: 70, LowWatermark: 30, MaxDirtyAgeSeconds: 30}); v.Spec.CacheOptions != want {
		t.Errorf("record %+v", v.Spec)
	}
	must(t, create())
	r.MutableParameters = nil
	wants(t, create(), codes.AlreadyExists, "its cache's options")
	r.MutableParameters = map[string]string{"pool": "fast"}
	wants(t, create(), codes.InvalidArgument, `"pool" cannot be changed`)

	// A volume that was changed since need not be as it was created.
	r.MutableParameters = fast
	must(t, w.modify("pvc-1", "cacheMode", "writethrough"))
	must(t, create())
}
