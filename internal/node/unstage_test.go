package node

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/command"
	"github.com/escache/escache-csi/internal/escacheclient"
	"github.com/escache/escache-csi/internal/node/kube"
	"github.com/escache/escache-csi/internal/node/mounts"
)

func unstageOf(path string) *csi.NodeUnstageVolumeRequest {
	return &csi.NodeUnstageVolumeRequest{VolumeId: "v", StagingTargetPath: path}
}

func TestUnstageUnmountsFlushesAndStops(t *testing.T) {
	h, dir := staged(t)
	dirty := int64(4096)
	h.change("v", withDirty(&dirty))
	if _, err := h.service().NodeUnstageVolume(t.Context(), unstageOf(dir)); err != nil {
		t.Fatal(err)
	}
	if want := []string{"read", "status", "unmount", "flush", "stop"}; !slices.Equal(h.did, want) {
		t.Errorf("did %q, want %q", h.did, want)
	}
	if len(h.table) != 0 || h.status("v").Device != "" {
		t.Errorf("mounts %+v, device %q", h.table, h.status("v").Device)
	}
	h.did = nil
	if _, err := h.service().NodeUnstageVolume(t.Context(), unstageOf(dir)); err != nil {
		t.Fatal(err)
	}
	if slices.Contains(h.did, "flush") {
		t.Errorf("the second time did %q", h.did)
	}
}

// TestUnstageDoesNotSucceedWhileADevConnectRuns: the call that asked for it has timed out, and escached goes
// on with it. The device that comes would be nobody's, and keep the next node out.
func TestUnstageDoesNotSucceedWhileADevConnectRuns(t *testing.T) {
	h, dir := newHost(), t.TempDir()
	h.attached("v")
	h.failures["stop"] = &escache.Problem{Code: escache.CodeBusy, Detail: "dev_connect has been running for 2m0s"}
	if _, err := h.service().NodeUnstageVolume(t.Context(), unstageOf(dir)); Code(err) != codes.Aborted ||
		!strings.Contains(err.Error(), "dev_connect") {
		t.Errorf("%s: %v", Code(err), err)
	}
	h.failures["stop"] = &escache.Problem{Code: escache.CodeNotFound, Detail: "no complete replica"}
	if _, err := h.service().NodeUnstageVolume(t.Context(), unstageOf(dir)); err != nil {
		t.Error(err)
	}
}

func TestUnstageSucceedsOnlyWhenClean(t *testing.T) {
	rows := []struct {
		name    string
		change  func(h *host)
		code    codes.Code
		mounted bool // what refuses before anything is done leaves the mount
	}{
		{"time is up", func(h *host) {
			dirty := int64(8192)
			h.change("v", withDirty(&dirty))
			h.escached.FlushAtMost(4096)
		}, codes.DeadlineExceeded, false},
		{"Ceph does not answer", func(h *host) { h.failures["flush"] = &escache.Problem{Code: escache.CodeCephUnavailable} }, codes.Unavailable, false},
		{"escached does not answer", func(h *host) { h.failures["status"] = escacheclient.ErrUnreachable }, codes.Unavailable, true},
		{"the device is open", func(h *host) { h.failures["stop"] = &escache.Problem{Code: escache.CodeDeviceOpen} }, codes.FailedPrecondition, false},
		{"a process has a file open", func(h *host) { h.failures["unmount"] = mounts.ErrBusy }, codes.FailedPrecondition, true},
		{"umount hangs in the kernel", func(h *host) { h.failures["unmount"] = command.ErrStuck }, codes.Unavailable, true},
		{"the Kubernetes API does not answer", func(h *host) { h.failures["read"] = kube.ErrUnavailable }, codes.Unavailable, true},
		{"I/O is frozen", func(h *host) { h.change("v", frozen) }, codes.Unavailable, true},
		{"a pod has it", func(h *host) {
			h.table = append(h.table, mounts.Entry{Path: "/pod", Device: h.table[0].Device, FSType: "ext4"})
		}, codes.FailedPrecondition, true},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			h, dir := staged(t)
			row.change(h)
			_, err := h.service().NodeUnstageVolume(t.Context(), unstageOf(dir))
			if Code(err) != row.code {
				t.Fatalf("%s: %v; want %s", Code(err), err, row.code)
			}
			if mounted := mounts.At(h.table, dir) != nil; mounted != row.mounted {
				t.Errorf("mounted %v", mounted)
			}
		})
	}
}

