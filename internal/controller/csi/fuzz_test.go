package csi_test

import (
	"context"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/test/csitest"
)

// named refuses names that cannot be part of a URL, as client-go does before it asks the API server:
// with an error that is none of Kubernetes'.
func named(c client.WithWatch) client.Client {
	return interceptor.NewClient(c, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if why := content.IsPathSegmentName(key.Name); len(why) > 0 {
				return &invalidNameError{key.Name, why}
			}
			return c.Get(ctx, key, o, opts...)
		},
	})
}

type invalidNameError struct {
	name string
	why  []string
}

func (e *invalidNameError) Error() string { return "invalid resource name " + e.name + ": " + e.why[0] }

// FuzzCalls sends any message to each call of the controller service. However wrong the message is,
// the answer is no bug of the driver (Internal, Unknown), and a call that succeeded succeeds again.
func FuzzCalls(f *testing.F) {
	for i, r := range []proto.Message{
		csitest.CreateRequest("pvc-1"),
		&csi.DeleteVolumeRequest{VolumeId: "v"},
		&csi.ControllerPublishVolumeRequest{VolumeId: "v", NodeId: "n1", VolumeCapability: csitest.Capability()},
		&csi.ControllerUnpublishVolumeRequest{VolumeId: "v", NodeId: "n1"},
		&csi.ControllerExpandVolumeRequest{VolumeId: "v", CapacityRange: &csi.CapacityRange{RequiredBytes: 2 * csitest.GiB}},
		&csi.ControllerModifyVolumeRequest{VolumeId: "v", MutableParameters: map[string]string{"maxDirtyAge": "5m"}},
		&csi.CreateSnapshotRequest{Name: "snapshot-1", SourceVolumeId: "v"},
		&csi.DeleteSnapshotRequest{SnapshotId: "snapshot-1"},
		&csi.ListVolumesRequest{MaxEntries: 1},
		&csi.ListSnapshotsRequest{SnapshotId: "a/b"},
		&csi.GetSnapshotRequest{SnapshotId: ".."},
		&csi.ControllerGetVolumeRequest{VolumeId: "v"},
		&csi.ValidateVolumeCapabilitiesRequest{VolumeId: "v", VolumeCapabilities: []*csi.VolumeCapability{csitest.Capability()}},
		&csi.GetCapacityRequest{Parameters: csitest.CreateRequest("").GetParameters()},
		csitest.GroupRequest("group-1", "v"),
		&csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: "group-1"},
		&csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: "a/b", SnapshotIds: []string{""}},
	} {
		data, err := proto.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(uint8(i), data)
	}
	slash, err := proto.Marshal(&csi.DeleteVolumeRequest{VolumeId: "a/b"})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(uint8(1), slash)
	f.Fuzz(func(t *testing.T, which uint8, data []byte) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		w := newWorld(t)
		withWatch, ok := w.API.(client.WithWatch)
		if !ok {
			t.Fatalf("%T", w.API)
		}
		w.API = named(withWatch)
		w.Cached = w.API
		w.Restart()
		if _, err := w.Service.CreateVolume(ctx, csitest.CreateRequest("v")); err != nil {
			t.Fatal(err)
		}
		all := w.calls()
		call := all[int(which)%len(all)]
		known, first := call(ctx, data)
		if !known {
			return // gRPC refuses it
		}
		if code := volumes.Code(first); code == codes.Internal || code == codes.Unknown {
			t.Errorf("%s: %v", code, first)
		}
		if _, second := call(ctx, data); first == nil && second != nil {
			t.Errorf("the repeated call: %v", second)
		}
	})
}

func (w *world) calls() []func(context.Context, []byte) (known bool, err error) {
	s := w.Service
	return []func(context.Context, []byte) (known bool, err error){
		sent(s.CreateVolume), sent(s.DeleteVolume), sent(s.ControllerPublishVolume), sent(s.ControllerUnpublishVolume),
		sent(s.ControllerExpandVolume), sent(s.ControllerModifyVolume), sent(s.CreateSnapshot), sent(s.DeleteSnapshot),
		sent(s.ListVolumes), sent(s.ListSnapshots),
		sent(s.GetSnapshot), sent(s.ControllerGetVolume), sent(s.ValidateVolumeCapabilities), sent(s.GetCapacity),
		sent(s.CreateVolumeGroupSnapshot), sent(s.DeleteVolumeGroupSnapshot), sent(s.GetVolumeGroupSnapshot),
	}
}

func sent[T any, M interface {
	*T
	proto.Message
}, R any](call func(context.Context, M) (R, error)) func(context.Context, []byte) (known bool, err error) {
	return func(ctx context.Context, data []byte) (known bool, err error) {
		r := M(new(T))
		if proto.Unmarshal(data, r) != nil {
			return false, nil //nolint:nilerr // such bytes reach no call
		}
		_, err = call(ctx, r)
		return true, err
	}
}
