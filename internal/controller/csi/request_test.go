package csi_test

import (
	"context"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/escache/escache-csi/test/csitest"
)

// mounted is a capability with a filesystem of a type.
func mounted(fsType string) *csi.VolumeCapability {
	c := csitest.Capability()
	c.GetMount().FsType = fsType
	return c
}

// What no node can make is refused when the claim is made, not in the pod.
func TestCreateRefusesFilesystemsThatNoNodeCanMake(t *testing.T) {
	const mib = 1 << 20
	for name, c := range map[string]struct {
		fsType          string
		required, limit int64
		code            codes.Code
		says            []string
	}{
		"another type":             {"btrfs", csitest.GiB, 0, codes.InvalidArgument, []string{"btrfs", "ext4", "xfs"}},
		"xfs that is too small":    {"xfs", 299 * mib, 0, codes.OutOfRange, []string{"xfs", "300 MiB"}},
		"xfs with a smaller limit": {"xfs", 0, 100 * mib, codes.OutOfRange, []string{"xfs", "300 MiB"}},
		"the smallest xfs":         {"xfs", 300 * mib, 0, codes.OK, nil},
		"xfs without a size":       {"xfs", 0, 0, codes.OK, nil},
		"a small ext4":             {"ext4", mib, 0, codes.OK, nil},
		"no type, which is ext4":   {"", mib, 0, codes.OK, nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			r := csitest.CreateRequest("pvc-1")
			r.CapacityRange = &csi.CapacityRange{RequiredBytes: c.required, LimitBytes: c.limit}
			r.VolumeCapabilities = []*csi.VolumeCapability{mounted(c.fsType)}
			_, err := w.Service.CreateVolume(context.Background(), r)
			csitest.Wants(t, err, c.code, c.says...)
			if c.code != codes.OK {
				w.Empty()
			}
		})
	}
}

func TestAnotherFilesystemIsNotConfirmed(t *testing.T) {
	w := newWorld(t)
	w.Create("pvc-1")
	validate := func(fsType string) *csi.ValidateVolumeCapabilitiesResponse {
		out, err := w.Service.ValidateVolumeCapabilities(context.Background(), &csi.ValidateVolumeCapabilitiesRequest{
			VolumeId: "pvc-1", VolumeCapabilities: []*csi.VolumeCapability{mounted(fsType)},
		})
		csitest.Must(t, err)
		return out
	}
	if out := validate("btrfs"); out.GetConfirmed() != nil || out.GetMessage() == "" {
		t.Errorf("btrfs: %v", out)
	}
	if out := validate("xfs"); out.GetConfirmed() == nil {
		t.Errorf("xfs: %v", out)
	}
}