// After a reboot there is no device, and the replica may hold data that is not in Ceph.
func TestUnstageWritesBackWhatAStandbyReplicaHolds(t *testing.T) {
	dirty, zero := int64(8192), int64(0)
	rows := []struct {
		name      string
		change    func(h *host)
		reconnect bool
	}{
		{"dirty", func(h *host) { h.change("v", withDirty(&dirty)) }, true},
		{"nobody knows", func(h *host) { h.change("v", withDirty(nil)) }, true},
		{"clean", func(h *host) { h.change("v", withDirty(&zero)) }, false},
		{"dirty, but the truth is in Ceph", func(h *host) {
			h.change("v", withDirty(&dirty))
			h.volumes["v"].Status.Authority = v1alpha1.AuthorityCeph
		}, false},
		{"dirty, but outdated", func(h *host) {
			h.change("v", withDirty(&dirty))
			h.volumes["v"].Status.Outdated = []string{"n1"}
		}, false},
		{"dirty, but another node has it", func(h *host) {
			h.change("v", withDirty(&dirty))
			h.volumes["v"].Status.AttachedNode = "n2"
		}, false},
		{"dirty, and Primary without a device", func(h *host) {
			h.change("v", withDirty(&dirty))
			h.change("v", promoted)
		}, true},
		{"clean, and Primary without a device", func(h *host) {
			h.change("v", withDirty(&zero))
			h.change("v", promoted)
		}, false},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			h := newHost()
			h.attached("v")
			row.change(h)
			if _, err := h.service().NodeUnstageVolume(t.Context(), unstageOf(t.TempDir())); err != nil {
				t.Fatal(err)
			}
			if did := slices.Contains(h.did, "connect") && slices.Contains(h.did, "flush"); did != row.reconnect || !slices.Contains(h.did, "stop") {
				t.Errorf("did %q", h.did)
			}
		})
	}
}

// Whoever has removed the device did not say that it was clean.
func TestUnstageDoesNotSucceedIfTheDeviceGoesBeforeItIsFlushed(t *testing.T) {
	h, dir := staged(t)
	dirty := int64(8192)
	h.change("v", withDirty(&dirty))
	h.before["flush"] = func() { h.change("v", disconnected) }
	if _, err := h.service().NodeUnstageVolume(t.Context(), unstageOf(dir)); err == nil {
		t.Errorf("did %q, %d bytes are dirty", h.did, *h.status("v").DirtyBytes)
	}
	h.did = nil
	if _, err := h.service().NodeUnstageVolume(t.Context(), unstageOf(dir)); err != nil || *h.status("v").DirtyBytes > 0 {
		t.Errorf("%v; did %q, %d bytes are dirty", err, h.did, *h.status("v").DirtyBytes)
	}
}

// The host was booted, and something else has the memory for the cache since. The next host has all that this one has.
func TestUnstageLeavesToTheOtherHostWhatItHasNoMemoryFor(t *testing.T) {
	noRoom := &escache.Problem{Code: escache.CodeNoRoom, Detail: "too little memory"}
	rows := []struct {
		name    string
		connect error
		change  func(h *host)
		code    codes.Code
	}{
		{"the other copy is current", noRoom, func(*host) {}, codes.OK},
		{"the other copy is current, and this one is Primary", noRoom, func(h *host) { h.change("v", promoted) }, codes.OK},
		{"its disk was not found after a boot", &escache.Problem{Code: escache.CodeInternal}, func(h *host) { h.change("v", withoutDisk) }, codes.OK},
		{"its disk was not found, and the other copy is outdated", &escache.Problem{Code: escache.CodeInternal}, func(h *host) {
			h.change("v", withoutDisk)
			h.volumes["v"].Status.Outdated = []string{"n2"}
		}, codes.Internal},
		{"the other copy is outdated", noRoom, func(h *host) { h.volumes["v"].Status.Outdated = []string{"n2"} }, codes.ResourceExhausted},
		{"escached still connects it", noRoom, func(h *host) { h.failures["stop"] = &escache.Problem{Code: escache.CodeBusy} }, codes.Aborted},
		{"something else is wrong", &escache.Problem{Code: escache.CodeCephUnavailable}, func(*host) {}, codes.Unavailable},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			h := newHost()
			h.attached("v")
			dirty := int64(8192)
			h.change("v", withDirty(&dirty))
			h.failures["connect"] = row.connect
			row.change(h)
			before := h.status("v").DirtyBytes
			_, err := h.service().NodeUnstageVolume(t.Context(), unstageOf(t.TempDir()))
			if Code(err) != row.code {
				t.Errorf("%s: %v; want %s", Code(err), err, row.code)
			}
			if left := h.status("v").DirtyBytes; slices.Contains(h.did, "flush") || !reflect.DeepEqual(left, before) {
				t.Errorf("did %q, %v bytes are dirty", h.did, left)
			}
			if row.code == codes.OK && !slices.Contains(h.did, "stop") {
				t.Errorf("did %q", h.did)
			}
		})
	}
}

