package csi_test

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/test/csitest"
)

func TestModifyIsDeclared(t *testing.T) {
	w := newWorld(t)
	out, err := w.Service.ControllerGetCapabilities(context.Background(), &csi.ControllerGetCapabilitiesRequest{})
	csitest.Must(t, err)
	if !slices.ContainsFunc(out.GetCapabilities(), func(c *csi.ControllerServiceCapability) bool {
		return c.GetRpc().GetType() == csi.ControllerServiceCapability_RPC_MODIFY_VOLUME
	}) {
		t.Errorf("got %v", out)
	}
}

func TestModifyRecordsEachChangeOnce(t *testing.T) {
	w := newWorld(t)
	before := w.Create("pvc-1")
	var last string
	for range 2 { // the second time it has that already
		csitest.Must(t, w.Modify("pvc-1", "maxDirtyAge", "30s", "highWatermark", "60", "lowWatermark", "40"))
		v := w.Volume("pvc-1")
		want := before.Spec.DeepCopy()
		want.CacheOptions = v1alpha1.CacheOptions{HighWatermark: 60, LowWatermark: 40, MaxDirtyAgeSeconds: 30}
		want.Modifications = 1
		if !reflect.DeepEqual(&v.Spec, want) || last != "" && v.ResourceVersion != last {
			t.Errorf("record %+v", v)
		}
		last = v.ResourceVersion
		w.Restart()
	}
	csitest.Must(t, w.Modify("pvc-1", "cacheMode", "writethrough"))
	if v := w.Volume("pvc-1"); v.Spec.CacheMode != v1alpha1.CacheModeWritethrough || v.Spec.CacheOptions.HighWatermark != 60 ||
		v.Spec.Modifications != 2 || v.ModificationPending() {
		t.Errorf("record %+v", v)
	}
	for name, h := range w.Fleet.Hosts {
		if h.Calls() > 0 {
			t.Errorf("host %s was asked", name)
		}
	}
}

func TestAnAttachedVolumesChangeIsPending(t *testing.T) {
	w := newWorld(t)
	v := w.Create("pvc-1")
	_, err := w.Publish("pvc-1", v.Spec.Replicas[0])
	csitest.Must(t, err)
	if w.Volume("pvc-1").ModificationPending() {
		t.Error("a change is pending before there is one")
	}
	csitest.Must(t, w.Modify("pvc-1", "maxDirtyAge", "30s"))
	if !w.Volume("pvc-1").ModificationPending() {
		t.Errorf("no change is pending: %+v", w.Volume("pvc-1"))
	}
}

func TestModifyRefusesAndChangesNothing(t *testing.T) {
	const which = "cacheMode, cacheSize, highWatermark, lowWatermark, maxDirtyAge, writeBackOrder"
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
			before := w.Create("pvc-1")
			csitest.Wants(t, w.Modify("pvc-1", tc.in...), codes.InvalidArgument, tc.says...)
			if v := w.Volume("pvc-1"); v.ResourceVersion != before.ResourceVersion {
				t.Errorf("record %+v", v)
			}
		})
	}
}

func TestModifyOfAVolumeThatIsNotThereOrGoing(t *testing.T) {
	w := newWorld(t)
	csitest.Wants(t, w.Modify("pvc-1", "maxDirtyAge", "30s"), codes.NotFound, "pvc-1")
	csitest.Wants(t, w.Modify("", "maxDirtyAge", "30s"), codes.InvalidArgument, "volume id")
	v := w.Create("pvc-1")
	v.Spec.Release = true
	csitest.Must(t, w.API.Update(context.Background(), v))
	csitest.Wants(t, w.Modify("pvc-1", "maxDirtyAge", "30s"), codes.FailedPrecondition, "released")
}

func TestARepeatOfWhatTheHostHasRefusedSaysSo(t *testing.T) {
	w := newWorld(t)
	w.Create("pvc-1")
	csitest.Must(t, w.Modify("pvc-1", "maxDirtyAge", "30s"))
	v := w.Volume("pvc-1")
	v.Status.Applied = &v1alpha1.AppliedModification{Modification: 1, Epoch: 1, Refused: true}
	meta.SetStatusCondition(&v.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionModified, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonModificationRefused,
		Message: "30 is too short",
	})
	csitest.Must(t, w.API.Status().Update(context.Background(), v))
	csitest.Wants(t, w.Modify("pvc-1", "maxDirtyAge", "30s"), codes.InvalidArgument, "pvc-1", "30 is too short")
	csitest.Must(t, w.Modify("pvc-1", "maxDirtyAge", "60s"))
	csitest.Must(t, w.Modify("pvc-1", "maxDirtyAge", "60s")) // of these values nothing is known yet
}

func TestMutableParametersAreConfirmedForTheVolumeAsItIs(t *testing.T) {
	w := newWorld(t)
	w.Create("pvc-1")
	csitest.Must(t, w.Modify("pvc-1", "highWatermark", "60", "lowWatermark", "40"))
	for attributes, good := range map[string]bool{"highWatermark=50": true, "highWatermark=30": false, "pool=fast": false} {
		key, value, _ := strings.Cut(attributes, "=")
		mutable := map[string]string{key: value}
		out, err := w.Service.ValidateVolumeCapabilities(context.Background(), &csi.ValidateVolumeCapabilitiesRequest{
			VolumeId: "pvc-1", VolumeCapabilities: []*csi.VolumeCapability{csitest.Capability()}, MutableParameters: mutable,
		})
		csitest.Must(t, err)
		if (out.GetConfirmed() != nil) != good || good && !maps.Equal(out.GetConfirmed().GetMutableParameters(), mutable) ||
			!good && out.GetMessage() == "" {
			t.Errorf("%s: %v", attributes, out)
		}
	}
}

func TestMutableParametersTakePrecedenceOverTheStorageClass(t *testing.T) {
	w := newWorld(t)
	r := csitest.CreateRequest("pvc-1")
	r.Parameters["maxDirtyAge"], r.Parameters["highWatermark"], r.Parameters["lowWatermark"] = "5m", "70", "30"
	fast := map[string]string{"maxDirtyAge": "30s"}
	r.MutableParameters = fast
	create := func() error {
		_, err := w.Service.CreateVolume(context.Background(), r)
		return err
	}
	csitest.Must(t, create())
	v := w.Volume("pvc-1")
	if want := (v1alpha1.CacheOptions{HighWatermark: 70, LowWatermark: 30, MaxDirtyAgeSeconds: 30}); v.Spec.CacheOptions != want {
		t.Errorf("record %+v", v.Spec)
	}
	csitest.Must(t, create())
	r.MutableParameters = nil
	csitest.Wants(t, create(), codes.AlreadyExists, "its cache's options")
	r.MutableParameters = map[string]string{"pool": "fast"}
	csitest.Wants(t, create(), codes.InvalidArgument, `"pool" cannot be changed`)

	// A volume that was changed since need not be as it was created.
	r.MutableParameters = fast
	csitest.Must(t, w.Modify("pvc-1", "cacheMode", "writethrough"))
	csitest.Must(t, create())
}
