package node

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/escache/escache-csi/api/v1alpha1"
)

// FuzzCalls sends any message to each call of the node service, on a host with one volume that is
// staged. However wrong the message is, the answer is no bug of the driver (Internal, Unknown), and
// a second, same call gives the same code.
func FuzzCalls(f *testing.F) {
	staging, target := "/", "/target" // below the directory at which the volume is staged
	for i, r := range []proto.Message{
		stageOf("v", staging, mountCapability("ext4", "noatime")),
		&csi.NodePublishVolumeRequest{VolumeId: "v", StagingTargetPath: staging, TargetPath: target, VolumeCapability: mountCapability("ext4")},
		&csi.NodeUnpublishVolumeRequest{VolumeId: "v", TargetPath: target},
		&csi.NodeUnstageVolumeRequest{VolumeId: "v", StagingTargetPath: staging},
		&csi.NodeExpandVolumeRequest{VolumeId: "v", VolumePath: staging, CapacityRange: &csi.CapacityRange{RequiredBytes: 1 << 30}},
		&csi.NodeGetVolumeStatsRequest{VolumeId: "v", VolumePath: staging},
		&csi.NodeGetVolumeHealthRequest{VolumeId: "v"},
	} {
		data, err := proto.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(uint8(i), data)
	}
	block, err := proto.Marshal(stageOf("w/../v", "/a\x00b/../../..", blockCapability()))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(uint8(0), block)
	f.Fuzz(func(t *testing.T, which uint8, data []byte) {
		h, dir := staged(t)
		service := h.service()
		call := calls(service, dir)[int(which)%7]
		ctx := t.Context()
		known, first := call(ctx, data)
		if !known {
			return // gRPC refuses it
		}
		_, second := call(ctx, data)
		if code := Code(first); code == codes.Internal || code == codes.Unknown {
			t.Errorf("%s: %v", code, first)
		}
		if Code(first) == codes.OK && Code(second) != codes.OK {
			t.Errorf("the repeated call: %v", second)
		}
		for _, at := range h.table {
			if !strings.HasPrefix(at.Path, dir) {
				t.Errorf("mounted at %s", at.Path)
			}
		}
		if v := h.volumes["v"]; v.Status.AttachedNode != "n1" || v.Status.Epoch != 3 || v.Status.Authority != v1alpha1.AuthorityCache {
			t.Errorf("a call of the node changed who may write: %+v", v.Status)
		}
	})
}

// calls are the calls that take a volume. Each reports whether data is its message. Paths are moved
// below root: the service makes and removes mount points.
func calls(s *Service, root string) []func(context.Context, []byte) (known bool, err error) {
	below := func(paths ...*string) {
		for _, p := range paths {
			if filepath.IsAbs(*p) {
				*p = filepath.Join(root, filepath.Clean(*p))
			}
		}
	}
	return []func(context.Context, []byte) (known bool, err error){
		sent(s.NodeStageVolume, func(r *csi.NodeStageVolumeRequest) { below(&r.StagingTargetPath) }),
		sent(s.NodePublishVolume, func(r *csi.NodePublishVolumeRequest) { below(&r.StagingTargetPath, &r.TargetPath) }),
		sent(s.NodeUnpublishVolume, func(r *csi.NodeUnpublishVolumeRequest) { below(&r.TargetPath) }),
		sent(s.NodeUnstageVolume, func(r *csi.NodeUnstageVolumeRequest) { below(&r.StagingTargetPath) }),
		sent(s.NodeExpandVolume, func(r *csi.NodeExpandVolumeRequest) { below(&r.VolumePath, &r.StagingTargetPath) }),
		sent(s.NodeGetVolumeStats, func(r *csi.NodeGetVolumeStatsRequest) { below(&r.VolumePath, &r.StagingTargetPath) }),
		sent(s.NodeGetVolumeHealth, func(*csi.NodeGetVolumeHealthRequest) {}),
	}
}

func sent[T any, M interface {
	*T
	proto.Message
}, R any](call func(context.Context, M) (R, error), confine func(M)) func(context.Context, []byte) (known bool, err error) {
	return func(ctx context.Context, data []byte) (known bool, err error) {
		r := M(new(T))
		if proto.Unmarshal(data, r) != nil {
			return false, nil //nolint:nilerr // such bytes reach no call
		}
		confine(r)
		_, err = call(ctx, r)
		return true, err
	}
}
