package node

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/escache/escache-csi/internal/command"
	"github.com/escache/escache-csi/internal/node/blockdev"
	"github.com/escache/escache-csi/internal/node/mounts"
)

func publishOf(staging, target string, c *csi.VolumeCapability) *csi.NodePublishVolumeRequest {
	return &csi.NodePublishVolumeRequest{VolumeId: "v", StagingTargetPath: staging, TargetPath: target, VolumeCapability: c}
}

func TestPublishAndUnpublish(t *testing.T) {
	for _, kind := range []string{"mount", "block"} {
		t.Run(kind, func(t *testing.T) {
			h, staging := staged(t)
			capability := mountCapability("ext4")
			if kind == "block" {
				capability = blockCapability()
				h.take(staging)
			}
			target := filepath.Join(t.TempDir(), "target")
			for range 2 { // the second time, after a restart, nothing more is mounted
				if _, err := h.service().NodePublishVolume(t.Context(), publishOf(staging, target, capability)); err != nil {
					t.Fatal(err)
				}
			}
			info, err := os.Lstat(target)
			if err != nil || info.IsDir() != (kind == "mount") {
				t.Errorf("target: %v %v", info, err)
			}
			if at := mounts.At(h.table, target); at == nil || at.Node != (kind == "block") || len(mounts.Of(h.table, at.Device)) > 2 {
				t.Errorf("mounts %+v", h.table)
			}
			// Neither escached nor the API is needed to let a pod end.
			h.failures["read"], h.failures["status"] = command.ErrStuck, command.ErrStuck
			for range 2 {
				if _, err := h.service().NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: "v", TargetPath: target}); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := os.Lstat(target); !os.IsNotExist(err) {
				t.Errorf("the target is still there: %v", err)
			}
		})
	}
}

func TestPublishReadOnly(t *testing.T) {
	h, staging := staged(t)
	target := filepath.Join(t.TempDir(), "target")
	r := publishOf(staging, target, mountCapability("ext4"))
	r.Readonly = true
	if _, err := h.service().NodePublishVolume(t.Context(), r); err != nil || !mounts.At(h.table, target).ReadOnly {
		t.Fatalf("%v %+v", err, h.table)
	}
	r.Readonly = false
	if _, err := h.service().NodePublishVolume(t.Context(), r); Code(err) != codes.AlreadyExists {
		t.Errorf("writable at the same path: %v", err)
	}
}

// TestAReadOnlyPublishMendsAMountThatIsWritable: an earlier version was killed after it had bound the volume and before it had
// made that mount read-only. Or it was not killed, and only its own mount namespace had the mount read-only.
func TestAReadOnlyPublishMendsAMountThatIsWritable(t *testing.T) {
	for _, kind := range []string{"mount", "block", "block, for many nodes"} {
		t.Run(kind, func(t *testing.T) {
			h, staging := newHost(), t.TempDir()
			r := publishOf(staging, filepath.Join(t.TempDir(), "target"), mountCapability("ext4"))
			r.Readonly = true
			switch kind {
			case "mount":
				h, r.StagingTargetPath = staged(t)
			case "block":
				r.VolumeCapability = blockCapability()
				h.attached("v")
				_, err := h.service().NodeStageVolume(t.Context(), stageOf("v", staging, r.GetVolumeCapability()))
				check(t, err)
			default:
				h, r.VolumeId, r.VolumeCapability = reading(), "r", blockCapability()
				r.VolumeCapability.AccessMode.Mode = csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
				_, err := h.service().NodeStageVolume(t.Context(), stageOf("r", staging, r.GetVolumeCapability()))
				check(t, err)
			}
			mounted := len(h.table)
			_, err := h.service().NodePublishVolume(t.Context(), r)
			check(t, err)
			writable := mounts.At(h.table, r.GetTargetPath())
			writable.ReadOnly = false

			h.failures["unmount"] = mounts.ErrBusy
			if _, err := h.service().NodePublishVolume(t.Context(), r); Code(err) == codes.OK || IsFinal(Code(err)) {
				t.Errorf("while it is busy, which the kubelet must try again: %v", err)
			}
			delete(h.failures, "unmount")
			_, err = h.service().NodePublishVolume(t.Context(), r)
			check(t, err)
			if at := mounts.At(h.table, r.GetTargetPath()); at == nil || !at.ReadOnly || at.Node != (kind != "mount") || len(h.table) != mounted+1 {
				t.Errorf("mounts %+v", h.table)
			}
			h.did = nil
			_, err = h.service().NodePublishVolume(t.Context(), r) // as the kubelet does for a running pod after its own restart
			check(t, err)
			if slices.Contains(h.did, "unmount") || slices.Contains(h.did, "bind") {
				t.Errorf("a mount that is read-only is left alone; did %q", h.did)
			}
		})
	}
}

