package node

import (
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

// csi-controller refuses this mode too: nothing makes such a volume.
func TestSingleNodeReaderOnlyIsRefused(t *testing.T) {
	h, dir := newHost(), t.TempDir()
	h.attached("v")
	c := mountCapability("ext4")
	c.AccessMode.Mode = csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY
	_, err := h.service().NodeStageVolume(t.Context(), stageOf("v", dir, c))
	if Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "mount it read-only") {
		t.Errorf("%s: %v", Code(err), err)
	}
	if len(h.table) > 0 {
		t.Errorf("mounts %+v", h.table)
	}
}
