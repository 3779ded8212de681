package node

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/command"
	"github.com/escache/escache-csi/internal/node/blockdev"
	"github.com/escache/escache-csi/internal/node/kube"
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

// The kubelet goes on to publish only, whatever came of its first call. The old device is gone then, and nothing is mounted.
func TestPublishMakesAFencedDeviceAnewAtTheNextCallToo(t *testing.T) {
	for _, row := range []struct {
		step   string
		failed error // nil: csi-node is killed there
		block  bool
	}{
		{"connect", &escache.Problem{Code: escache.CodeOutdated}, false},
		{"connect", &escache.Problem{Code: escache.CodePeerUnavailable}, true},
		{"connect", nil, false},
		{"record client", kube.ErrUnavailable, false},
		{"record client", kube.ErrUnavailable, true},
		{"record client", kube.ErrConflict, true},
		{"record client", nil, true},
		{"probe", command.ErrTimeout, false},
		{"mount", command.ErrTimeout, false},
		{"mount", &command.ExitError{Command: "mount", Code: 32}, false},
		{"mount", nil, false},
	} {
		t.Run(fmt.Sprintf("%s: %v, block=%v", row.step, row.failed, row.block), func(t *testing.T) {
			h, staging, fenced := givenBack(t)
			capability := mountCapability("ext4")
			if row.block {
				capability = blockCapability()
				h.take(staging)
			}
			target := filepath.Join(t.TempDir(), "target")
			publish := func() error {
				_, err := h.service().NodePublishVolume(t.Context(), republish(staging, target, capability))
				return err
			}
			h.before[row.step] = func() {
				if row.step == "connect" {
					h.change("v", disconnected) // escached has dropped the device before the call failed
				}
				if row.failed == nil {
					panic("killed")
				}
			}
			h.failures[row.step] = row.failed
			func() {
				defer func() { _ = recover() }()
				if err := publish(); err == nil {
					t.Error("the first call succeeds")
				}
			}()
			delete(h.failures, row.step)
			if err := publish(); err != nil {
				t.Fatal(err)
			}
			now := h.status("v").ClientAddress
			if now == fenced || now == "" || h.volumes["v"].Status.ClientAddress != now {
				t.Errorf("client %q, on record %q, %q is fenced", now, h.volumes["v"].Status.ClientAddress, fenced)
			}
			if mounts.At(h.table, target) == nil || (mounts.At(h.table, staging) == nil) != row.block {
				t.Errorf("mounts %+v", h.table)
			}
		})
	}
}

// What an attachment has staged is not touched when another pod gets it, and escached need not answer for that.
func TestPublishStagesNothingThatIsStaged(t *testing.T) {
	for kind, capability := range map[string]*csi.VolumeCapability{"mount": mountCapability("ext4"), "block": blockCapability()} {
		h, staging := staged(t)
		want := []string{"read", "bind"}
		if kind == "block" {
			h.take(staging)
			want = []string{"read", "status", "status", "bind"} // its device is asked for anyway
		}
		r := publishOf(staging, filepath.Join(t.TempDir(), "target"), capability)
		r.PublishContext = map[string]string{v1alpha1.PublishContextEpoch: "3"}
		if _, err := h.service().NodePublishVolume(t.Context(), r); err != nil || !slices.Equal(h.did, want) {
			t.Errorf("%s: %v; did %q, want %q", kind, err, h.did, want)
		}
	}
}