func TestAReadOnlyPublishUnmountsNothingElse(t *testing.T) {
	for name, change := range map[string]func(*mounts.Entry){
		"another device":        func(e *mounts.Entry) { e.Device = blockdev.Number{Major: 8, Minor: 1} },
		"the other access type": func(e *mounts.Entry) { e.Node = true },
	} {
		t.Run(name, func(t *testing.T) {
			h, staging := staged(t)
			target := filepath.Join(t.TempDir(), "target")
			_, err := h.service().NodePublishVolume(t.Context(), publishOf(staging, target, mountCapability("ext4")))
			check(t, err)
			change(mounts.At(h.table, target))
			r := publishOf(staging, target, mountCapability("ext4"))
			r.Readonly = true
			if _, err := h.service().NodePublishVolume(t.Context(), r); Code(err) != codes.AlreadyExists || slices.Contains(h.did, "unmount") {
				t.Errorf("%v; did %q", err, h.did)
			}
		})
	}
}

func TestPublishAtTwoPathsFollowsTheAccessMode(t *testing.T) {
	rows := map[csi.VolumeCapability_AccessMode_Mode]codes.Code{
		csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:  codes.OK,
		csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER: codes.FailedPrecondition,
		csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER:        codes.FailedPrecondition,
	}
	for mode, want := range rows {
		h, staging := staged(t)
		capability := mountCapability("ext4")
		capability.AccessMode.Mode = mode
		dir := t.TempDir()
		if _, err := h.service().NodePublishVolume(t.Context(), publishOf(staging, dir+"/a", capability)); err != nil {
			t.Fatal(err)
		}
		_, err := h.service().NodePublishVolume(t.Context(), publishOf(staging, dir+"/b", capability))
		if Code(err) != want {
			t.Errorf("%s: %v, want %s", mode, err, want)
		}
		if _, err := os.Lstat(dir + "/b"); want != codes.OK && !os.IsNotExist(err) {
			t.Errorf("%s: a refused publish left its target", mode)
		}
	}
}