func withoutDisk(s *escache.VolumeStatus) {
	s.State, s.DiskState, s.DirtyBytes = escache.StateError, escache.DiskDiskless, nil
}

// The second host was lost before the volume was connected for the first time since its replicas were created, so no
// connect succeeds any more. Nothing was ever written to this replica.
func TestUnstageOfAReplicaThatWasNeverUsed(t *testing.T) {
	h := newHost()
	h.attached("v")
	zero := int64(0)
	h.change("v", func(s *escache.VolumeStatus) { s.DiskState, s.DirtyBytes = escache.DiskInconsistent, &zero })
	h.failures["connect"] = &escache.Problem{Code: escache.CodePeerUnavailable, Detail: "n2 does not answer"}
	if _, err := h.service().NodeUnstageVolume(t.Context(), unstageOf(t.TempDir())); err != nil {
		t.Fatal(err)
	}
}

// csi-node was started again while it staged the volume, and escached still connects it: its device
// would be nobody's, and would keep other nodes out.
func TestUnstageDoesNotSucceedWhileTheVolumeIsBeingConnected(t *testing.T) {
	zero := int64(0)
	rows := []struct {
		name   string
		change func(h *host)
		refuse escache.Code
		code   codes.Code
	}{
		{"drained", func(h *host) { h.volumes["v"].Status.Authority = v1alpha1.AuthorityCeph }, escache.CodeBusy, codes.Aborted},
		{"outdated", func(h *host) { h.volumes["v"].Status.Outdated = []string{"n1"} }, escache.CodeBusy, codes.Aborted},
		{"taken by force", func(h *host) { h.volumes["v"].Status.AttachedNode = "" }, escache.CodeBusy, codes.Aborted},
		{"clean when it was asked", func(h *host) { h.change("v", withDirty(&zero)) }, escache.CodeBusy, codes.Aborted},
		{"the replica is gone", func(h *host) { h.volumes["v"].Status.Authority = v1alpha1.AuthorityCeph }, escache.CodeNotFound, codes.OK},
		{"an escached that knows no such device", func(h *host) { h.volumes["v"].Status.Authority = v1alpha1.AuthorityCeph },
			escache.CodeNotConnected, codes.OK},
		{"nothing is under way", func(h *host) { h.volumes["v"].Status.Authority = v1alpha1.AuthorityCeph }, "", codes.OK},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			h := newHost()
			h.attached("v")
			row.change(h)
			if row.refuse != "" {
				h.failures["stop"] = &escache.Problem{Code: row.refuse}
			}
			_, err := h.service().NodeUnstageVolume(t.Context(), unstageOf(t.TempDir()))
			if Code(err) != row.code || slices.Contains(h.did, "connect") {
				t.Errorf("%s: %v; want %s; did %q", Code(err), err, row.code, h.did)
			}
		})
	}
}

func TestUnstageCleansUpAfterADeadDevice(t *testing.T) {
	h, dir := staged(t)
	h.dead[h.table[0].Device] = true
	h.failures["unmount"] = &command.ExitError{Command: "umount", Code: 32, Stderr: "i/o error"}
	h.change("v", disconnected)
	if _, err := h.service().NodeUnstageVolume(t.Context(), unstageOf(dir)); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(h.did, "detach") || len(h.table) != 0 {
		t.Errorf("did %q, mounts %+v", h.did, h.table)
	}
}

