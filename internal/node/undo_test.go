package node

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/command"
	"github.com/escache/escache-csi/internal/node/blockdev"
	"github.com/escache/escache-csi/internal/node/kube"
	"github.com/escache/escache-csi/internal/node/mounts"
)

// halfStaged is a host on which a first NodeStageVolume has connected volume "v" and then took too long: the device
// stays for the repeated call. It has something that is not in Ceph.
func halfStaged(t *testing.T) (h *host, again func() error) {
	t.Helper()
	h = newHost()
	h.attached("v")
	again = halfStage(t, h)
	dirty := int64(8192)
	h.change("v", withDirty(&dirty))
	return h, again
}

func halfStage(t *testing.T, h *host) (again func() error) {
	t.Helper()
	dir := t.TempDir()
	again = func() error {
		_, err := h.service().NodeStageVolume(t.Context(), stageOf("v", dir, mountCapability("ext4")))
		return err
	}
	h.failures["mkfs"] = command.ErrTimeout
	if err := again(); Code(err) != codes.DeadlineExceeded || h.status("v").Device == "" {
		t.Fatalf("%v; device %q", err, h.status("v").Device)
	}
	delete(h.failures, "mkfs")
	h.did = nil
	return again
}

func outdatedHere(h *host) { h.volumes["v"].Status.Outdated = []string{"n1"} }

func stops(h *host) bool { return slices.Contains(h.did, "flush") || slices.Contains(h.did, "stop") }

// After a final error the kubelet forgets the device. If one were left, nobody would stop it, and no other node would
// get the volume.
func TestARepeatedStageIsNotFinalWhileTheDeviceOfTheFirstIsThere(t *testing.T) {
	for name, c := range map[string]struct {
		change   func(h *host)
		code     codes.Code
		sentence string // the reason of the failed call comes first
		stays    bool
	}{
		"outdated since": {outdatedHere, codes.FailedPrecondition, "refused: the replica of volume v on this node is on record as", false},
		"detached since": {func(h *host) { h.volumes["v"].Status.AttachedNode = "" }, codes.FailedPrecondition,
			"refused: volume v is attached to no node", false},
		"refused by escached": {func(h *host) {
			h.failures["connect"] = &escache.Problem{Code: escache.CodeImageInUse, Detail: "client 4711 has it"}
		}, codes.FailedPrecondition, "connect the cache of volume v: ", false},
		"the API server starts": {func(h *host) { h.failures["read"] = kube.ErrForbidden }, codes.Unavailable,
			"the Kubernetes API does not allow it", true},
		"the API server does not answer": {func(h *host) { h.failures["read"] = kube.ErrUnavailable }, codes.Unavailable,
			"the Kubernetes API does not answer", true},
		"the record is refused": {func(h *host) {
			h.failures["read"] = errors.New("the Kubernetes API refuses (400)")
		}, codes.Unavailable, "the Kubernetes API refuses (400)", true},
		"escached does not say what it has": {func(h *host) {
			h.failures["status"] = &escache.Problem{Code: escache.CodeInternal, Detail: "no status"}
		}, codes.Unavailable, "status of volume v: ", true},
		"I/O is frozen": {func(h *host) {
			outdatedHere(h)
			h.change("v", frozen)
		}, codes.Unavailable, "refused: the replica of volume v", true},
		"Ceph does not answer": {func(h *host) {
			outdatedHere(h)
			h.failures["flush"] = &escache.Problem{Code: escache.CodeCephUnavailable, Detail: "no answer"}
		}, codes.Unavailable, "refused: the replica of volume v", true},
		"somebody has it open": {func(h *host) {
			outdatedHere(h)
			h.failures["stop"] = &escache.Problem{Code: escache.CodeDeviceOpen, Detail: "open"}
		}, codes.Unavailable, "refused: the replica of volume v", true},
	} {
		t.Run(name, func(t *testing.T) {
			h, again := halfStaged(t)
			c.change(h)
			for range 2 { // csi-node starts again in between
				err := again()
				if Code(err) != c.code || !strings.HasPrefix(err.Error(), c.sentence) {
					t.Fatalf("%s: %v; want %s and %q", Code(err), err, c.code, c.sentence)
				}
				if stays := h.status("v").Device != ""; stays != c.stays {
					t.Fatalf("%s: %v; a device is left: %v; did %q", Code(err), err, stays, h.did)
				}
			}
			if flushed, stopped := slices.Index(h.did, "flush"), slices.Index(h.did, "stop"); !c.stays && (flushed < 0 || stopped < flushed) {
				t.Errorf("stopped without writing back; did %q", h.did)
			}
		})
	}
}

