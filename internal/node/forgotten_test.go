package node

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
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

// TestADeviceThatWasTakenIsNotKeptByItsStaging: the volume was taken from this node by force, and the next pod came to this node before
// the kubelet had unstaged it. Then the kubelet does not unstage it, and waits for the attachment. That waits for the device to go.
func TestADeviceThatWasTakenIsNotKeptByItsStaging(t *testing.T) {
	taken := func(h *host, by string) {
		s := &h.volumes["v"].Status
		s.Fenced = []v1alpha1.FencedClient{{Node: "n1", Address: h.status("v").ClientAddress, Epoch: s.Epoch}}
		s.AttachedNode, s.Epoch, s.ClientAddress, s.Outdated = by, s.Epoch+1, "", []string{"n1"}
	}
	for _, row := range []struct {
		name    string
		state   func(h *host, staging string)
		want    []string
		mounted bool
	}{
		{"no node has it", func(h *host, _ string) { taken(h, "") },
			[]string{"read", "read", "status", "abandon", "unmount", "abandon"}, false},
		{"another node has it", func(h *host, _ string) { taken(h, "n2") },
			[]string{"read", "read", "status", "abandon", "unmount", "abandon"}, false},
		{"this node has it again", func(h *host, _ string) { taken(h, "n1") }, []string{"read", "status", "unmount"}, false},
		{"this node has it again, and its I/O is frozen", func(h *host, _ string) {
			taken(h, "n1")
			h.change("v", frozen)
		}, []string{"read", "status"}, true},
		{"this node has it again, and has staged it anew", func(h *host, _ string) {
			taken(h, "n1")
			h.before["read"] = func() { h.change("v", func(s *escache.VolumeStatus) { s.ClientAddress = "10.0.0.1:0/99" }) }
		}, []string{"read", "status"}, true},
		{"a pod has it", func(h *host, staging string) {
			taken(h, "n1")
			h.table = append(h.table, mounts.Entry{Path: "/pod/mount", Device: mounts.At(h.table, staging).Device})
		}, nil, true},
		{"a pod gets it meanwhile", func(h *host, staging string) {
			taken(h, "n1")
			h.before["read"] = func() {
				h.table = append(h.table, mounts.Entry{Path: "/pod/mount", Device: mounts.At(h.table, staging).Device})
			}
		}, []string{"read", "status"}, true},
		{"it is staged nowhere", func(h *host, _ string) {
			taken(h, "n1")
			h.table = nil
		}, []string{"read", "status"}, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			h, staging := stagedByKubelet(t)
			row.state(h, staging)
			h.look(t)
			if !slices.Equal(h.did, row.want) || (mounts.At(h.table, staging) != nil) != row.mounted {
				t.Errorf("did %q, want %q; mounts %+v", h.did, row.want, h.table)
			}
		})
	}
}
