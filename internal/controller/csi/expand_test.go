package csi_test

import (
	"context"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/test/csitest"
)

func TestExpandGrowsRecordAndImage(t *testing.T) {
	w := newWorld(t)
	v := w.Create("pvc-1")
	expand := func(bytes, limit int64) (*csi.ControllerExpandVolumeResponse, error) {
		return w.Service.ControllerExpandVolume(context.Background(), &csi.ControllerExpandVolumeRequest{
			VolumeId: "pvc-1", CapacityRange: &csi.CapacityRange{RequiredBytes: bytes, LimitBytes: limit},
		})
	}
	for range 2 {
		out, err := expand(2*csitest.GiB, 0)
		csitest.Must(t, err)
		if out.GetCapacityBytes() != 2*csitest.GiB || !out.GetNodeExpansionRequired() {
			t.Errorf("got %v", out)
		}
	}
	image := volumes.ImageRef{ClusterID: "ceph", Pool: "rbd", Image: v.Spec.Image}
	if w.Images.Sizes[image] != 2*csitest.GiB || w.Volume("pvc-1").Spec.SizeBytes != 2*csitest.GiB {
		t.Errorf("image has %d, record %d", w.Images.Sizes[image], w.Volume("pvc-1").Spec.SizeBytes)
	}
	w.Images.Fail = volumes.ErrRefused
	_, err := expand(3*csitest.GiB, 0)
	csitest.Wants(t, err, codes.FailedPrecondition)
	if size := w.Volume("pvc-1").Spec.SizeBytes; size != 2*csitest.GiB {
		t.Errorf("%d bytes are on record, and the image has not grown", size)
	}
	w.Images.Fail = nil
	_, err = expand(csitest.GiB, csitest.GiB)
	csitest.Wants(t, err, codes.OutOfRange, "cannot shrink")
}

// TestExpandRecordsWhatTheImageHas: the image grew, csi-controller was killed before it recorded the
// size, and then less was asked for; or an administrator has grown it.
func TestExpandRecordsWhatTheImageHas(t *testing.T) {
	w := newWorld(t)
	v := w.Create("pvc-1")
	w.Images.Sizes[volumes.ImageOf(v)] = 3 * csitest.GiB
	out, err := w.Service.ControllerExpandVolume(context.Background(), &csi.ControllerExpandVolumeRequest{
		VolumeId: "pvc-1", CapacityRange: &csi.CapacityRange{RequiredBytes: 2 * csitest.GiB},
	})
	csitest.Must(t, err)
	if size := w.Volume("pvc-1").Spec.SizeBytes; size != 3*csitest.GiB || out.GetCapacityBytes() != size {
		t.Errorf("the image has %d bytes, on record are %d, the answer is %d", int64(3*csitest.GiB), size, out.GetCapacityBytes())
	}
}