func TestUnstageOfAVolumeThatIsGone(t *testing.T) {
	h, dir := staged(t)
	delete(h.volumes, "v")
	if _, err := h.service().NodeUnstageVolume(t.Context(), unstageOf(dir)); err != nil || len(h.table) != 0 {
		t.Errorf("%v, mounts %+v", err, h.table)
	}
	_, err := h.service().NodeUnstageVolume(t.Context(), &csi.NodeUnstageVolumeRequest{VolumeId: "v"})
	if Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "staging target path") {
		t.Errorf("%v", err)
	}
}

// The host was cut off, and another has the volume now: the frozen device must neither make the
// unstage hang nor stay.
func TestUnstageGivesUpWhatWasTakenOver(t *testing.T) {
	takenOver := func(h *host) {
		record := &h.volumes["v"].Status
		record.AttachedNode, record.Epoch, record.Outdated = "n2", record.Epoch+1, []string{"n1"}
		h.change("v", frozen)
	}
	rows := []struct {
		name   string
		change func(h *host)
		did    []string
		code   codes.Code
		gone   bool
	}{
		{"frozen and mounted", takenOver, []string{"read", "status", "abandon", "unmount", "abandon"}, codes.OK, true},
		{"umount fails with the device", func(h *host) {
			takenOver(h)
			h.failures["unmount"] = &command.ExitError{Command: "umount", Code: 32, Stderr: "i/o error"}
		}, []string{"read", "status", "abandon", "unmount", "detach", "abandon"}, codes.OK, true},
		{"attached nowhere by now", func(h *host) {
			takenOver(h)
			h.volumes["v"].Status.AttachedNode = ""
		}, []string{"read", "status", "abandon", "unmount", "abandon"}, codes.OK, true},
		{"taken over twice", func(h *host) {
			takenOver(h)
			h.volumes["v"].Status.Epoch++
		}, []string{"read", "status", "abandon", "unmount", "abandon"}, codes.OK, true},
		{"not mounted any more", func(h *host) {
			takenOver(h)
			h.table = nil
		}, []string{"read", "status", "abandon"}, codes.OK, true},
		{"escached does not find it on record", func(h *host) {
			takenOver(h)
			h.volumes["v"].Status.Outdated = nil
		}, []string{"read", "status", "abandon"}, codes.FailedPrecondition, false},
		{"a pod has it", func(h *host) {
			takenOver(h)
			h.table = append(h.table, mounts.Entry{Path: "/pod", Device: h.table[0].Device, FSType: "ext4"})
		}, []string{"read", "status"}, codes.FailedPrecondition, false},
		{"taken by force, with the link up", func(h *host) {
			record := &h.volumes["v"].Status
			record.AttachedNode = ""
			record.Fenced = []v1alpha1.FencedClient{{Node: "n1", Address: h.status("v").ClientAddress, Epoch: record.Epoch}}
		}, []string{"read", "status", "abandon", "unmount", "abandon"}, codes.OK, true},
		{"the record has it attached here anew", func(h *host) {
			takenOver(h)
			h.volumes["v"].Status.AttachedNode = "n1"
		}, []string{"read", "status"}, codes.Unavailable, false},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			h, dir := staged(t)
			epoch := h.status("v").Epoch
			row.change(h)
			_, err := h.service().NodeUnstageVolume(t.Context(), unstageOf(dir))
			if seen := h.status("v").Epoch; seen > epoch+1 {
				t.Errorf("the host has seen epoch %d: until that has begun, what it has of epoch %d cannot be discarded", seen, epoch)
			}
			if Code(err) != row.code || !slices.Equal(h.did, row.did) {
				t.Errorf("%s: %v; did %q, want %s and %q", Code(err), err, h.did, row.code, row.did)
			}
			if gone := len(h.table) == 0 && h.status("v").Device == ""; gone != row.gone {
				t.Errorf("mounts %+v, device %q", h.table, h.status("v").Device)
			}
		})
	}
}