// What does not fit into one call is written back by the next ones.
func TestARepeatedStageThatFailsWritesAllBackFirst(t *testing.T) {
	h, again := halfStaged(t)
	outdatedHere(h)
	h.escached.FlushAtMost(4096)
	err := again()
	if left := h.status("v").DirtyBytes; IsFinal(Code(err)) || left == nil || *left != 4096 || slices.Contains(h.did, "stop") {
		t.Fatalf("%v; did %q, %v bytes are dirty", err, h.did, left)
	}
	if err := again(); Code(err) != codes.FailedPrecondition || h.status("v").Device != "" {
		t.Errorf("%v; device %q", err, h.status("v").Device)
	}
}

// The answer to an earlier call was lost, or pods use the device.
func TestARepeatedStageThatFailsLeavesADeviceThatIsUsed(t *testing.T) {
	v := blockdev.Number{Major: 252, Minor: 0}
	for name, at := range map[string]mounts.Entry{
		"mounted":                   {Path: "/staging", Device: v, FSType: "ext4"},
		"published":                 {Path: "/pod", Device: v, FSType: "ext4"},
		"published as block device": {Path: "/pod", Device: v, Node: true, FSType: "devtmpfs"},
	} {
		t.Run(name, func(t *testing.T) {
			h, again := halfStaged(t)
			outdatedHere(h)
			h.table = []mounts.Entry{at}
			err := again()
			if IsFinal(Code(err)) || !strings.Contains(err.Error(), "outdated") || !strings.Contains(err.Error(), at.Path) {
				t.Errorf("%s: %v", Code(err), err)
			}
			if stops(h) || h.status("v").Device == "" || len(h.table) != 1 {
				t.Errorf("did %q, device %q, mounts %+v", h.did, h.status("v").Device, h.table)
			}
		})
	}
}

func TestARepeatedStageThatFailsLeavesADeviceOfAnotherAttachment(t *testing.T) {
	for name, epoch := range map[string]int64{"later": 4, "earlier": 2} {
		h, again := halfStaged(t)
		outdatedHere(h)
		h.change("v", func(s *escache.VolumeStatus) { s.Epoch = epoch })
		if err := again(); Code(err) != codes.FailedPrecondition || stops(h) || h.status("v").Device == "" {
			t.Errorf("%s: %v; did %q, device %q", name, err, h.did, h.status("v").Device)
		}
	}
}

// It is attached for the next pod between the look and the call.
func TestADeviceOfALaterAttachmentIsNotStoppedByALateCall(t *testing.T) {
	for _, step := range []string{"flush", "stop"} {
		h, again := halfStaged(t)
		outdatedHere(h)
		h.before[step] = func() { h.change("v", func(s *escache.VolumeStatus) { s.Epoch = 4 }) }
		if err := again(); IsFinal(Code(err)) || h.status("v").Device == "" {
			t.Errorf("%s: %v; device %q", step, err, h.status("v").Device)
		}
	}
}

