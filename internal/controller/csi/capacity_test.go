package csi_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/escache/escache-csi/internal/controller/volumes"
)

// What the scheduler is told fits is made, and what is larger is not bound: the pool of 50 GiB takes
// volumes of up to 500 GiB.
func TestCapacityIsWhatCreateVolumeTakes(t *testing.T) {
	w := newWorld(t)
	r := createRequest("pvc-1")
	out, err := w.service.GetCapacity(context.Background(), &csi.GetCapacityRequest{Parameters: r.GetParameters()})
	must(t, err)
	if out.GetAvailableCapacity() != 500*gib || out.GetMaximumVolumeSize().GetValue() != 500*gib {
		t.Fatalf("capacity %d", out.GetAvailableCapacity())
	}
	r.CapacityRange.RequiredBytes = out.GetAvailableCapacity() + 1
	_, err = w.service.CreateVolume(context.Background(), r)
	wants(t, err, codes.OutOfRange, "pool rbd")
	w.empty()
	r.CapacityRange.RequiredBytes = out.GetAvailableCapacity()
	_, err = w.service.CreateVolume(context.Background(), r)
	must(t, err)
	_, err = w.service.ControllerExpandVolume(context.Background(), &csi.ControllerExpandVolumeRequest{
		VolumeId: "pvc-1", CapacityRange: &csi.CapacityRange{RequiredBytes: 100 << 40},
	})
	wants(t, err, codes.OutOfRange, "pool rbd")

	// A pool that has shrunk, or whose size nobody can tell now, is no reason to refuse what exists.
	w.images.pool = gib
	_, err = w.service.CreateVolume(context.Background(), r)
	must(t, err)
	w.images.poolFails = volumes.ErrUnavailable
	_, err = w.service.CreateVolume(context.Background(), createRequest("pvc-2"))
	must(t, err)
}

// A StorageClass bounds its volumes more or less than the driver does. A volume keeps that for its
// expansions.
func TestAStorageClassSaysHowMuchLargerThanItsPoolAVolumeMayBe(t *testing.T) {
	for name, class := range map[string]struct {
		value   string
		largest int64
	}{"no larger than the pool": {"1", 50 * gib}, "much larger": {"1000", 50000 * gib}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			r := createRequest("pvc-1")
			r.Parameters["maxOvercommit"] = class.value
			r.Parameters["cacheSize"] = "1Gi"
			out, err := w.service.GetCapacity(t.Context(), &csi.GetCapacityRequest{Parameters: r.GetParameters()})
			must(t, err)
			if out.GetMaximumVolumeSize().GetValue() != class.largest {
				t.Fatalf("capacity %d, want %d", out.GetAvailableCapacity(), class.largest)
			}
			r.CapacityRange.RequiredBytes = class.largest + 1
			_, err = w.service.CreateVolume(t.Context(), r)
			wants(t, err, codes.OutOfRange, "more than "+class.value+" times the size of pool rbd", "raise maxOvercommit")
			w.empty()
			r.CapacityRange.RequiredBytes = class.largest - gib
			_, err = w.service.CreateVolume(t.Context(), r)
			must(t, err)
			_, err = w.service.CreateVolume(t.Context(), r)
			must(t, err)
			grow := &csi.ControllerExpandVolumeRequest{VolumeId: "pvc-1", CapacityRange: &csi.CapacityRange{RequiredBytes: class.largest + 1}}
			_, err = w.service.ControllerExpandVolume(t.Context(), grow)
			wants(t, err, codes.OutOfRange, "raise maxOvercommit")
			grow.CapacityRange.RequiredBytes = class.largest
			_, err = w.service.ControllerExpandVolume(t.Context(), grow)
			must(t, err)
		})
	}
}

// Ceph that does not answer takes the whole time of the call. What is told then is that, and nothing
// is begun.
func TestCephThatDoesNotAnswerIsTheReasonThatIsTold(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithCancel(t.Context())
	w.images.poolFails = fmt.Errorf("cluster down: %w", volumes.ErrUnavailable)
	w.images.asked = cancel
	_, err := w.service.CreateVolume(ctx, createRequest("pvc-1"))
	wants(t, err, codes.Unavailable, "cluster down")
	w.empty()
}
