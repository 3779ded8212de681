package node

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/cachevolume"
	fs "github.com/escache/escache-csi/internal/node/filesystem"
	"github.com/escache/escache-csi/internal/node/mounts"
)

// outside adds a volume of another group that n1 has without a cache, in epoch 3.
func (h *host) outside(name string) {
	v := &v1alpha1.CacheVolume{}
	v.Name, v.ResourceVersion = name, "1"
	v.Spec = v1alpha1.CacheVolumeSpec{
		Pool: "p", Image: name, SizeBytes: 1 << 30, CacheMode: v1alpha1.CacheModeWriteback, Replicas: []string{"n7", "n8"}, UncachedFallback: true,
	}
	v.Status = v1alpha1.CacheVolumeStatus{
		Phase: v1alpha1.VolumeReady, AttachedNode: "n1", Epoch: 3, Authority: v1alpha1.AuthorityCeph, ImageID: imageID(name),
		Outdated: []string{"n7", "n8"}, Uncached: &v1alpha1.UncachedAttachment{Epoch: 3, HostID: "disks-of-n1"},
	}
	h.volumes[name], h.minors[name] = v, uint32(len(h.minors))
	h.contents[h.device(name)] = fs.Content{Surface: fs.Surface{Scanned: true, Blank: true}}
}

func TestAVolumeOfAnotherGroupIsUsedWithoutACache(t *testing.T) {
	h, dir := newHost(), t.TempDir()
	h.outside("v")
	for range 2 {
		if _, err := h.service().NodeStageVolume(t.Context(), stageOf("v", dir, mountCapability(""))); err != nil {
			t.Fatal(err)
		}
		if s := h.status("v"); !s.Uncached || s.Epoch != 3 || h.volumes["v"].Status.ClientAddress != s.ClientAddress {
			t.Errorf("status %+v, client on record %q", s, h.volumes["v"].Status.ClientAddress)
		}
	}
	for range 2 {
		request := &csi.NodeUnstageVolumeRequest{VolumeId: "v", StagingTargetPath: dir}
		if _, err := h.service().NodeUnstageVolume(t.Context(), request); err != nil {
			t.Fatal(err)
		}
	}
	if s := h.status("v"); s.State != escache.StateAbsent || len(h.table) > 0 {
		t.Errorf("after unstage: %+v, mounts %v", s, h.table)
	}
}

// The volume was attached in its group again while this node waited for the call.
func TestALateStageDoesNotMapAVolumeThatIsBackInItsGroup(t *testing.T) {
	h := newHost()
	h.outside("v")
	s := &h.volumes["v"].Status
	s.AttachedNode, s.Epoch, s.Authority = "n7", 4, v1alpha1.AuthorityCache
	_, err := h.service().NodeStageVolume(t.Context(), stageOf("v", t.TempDir(), blockCapability()))
	if Code(err) != codes.FailedPrecondition || slices.Contains(h.did, "connect") {
		t.Errorf("%v, did %q", err, h.did)
	}
}

// Somebody has unmapped the image by hand, or mapping it anew has failed. The link is still there, and the kernel has given
// the number of the device to another image since.
func TestALinkWithoutAMapIsNotHandedToAPod(t *testing.T) {
	h, dir := newHost(), t.TempDir()
	h.outside("v")
	if _, err := h.service().NodeStageVolume(t.Context(), stageOf("v", dir, blockCapability())); err != nil {
		t.Fatal(err)
	}
	h.change("v", func(s *escache.VolumeStatus) { s.State, s.ClientAddress = escache.StateError, "" })
	target := filepath.Join(t.TempDir(), "target")
	_, err := h.service().NodePublishVolume(t.Context(), publishOf(dir, target, blockCapability()))
	if Code(err) != codes.FailedPrecondition || len(h.table) > 0 {
		t.Errorf("%v, mounts %+v", err, h.table)
	}
	// A pod has the other image.
	device, err := h.Number(h.device("v"))
	if err != nil {
		t.Fatal(err)
	}
	h.table = append(h.table, mounts.Entry{Path: "/other", Device: device, Node: true})
	_, err = h.service().NodeUnstageVolume(t.Context(), unstageOf(dir))
	if err != nil && strings.Contains(err.Error(), "published") {
		t.Errorf("the other volume's pod keeps it from being unstaged: %v", err)
	}
}

// Kubernetes has given this node up while it was cut off, and its client is fenced.
func TestAMapThatWasTakenIsGivenUp(t *testing.T) {
	h, dir := newHost(), t.TempDir()
	h.outside("v")
	if _, err := h.service().NodeStageVolume(t.Context(), stageOf("v", dir, mountCapability(""))); err != nil {
		t.Fatal(err)
	}
	s := &h.volumes["v"].Status
	s.Fenced = []v1alpha1.FencedClient{{Node: "n1", Address: s.ClientAddress, Epoch: 3}}
	s.AttachedNode, s.ClientAddress, s.Uncached = "", "", nil
	request := &csi.NodeUnstageVolumeRequest{VolumeId: "v", StagingTargetPath: dir}
	if _, err := h.service().NodeUnstageVolume(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	if now := h.status("v"); now.State != escache.StateAbsent || slices.Contains(h.did, "flush") || !slices.Contains(h.did, "abandon") {
		t.Errorf("status %+v, did %q", now, h.did)
	}
}

// The call that maps it has not ended, and nobody waits for it any more.
func TestUnstageDoesNotSucceedWhileTheImageIsBeingMapped(t *testing.T) {
	h, dir := newHost(), t.TempDir()
	h.outside("v")
	request := &csi.NodeUnstageVolumeRequest{VolumeId: "v", StagingTargetPath: dir}
	asked := false
	h.escached.OnMap(func() {
		asked = true
		if _, err := h.service().NodeUnstageVolume(t.Context(), request); Code(err) != codes.Aborted {
			t.Errorf("while it is mapped: %v", err)
		}
	})
	if _, err := h.escached.Connect(t.Context(), cachevolume.ConnectRequest(h.volumes["v"])); err != nil || !asked {
		t.Fatal(err, asked)
	}
	if _, err := h.service().NodeUnstageVolume(t.Context(), request); err != nil || h.status("v").State != escache.StateAbsent {
		t.Errorf("%v, %+v", err, h.status("v"))
	}
}

// Nothing is dirty where there is no cache. If its record is damaged, escached cannot say so.
func TestUnstageStopsAMapThatCannotBeFlushed(t *testing.T) {
	h, dir := newHost(), t.TempDir()
	h.outside("v")
	if _, err := h.service().NodeStageVolume(t.Context(), stageOf("v", dir, mountCapability(""))); err != nil {
		t.Fatal(err)
	}
	h.failures["flush"] = &escache.Problem{Code: escache.CodeInternal}
	request := &csi.NodeUnstageVolumeRequest{VolumeId: "v", StagingTargetPath: dir}
	if _, err := h.service().NodeUnstageVolume(t.Context(), request); err != nil || h.status("v").State != escache.StateAbsent {
		t.Errorf("%v, %+v", err, h.status("v"))
	}
}