// Neither a call of an earlier attachment nor one on a node that has lost the volume stages anything.
func TestPublishStagesNothingForAnotherAttachment(t *testing.T) {
	for name, change := range map[string]func(*v1alpha1.CacheVolumeStatus){
		"attached again":     func(s *v1alpha1.CacheVolumeStatus) { s.Epoch = 5 },
		"attached elsewhere": func(s *v1alpha1.CacheVolumeStatus) { s.AttachedNode = "n2" },
	} {
		h, staging := staged(t)
		h.take(staging)
		h.change("v", disconnected)
		change(&h.volumes["v"].Status)
		_, err := h.service().NodePublishVolume(t.Context(), republish(staging, filepath.Join(t.TempDir(), "target"), mountCapability("ext4")))
		if Code(err) != codes.FailedPrecondition || slices.Contains(h.did, "connect") || len(h.table) > 0 {
			t.Errorf("%s: %v; did %q, mounts %+v", name, err, h.did, h.table)
		}
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

// readOnlyGivenBack is a host that Kubernetes has given up, and that has its read-only volume again. The volume is still mounted here, from
// an image that is deleted and whose client is fenced. The host has another image since.
func readOnlyGivenBack(t *testing.T) (h *host, staging string, old blockdev.Number) {
	t.Helper()
	h, staging = reading(), t.TempDir()
	if _, err := h.service().NodeStageVolume(t.Context(), stageOf("r", staging, readerCapability())); err != nil {
		t.Fatal(err)
	}
	h.readOnly["r"].Status.Copies[1].ImageID, h.did = "1d9", nil
	return h, staging, mounts.At(h.table, staging).Device
}

// A kubelet that was restarted stages again, and any other one only publishes, whatever came of the first call.
func TestAReadOnlyVolumeThatWasGivenBackIsMountedAnew(t *testing.T) {
	for _, row := range []struct {
		step   string
		failed error // nil: csi-node is killed there
	}{
		{"none", nil},
		{"unmount", mounts.ErrBusy},
		{"unmount", nil},
		{"probe", command.ErrTimeout},
		{"mount", &command.ExitError{Command: "mount", Code: 32}},
		{"mount", nil},
	} {
		for _, stages := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s: %v, stages=%v", row.step, row.failed, stages), func(t *testing.T) {
				h, staging, old := readOnlyGivenBack(t)
				target := filepath.Join(t.TempDir(), "target")
				call := func() error {
					_, err := h.service().NodePublishVolume(t.Context(), publishReadOnlyAt(staging, target, readerCapability()))
					return err
				}
				if stages {
					call = func() error {
						_, err := h.service().NodeStageVolume(t.Context(), stageOf("r", staging, readerCapability()))
						return err
					}
				}
				h.failures[row.step] = row.failed
				if row.failed == nil {
					h.before[row.step] = func() { panic("killed") }
				}
				func() {
					defer func() { _ = recover() }()
					if err := call(); err == nil && row.step != "none" {
						t.Error("the first call succeeds")
					}
				}()
				delete(h.failures, row.step)
				if err := call(); err != nil {
					t.Fatal(err)
				}
				if mounts.At(h.table, staging) == nil || stages == (mounts.At(h.table, target) != nil) || len(mounts.Of(h.table, old)) > 0 {
					t.Errorf("mounts %+v; %s is the old image", h.table, old)
				}
			})
		}
	}
}

// The pod would go on with the old image, and keep it mapped. The kubelet must try again.
func TestAReadOnlyVolumeThatWasGivenBackStaysWhileAPodUsesIt(t *testing.T) {
	h, staging, old := readOnlyGivenBack(t)
	h.table = append(h.table, mounts.Entry{Path: "/pod", Device: old, FSType: "ext4", ReadOnly: true})
	_, stage := h.service().NodeStageVolume(t.Context(), stageOf("r", staging, readerCapability()))
	target := filepath.Join(t.TempDir(), "target")
	_, publish := h.service().NodePublishVolume(t.Context(), publishReadOnlyAt(staging, target, readerCapability()))
	for _, err := range []error{stage, publish} {
		if err == nil || IsFinal(Code(err)) || !strings.Contains(err.Error(), "at /pod") {
			t.Errorf("%s: %v", Code(err), err)
		}
	}
	if len(h.table) != 2 || slices.Contains(h.did, "unmount") {
		t.Errorf("mounts %+v, did %q", h.table, h.did)
	}
}
