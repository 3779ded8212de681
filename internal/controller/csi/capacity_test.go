package csi_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/test/csitest"
)

// What the scheduler is told fits is made, and what is larger is not bound: the pool of 50 GiB takes
// volumes of up to 500 GiB.
func TestCapacityIsWhatCreateVolumeTakes(t *testing.T) {
	w := newWorld(t)
	r := csitest.CreateRequest("pvc-1")
	out, err := w.Service.GetCapacity(context.Background(), &csi.GetCapacityRequest{Parameters: r.GetParameters()})
	csitest.Must(t, err)
	if out.GetAvailableCapacity() != 500*csitest.GiB || out.GetMaximumVolumeSize().GetValue() != 500*csitest.GiB {
		t.Fatalf("capacity %d", out.GetAvailableCapacity())
	}
	r.CapacityRange.RequiredBytes = out.GetAvailableCapacity() + 1
	_, err = w.Service.CreateVolume(context.Background(), r)
	csitest.Wants(t, err, codes.OutOfRange, "pool rbd")
	w.Empty()
	r.CapacityRange.RequiredBytes = out.GetAvailableCapacity()
	_, err = w.Service.CreateVolume(context.Background(), r)
	csitest.Must(t, err)
	_, err = w.Service.ControllerExpandVolume(context.Background(), &csi.ControllerExpandVolumeRequest{
		VolumeId: "pvc-1", CapacityRange: &csi.CapacityRange{RequiredBytes: 100 << 40},
	})
	csitest.Wants(t, err, codes.OutOfRange, "pool rbd")

	// A pool that has shrunk, or whose size nobody can tell now, is no reason to refuse what exists.
	w.Images.Pool = csitest.GiB
	_, err = w.Service.CreateVolume(context.Background(), r)
	csitest.Must(t, err)
	w.Images.PoolFails = volumes.ErrUnavailable
	_, err = w.Service.CreateVolume(context.Background(), csitest.CreateRequest("pvc-2"))
	csitest.Must(t, err)
}

// A StorageClass bounds its volumes more or less than the driver does. A volume keeps that for its
// expansions.
func TestAStorageClassSaysHowMuchLargerThanItsPoolAVolumeMayBe(t *testing.T) {
	for name, class := range map[string]struct {
		value   string
		largest int64
	}{"no larger than the pool": {"1", 50 * csitest.GiB}, "much larger": {"1000", 50000 * csitest.GiB}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			r := csitest.CreateRequest("pvc-1")
			r.Parameters["maxOvercommit"] = class.value
			r.Parameters["cacheSize"] = "1Gi"
			out, err := w.Service.GetCapacity(t.Context(), &csi.GetCapacityRequest{Parameters: r.GetParameters()})
			csitest.Must(t, err)
			if out.GetMaximumVolumeSize().GetValue() != class.largest {
				t.Fatalf("capacity %d, want %d", out.GetAvailableCapacity(), class.largest)
			}
			r.CapacityRange.RequiredBytes = class.largest + 1
			_, err = w.Service.CreateVolume(t.Context(), r)
			csitest.Wants(t, err, codes.OutOfRange, "more than "+class.value+" times the size of pool rbd", "raise maxOvercommit")
			w.Empty()
			r.CapacityRange.RequiredBytes = class.largest - csitest.GiB
			_, err = w.Service.CreateVolume(t.Context(), r)
			csitest.Must(t, err)
			_, err = w.Service.CreateVolume(t.Context(), r)
			csitest.Must(t, err)
			grow := &csi.ControllerExpandVolumeRequest{VolumeId: "pvc-1",
				CapacityRange: &csi.CapacityRange{RequiredBytes: class.largest + 1}}
			_, err = w.Service.ControllerExpandVolume(t.Context(), grow)
			csitest.Wants(t, err, codes.OutOfRange, "raise maxOvercommit")
			grow.CapacityRange.RequiredBytes = class.largest
			_, err = w.Service.ControllerExpandVolume(t.Context(), grow)
			csitest.Must(t, err)
		})
	}
}

// Ceph that does not answer takes the whole time of the call. What is told then is that, and nothing
// is begun.
func TestCephThatDoesNotAnswerIsTheReasonThatIsTold(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithCancel(t.Context())
	w.Images.PoolFails = fmt.Errorf("cluster down: %w", volumes.ErrUnavailable)
	w.Images.Asked = cancel
	_, err := w.Service.CreateVolume(ctx, csitest.CreateRequest("pvc-1"))
	csitest.Wants(t, err, codes.Unavailable, "cluster down")
	w.Empty()
}