// Nothing of it may reach Ceph any more. NodeUnstageVolume gives it up.
func TestARepeatedStageThatFailsLeavesADeviceThatWasTakenOver(t *testing.T) {
	for name, change := range map[string]func(s *v1alpha1.CacheVolumeStatus, client string){
		"by the peer": func(s *v1alpha1.CacheVolumeStatus, _ string) {
			s.AttachedNode, s.Epoch, s.Outdated = "n2", 4, []string{"n1"}
		},
		"by force": func(s *v1alpha1.CacheVolumeStatus, client string) {
			s.AttachedNode, s.ClientAddress = "", ""
			s.Fenced = []v1alpha1.FencedClient{{Node: "n1", Address: client, Epoch: 3}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			h, again := halfStaged(t)
			change(&h.volumes["v"].Status, h.status("v").ClientAddress)
			if err := again(); IsFinal(Code(err)) || stops(h) || h.status("v").Device == "" {
				t.Fatalf("%v; did %q, device %q", err, h.did, h.status("v").Device)
			}
			if err := unstages(h, t.TempDir()); err != nil || h.status("v").Device != "" {
				t.Fatalf("%v; device %q", err, h.status("v").Device)
			}
			if err := again(); Code(err) != codes.FailedPrecondition {
				t.Error(err)
			}
		})
	}
}

// The first call has timed out, and escached goes on with it.
func TestARepeatedStageIsNotFinalWhileADevConnectRuns(t *testing.T) {
	h := newHost()
	h.attached("v")
	outdatedHere(h)
	h.change("v", func(s *escache.VolumeStatus) { s.Connecting = true })
	if err := h.stage(t); IsFinal(Code(err)) || !strings.Contains(err.Error(), "outdated") {
		t.Errorf("%s: %v", Code(err), err)
	}
	h.change("v", func(s *escache.VolumeStatus) { s.Connecting = false })
	if err := h.stage(t); Code(err) != codes.FailedPrecondition {
		t.Errorf("%s: %v", Code(err), err)
	}
}

// escached demotes the replica and unmaps the image if it is asked to stop.
func TestARepeatedStageThatFailsStopsWhatIsHalfConnected(t *testing.T) {
	h, again := halfStaged(t)
	outdatedHere(h)
	h.change("v", promoted)
	if err := again(); Code(err) != codes.FailedPrecondition || !slices.Contains(h.did, "stop") {
		t.Errorf("%v; did %q", err, h.did)
	}
}

// Nothing is dirty where there is no cache. If its record is damaged, escached cannot say so.
func TestARepeatedStageThatFailsStopsAMapWithoutACache(t *testing.T) {
	h := newHost()
	h.outside("v")
	again := halfStage(t, h)
	h.volumes["v"].Status.AttachedNode = ""
	h.failures["flush"] = &escache.Problem{Code: escache.CodeInternal}
	if err := again(); Code(err) != codes.FailedPrecondition || h.status("v").State != escache.StateAbsent {
		t.Errorf("%v; %+v", err, h.status("v"))
	}
}

// csi-node is killed while it gives the device back, and a new one is asked again.
func TestARepeatedStageThatFailsGoesOnAfterACrash(t *testing.T) {
	for _, step := range []string{"flush", "stop"} {
		t.Run(step, func(t *testing.T) {
			h, again := halfStaged(t)
			outdatedHere(h)
			killed := false
			h.before[step] = func() { killed = true; panic("killed") }
			func() {
				defer func() { _ = recover() }()
				_ = again()
			}()
			if !killed || h.status("v").Device == "" {
				t.Fatalf("did %q, device %q", h.did, h.status("v").Device)
			}
			if err := again(); Code(err) != codes.FailedPrecondition || h.status("v").Device != "" {
				t.Errorf("%v; device %q", err, h.status("v").Device)
			}
		})
	}
}

