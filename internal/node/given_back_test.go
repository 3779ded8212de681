package node

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/node/mounts"
)

// givenBack is a host from which a volume was taken by force, and which has it again. Its kubelet did
// not run meanwhile, so the volume is still staged here, on a device whose Ceph client is fenced.
func givenBack(t *testing.T) (h *host, staging, fenced string) {
	t.Helper()
	h, staging = staged(t)
	fenced = h.status("v").ClientAddress
	record := &h.volumes["v"].Status
	record.Fenced = []v1alpha1.FencedClient{{Node: "n1", Address: fenced, Epoch: record.Epoch}}
	record.Epoch, record.ClientAddress = record.Epoch+1, ""
	return h, staging, fenced
}

func republish(staging, target string, c *csi.VolumeCapability) *csi.NodePublishVolumeRequest {
	r := publishOf(staging, target, c)
	r.PublishContext = map[string]string{v1alpha1.PublishContextEpoch: "4"}
	return r
}

// The kubelet publishes to the next pod and stages nothing.
func TestPublishMakesAFencedDeviceAnew(t *testing.T) {
	for kind, capability := range map[string]*csi.VolumeCapability{"mount": mountCapability("ext4"), "block": blockCapability()} {
		t.Run(kind, func(t *testing.T) {
			h, staging, fenced := givenBack(t)
			if kind == "block" {
				h.take(staging)
			}
			target := filepath.Join(t.TempDir(), "target")
			if _, err := h.service().NodePublishVolume(t.Context(), republish(staging, target, capability)); err != nil {
				t.Fatal(err)
			}
			now := h.status("v").ClientAddress
			if now == fenced || now == "" || h.volumes["v"].Status.ClientAddress != now {
				t.Errorf("client %q, on record %q, %q is fenced", now, h.volumes["v"].Status.ClientAddress, fenced)
			}
			if mounts.At(h.table, target) == nil {
				t.Errorf("mounts %+v", h.table)
			}
		})
	}
}

func TestPublishLeavesAFencedDeviceThatAPodUses(t *testing.T) {
	h, staging, _ := givenBack(t)
	h.table = append(h.table, mounts.Entry{Path: "/pod", Device: h.table[0].Device, FSType: "ext4"})
	_, err := h.service().NodePublishVolume(t.Context(), republish(staging, filepath.Join(t.TempDir(), "target"), mountCapability("ext4")))
	if Code(err) != codes.FailedPrecondition || slices.Contains(h.did, "connect") || slices.Contains(h.did, "unmount") {
		t.Errorf("%v; did %q", err, h.did)
	}
}

// Nothing can be written back through a fenced client.
func TestUnstageWritesBackThroughANewClient(t *testing.T) {
	h, staging, fenced := givenBack(t)
	dirty := int64(8192)
	h.change("v", withDirty(&dirty))
	if _, err := h.service().NodeUnstageVolume(t.Context(), unstageOf(staging)); err != nil {
		t.Fatal(err)
	}
	if want := []string{"read", "status", "unmount", "ask", "read", "connect", "flush", "stop"}; !slices.Equal(h.did, want) {
		t.Errorf("did %q, want %q", h.did, want)
	}
	if s := h.status("v"); s.ClientAddress == fenced || s.Device != "" {
		t.Errorf("client %q, device %q", s.ClientAddress, s.Device)
	}
}