func TestPublishRefusesBadInputAndLeavesNothingBehind(t *testing.T) {
	rows := []struct {
		name     string
		change   func(h *host, r *csi.NodePublishVolumeRequest)
		code     codes.Code
		sentence string
	}{
		{"not staged", func(h *host, r *csi.NodePublishVolumeRequest) { h.take(r.GetStagingTargetPath()) },
			codes.FailedPrecondition, "call NodeStageVolume first"},
		{"block, not connected", func(h *host, r *csi.NodePublishVolumeRequest) {
			h.take(r.GetStagingTargetPath())
			h.change("v", disconnected)
			r.VolumeCapability = blockCapability()
		}, codes.FailedPrecondition, "call NodeStageVolume first"},
		{"block, staged as a filesystem", func(_ *host, r *csi.NodePublishVolumeRequest) { r.VolumeCapability = blockCapability() },
			codes.FailedPrecondition, "staged as a filesystem"},
		{"another fsType", func(_ *host, r *csi.NodePublishVolumeRequest) { r.VolumeCapability = mountCapability("xfs") },
			codes.FailedPrecondition, "ext4"},
		{"device gone", func(h *host, _ *csi.NodePublishVolumeRequest) { h.dead[h.table[0].Device] = true }, codes.FailedPrecondition, "gone"},
		{"turned read-only", func(h *host, _ *csi.NodePublishVolumeRequest) { h.table[0].FilesystemReadOnly = true },
			codes.FailedPrecondition, "read-only"},
		{"target is a symbolic link", func(_ *host, r *csi.NodePublishVolumeRequest) { _ = os.Symlink("/etc", r.GetTargetPath()) },
			codes.FailedPrecondition, "symbolic link"},
		{"target is a file", func(_ *host, r *csi.NodePublishVolumeRequest) { _ = os.WriteFile(r.GetTargetPath(), nil, 0o600) },
			codes.FailedPrecondition, "another kind"},
		{"parent of the target is missing", func(_ *host, r *csi.NodePublishVolumeRequest) { r.TargetPath += "/a/b" },
			codes.FailedPrecondition, "does not exist"},
		{"parent of the target is a symbolic link", func(_ *host, r *csi.NodePublishVolumeRequest) {
			_ = os.Symlink(filepath.Dir(r.GetTargetPath()), r.GetTargetPath())
			r.TargetPath += "/x"
		}, codes.FailedPrecondition, "symbolic link"},
		{"no target", func(_ *host, r *csi.NodePublishVolumeRequest) { r.TargetPath = "" }, codes.InvalidArgument, "target path"},
		{"no staging path", func(_ *host, r *csi.NodePublishVolumeRequest) { r.StagingTargetPath = "" }, codes.InvalidArgument, "staging"},
		{"no capability", func(_ *host, r *csi.NodePublishVolumeRequest) { r.VolumeCapability = nil }, codes.InvalidArgument, "capability"},
		{"something else is there", func(h *host, r *csi.NodePublishVolumeRequest) {
			h.table = append(h.table, mounts.Entry{Path: r.GetTargetPath(), Device: blockdev.Number{Major: 8, Minor: 1}})
		}, codes.AlreadyExists, "8:1"},
		{"mount fails", func(h *host, _ *csi.NodePublishVolumeRequest) { h.failures["bind"] = command.ErrTimeout }, codes.DeadlineExceeded, ""},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			h, staging := staged(t)
			dir := t.TempDir()
			r := publishOf(staging, filepath.Join(dir, "target"), mountCapability("ext4"))
			row.change(h, r)
			before, mounted := list(t, dir), len(h.table)
			_, err := h.service().NodePublishVolume(t.Context(), r)
			if Code(err) != row.code || !strings.Contains(err.Error(), row.sentence) {
				t.Fatalf("%s: %v; want %s and %q", Code(err), err, row.code, row.sentence)
			}
			if after := list(t, dir); !slices.Equal(before, after) || len(h.table) != mounted {
				t.Errorf("left behind: %q, mounts %+v", after, h.table)
			}
		})
	}
}

func list(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestUnpublishNeverRemovesMoreThanTheMountPoint(t *testing.T) {
	h := newHost()
	dir := filepath.Join(t.TempDir(), "target")
	if err := os.MkdirAll(filepath.Join(dir, "data"), 0o700); err != nil {
		t.Fatal(err)
	}
	_, err := h.service().NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: "v", TargetPath: dir})
	if Code(err) != codes.FailedPrecondition {
		t.Errorf("a directory with data: %v", err)
	}
	link := dir + "-link"
	_ = os.Symlink(dir, link)
	if _, err := h.service().NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: "v", TargetPath: link}); err == nil {
		t.Error("a symbolic link was removed")
	}
	if _, err := os.Stat(filepath.Join(dir, "data")); err != nil {
		t.Error(err)
	}
}