// A map that a first call has made, and which then took too long, is the repeated call's.
func TestARepeatedStageOfAReadOnlyVolumeIsNotFinalWhileItIsMapped(t *testing.T) {
	detached := func(h *host) { h.readOnly["r"].Status.Copies = nil }
	for name, c := range map[string]struct {
		change func(h *host, dir string)
		code   codes.Code
		mapped bool
	}{
		"detached since": {func(h *host, _ string) { detached(h) }, codes.FailedPrecondition, false},
		"another image": {func(h *host, _ string) {
			h.failures["map"] = &escache.Problem{Code: escache.CodeIdentityMismatch, Detail: "another id"}
		}, codes.FailedPrecondition, false},
		"escached does not unmap": {func(h *host, _ string) {
			detached(h)
			h.failures["unmap"] = &escache.Problem{Code: escache.CodeDeviceOpen, Detail: "open"}
		}, codes.Unavailable, true},
		"the API server starts": {func(h *host, _ string) { h.failures["read-only record"] = kube.ErrForbidden }, codes.Unavailable, true},
		"mounted": {func(h *host, dir string) {
			detached(h)
			for _, n := range h.plain {
				h.table = []mounts.Entry{{Path: dir, Device: n, FSType: "ext4", ReadOnly: true}}
			}
		}, codes.Unavailable, true},
		"a pod has the device": {func(h *host, _ string) {
			detached(h)
			for _, n := range h.plain {
				h.table = []mounts.Entry{{Path: "/pod", Device: n, Node: true, ReadOnly: true}}
			}
		}, codes.Unavailable, true},
	} {
		t.Run(name, func(t *testing.T) {
			h, dir := reading(), t.TempDir()
			stage := func() error {
				_, err := h.service().NodeStageVolume(t.Context(), stageOf("r", dir, readerCapability()))
				return err
			}
			h.failures["probe"] = command.ErrTimeout
			if err := stage(); Code(err) != codes.DeadlineExceeded || len(h.plain) != 1 {
				t.Fatalf("%v; %v", err, h.plain)
			}
			c.change(h, dir)
			mounted := len(h.table)
			for range 2 {
				if err := stage(); Code(err) != c.code || (len(h.plain) > 0) != c.mapped || len(h.table) != mounted {
					t.Fatalf("%s: %v; mapped %v, mounts %+v", Code(err), err, h.plain, h.table)
				}
			}
			if name == "mounted" && slices.Contains(h.did, "unmap") {
				t.Errorf("did %q", h.did)
			}
		})
	}
}

// It has neither of the two calls, so it has mapped nothing.
func TestAnOlderEscachedHasNothingToUnmap(t *testing.T) {
	h := reading()
	h.failures["map"] = &escache.Problem{Code: escache.CodeUnknownPath, Detail: "no such path"}
	h.failures["unmap"] = h.failures["map"]
	_, err := h.service().NodeStageVolume(t.Context(), stageOf("r", t.TempDir(), readerCapability()))
	if Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "upgrade") {
		t.Errorf("%s: %v", Code(err), err)
	}
}

// leftMap is a host whose escached was killed after it had mapped the image, and before it had stored the epoch.
type leftMap struct{ *host }

func (l leftMap) VolumeStatus(ctx context.Context, ref escache.VolumeRef) (*escache.VolumeStatus, error) {
	s, err := l.host.VolumeStatus(ctx, ref)
	if err == nil {
		s.ClientAddress = "10.0.0.1:0/7"
	}
	return s, err
}

func TestARepeatedStageThatFailsUnmapsWhatWasOnlyMapped(t *testing.T) {
	h := newHost()
	h.attached("v")
	outdatedHere(h)
	s := h.service()
	s.Cache = leftMap{h}
	stage := func() error {
		_, err := s.NodeStageVolume(t.Context(), stageOf("v", t.TempDir(), blockCapability()))
		return err
	}
	if err := stage(); Code(err) != codes.FailedPrecondition || !slices.Contains(h.did, "stop") || h.status("v").Epoch >= 3 {
		t.Errorf("%v; did %q in epoch %d", err, h.did, h.status("v").Epoch)
	}
	h.failures["stop"] = &escache.Problem{Code: escache.CodeStuck, Detail: "rbd unmap hangs"}
	if err := stage(); IsFinal(Code(err)) {
		t.Errorf("%s: %v", Code(err), err)
	}
}
