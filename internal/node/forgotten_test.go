package node

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/node/mounts"
)

// stagedByKubelet is staged at a path that a kubelet would choose.
func stagedByKubelet(t *testing.T) (*host, string) {
	t.Helper()
	h, dir := newHost(), filepath.Join(t.TempDir(), stagingName)
	if err := os.Mkdir(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	h.attached("v")
	if _, err := h.service().NodeStageVolume(t.Context(), stageOf("v", dir, mountCapability("ext4"))); err != nil {
		t.Fatal(err)
	}
	h.did = nil
	return h, dir
}

// look is one look for forgotten volumes, of what the watch has seen before.
func (h *host) look(t *testing.T) {
	t.Helper()
	seen := map[string]escache.VolumeStatus{"v": h.status("v")}
	s := h.service()
	s.Seen = func() map[string]escache.VolumeStatus { return seen }
	if err := s.unstageForgotten(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestAVolumeThatTheKubeletHasForgottenIsUnstaged: a kubelet that was restarted while it unstaged a volume, or before a pod got it, never
// unstages it. No other node could have it until this one is booted.
func TestAVolumeThatTheKubeletHasForgottenIsUnstaged(t *testing.T) {
	dirty := int64(4096)
	for _, row := range []struct {
		name  string
		state func(t *testing.T, h *host, staging string)
		want  []string
	}{
		{"staged", func(*testing.T, *host, string) {}, []string{"read", "read", "status", "unmount", "flush", "stop"}},
		{"unmounted, and not written back", func(_ *testing.T, h *host, _ string) {
			h.table = nil
			h.change("v", withDirty(&dirty))
		}, []string{"read", "read", "status", "flush", "stop"}},
		{"nobody asks for it", func(_ *testing.T, h *host, _ string) { h.volumes["v"].Status.UnstageEpoch = 0 }, []string{"read"}},
		{"it was asked of an earlier attachment", func(_ *testing.T, h *host, _ string) { h.volumes["v"].Status.UnstageEpoch = 2 }, []string{"read"}},
		{"another node has it", func(_ *testing.T, h *host, _ string) { h.volumes["v"].Status.AttachedNode = "n2" }, []string{"read"}},
		{"csi-controller writes it back", func(_ *testing.T, h *host, _ string) { h.volumes["v"].Status.FlushEpoch = 3 }, []string{"read"}},
		{"a pod has it", func(t *testing.T, h *host, staging string) {
			target := t.TempDir()
			if err := h.Bind(t.Context(), "v", staging, target, false); err != nil {
				t.Fatal(err)
			}
			h.did = nil
		}, nil},
		{"a pod gets it meanwhile", func(t *testing.T, h *host, staging string) {
			target := filepath.Join(t.TempDir(), "mount")
			h.before["read"] = func() {
				h.table = append(h.table, mounts.Entry{Path: target, Device: mounts.At(h.table, staging).Device})
			}
		}, []string{"read"}},
		{"it is not connected", func(_ *testing.T, h *host, _ string) { h.change("v", disconnected) }, nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			h, staging := stagedByKubelet(t)
			h.volumes["v"].Status.UnstageEpoch = 3
			row.state(t, h, staging)
			h.look(t)
			if !slices.Equal(h.did, row.want) {
				t.Errorf("did %q, want %q", h.did, row.want)
			}
		})
	}
}

// A pod has a volume without a filesystem at a path of its own; it is staged nowhere.
func TestABlockVolumeOfAPodIsNotForgotten(t *testing.T) {
	h, staging := stagedByKubelet(t)
	h.volumes["v"].Status.UnstageEpoch = 3
	h.table[0].Node = true
	if h.look(t); len(h.did) > 0 {
		t.Errorf("at %s: did %q", staging, h.did)
	}
}

// A volume whose unstaging cannot end yet is asked for again at the next look.
func TestAForgottenVolumeIsTriedAgain(t *testing.T) {
	h, _ := stagedByKubelet(t)
	h.volumes["v"].Status.UnstageEpoch = 3
	h.failures["flush"] = &escache.Problem{Code: escache.CodeCacheError, Detail: "Ceph does not take it"}
	h.look(t)
	if len(h.table) > 0 || h.status("v").Device == "" {
		t.Fatalf("mounts %+v, device %q", h.table, h.status("v").Device)
	}
	delete(h.failures, "flush")
	if h.look(t); h.status("v").Device != "" {
		t.Errorf("status %+v", h.status("v"))
	}
}
