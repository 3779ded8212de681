package node

import (
	"path/filepath"
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

// The kubelet refuses them by the CSIDriver object, unless somebody has changed it.
func TestInlineEphemeralVolumesAreRefused(t *testing.T) {
	h := newHost()
	target := filepath.Join(t.TempDir(), "target")
	r := publishOf("", target, mountCapability("ext4"))
	r.VolumeContext = map[string]string{"csi.storage.k8s.io/ephemeral": "true"}
	_, err := h.service().NodePublishVolume(t.Context(), r)
	if Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "generic ephemeral volume") {
		t.Errorf("%s: %v", Code(err), err)
	}
}
