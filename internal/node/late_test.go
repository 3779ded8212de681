package node

import (
	"context"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/escache/escache-csi/api/escache"
)

// TestACallThatReachesALaterAttachmentChangesNothing: after csi-node has looked, the volume is connected for
// another attachment. A call that was under way meanwhile is not about that one.
func TestACallThatReachesALaterAttachmentChangesNothing(t *testing.T) {
	later := func(s *escache.VolumeStatus) { s.Epoch = 4 }
	for step, call := range map[string]func(h *host, dir string) error{
		"flush": unstages, "stop": unstages,
		"resize": func(h *host, dir string) error {
			h.volumes["v"].Spec.SizeBytes = 2 << 30
			_, err := h.service().NodeExpandVolume(t.Context(), &csi.NodeExpandVolumeRequest{VolumeId: "v", VolumePath: dir})
			return err
		},
	} {
		h, dir := staged(t)
		before := h.status("v")
		h.before[step] = func() { h.change("v", later) }
		if err := call(h, dir); Code(err) != codes.FailedPrecondition {
			t.Errorf("%s: %v", step, err)
		}
		if now := h.status("v"); now.Device != before.Device || now.SizeBytes != before.SizeBytes {
			t.Errorf("%s: %+v", step, now)
		}
	}
}

// TestAPodEndsAlthoughTheRecordWasSetBack: the record knows of an earlier attachment than the one that the
// host has.
func TestAPodEndsAlthoughTheRecordWasSetBack(t *testing.T) {
	h, dir := staged(t)
	h.volumes["v"].Status.Epoch = 2
	if err := unstages(h, dir); err != nil || h.status("v").Device != "" {
		t.Errorf("%v, %+v", err, h.status("v"))
	}
}

func unstages(h *host, dir string) error {
	_, err := h.service().NodeUnstageVolume(context.Background(), unstageOf(dir))
	return err
}
