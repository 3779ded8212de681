package node

import (
	"encoding/json"
	"errors"
	"os"
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
	fs "github.com/escache/escache-csi/internal/node/filesystem"
	"github.com/escache/escache-csi/internal/node/kube"
	"github.com/escache/escache-csi/internal/node/mounts"
)

func TestStageAsksTheRecordThenConnectsFormatsAndMounts(t *testing.T) {
	h, dir := newHost(), t.TempDir()
	h.attached("v")
	if _, err := h.service().NodeStageVolume(t.Context(), stageOf("v", dir, mountCapability(""))); err != nil {
		t.Fatal(err)
	}
	want := []string{"read", "status", "ask", "read", "connect", "record client", "probe", "annotate", "mkfs", "annotate", "mount"}
	if !slices.Equal(h.did, want) {
		t.Errorf("did %q, want %q", h.did, want)
	}
	at := mounts.At(h.table, dir)
	if at == nil || at.FSType != "ext4" || !slices.Contains(at.Options, "errors=remount-ro") {
		t.Errorf("mounted %+v", at)
	}
	record := &fs.Record{}
	if err := json.Unmarshal([]byte(h.volumes["v"].Annotations[v1alpha1.AnnotationFilesystem]), record); err != nil ||
		record.State != fs.Formatted || record.Type != "ext4" || record.Node != "n1" || record.Epoch != 3 || record.ImageID != imageID("v") {
		t.Errorf("record %+v %v", record, err)
	}
	// And again, also after a restart of csi-node: nothing is done twice.
	h.did = nil
	if _, err := h.service().NodeStageVolume(t.Context(), stageOf("v", dir, mountCapability("ext4"))); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(h.did, []string{"read", "status", "connect"}) || len(h.table) != 1 {
		t.Errorf("the second time did %q, %d mounts", h.did, len(h.table))
	}
}

// TestAFencedClientIsNotUsed: the node lost the volume by force, kept its device all the time, and
// gets the volume again. What is written back over the old map fails.
func TestAFencedClientIsNotUsed(t *testing.T) {
	h := newHost()
	h.attached("v")
	stage := func() error {
		_, err := h.service().NodeStageVolume(t.Context(), stageOf("v", t.TempDir(), blockCapability()))
		return err
	}
	if err := stage(); err != nil {
		t.Fatal(err)
	}
	old := h.status("v").ClientAddress
	s := &h.volumes["v"].Status
	s.Fenced, s.ClientAddress = []v1alpha1.FencedClient{{Node: "n1", Address: old, Epoch: s.Epoch}}, ""
	if err := stage(); err != nil {
		t.Fatal(err)
	}
	if now := h.status("v").ClientAddress; now == old || h.volumes["v"].Status.ClientAddress != now {
		t.Errorf("the client is %s, on record is %s, and %s is fenced", now, h.volumes["v"].Status.ClientAddress, old)
	}
}

func TestStageOfABlockVolumeOnlyConnects(t *testing.T) {
	h := newHost()
	h.attached("v")
	if _, err := h.service().NodeStageVolume(t.Context(), stageOf("v", t.TempDir(), blockCapability())); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(h.did, []string{"read", "status", "ask", "read", "connect", "record client"}) || len(h.table) != 0 {
		t.Errorf("did %q, mounts %v", h.did, h.table)
	}
}

// The volume is detached from this node while it connects: the device is stopped again, and nothing
// has used it.
func TestStageGivesBackWhatWasTakenWhileItConnected(t *testing.T) {
	h := newHost()
	h.attached("v")
	h.before["record client"] = func() {
		v := h.volumes["v"]
		v.Status.AttachedNode, v.ResourceVersion = "", "taken"
	}
	_, err := h.service().NodeStageVolume(t.Context(), stageOf("v", t.TempDir(), mountCapability("ext4")))
	if Code(err) != codes.FailedPrecondition {
		t.Error(err)
	}
	want := []string{"read", "status", "ask", "read", "connect", "record client", "read"}
	if !slices.Equal(h.did[:min(len(h.did), len(want))], want) || slices.Contains(h.did, "probe") || !slices.Contains(h.did, "stop") {
		t.Errorf("did %q", h.did)
	}
	if h.volumes["v"].Status.ClientAddress != "" || h.status("v").Device != "" {
		t.Errorf("client on record %q, device %q", h.volumes["v"].Status.ClientAddress, h.status("v").Device)
	}
}

// Other writers change the record all the time; only the end of the attachment makes the stage
// fail.
func TestStageRecordsItsClientAgainstOtherWriters(t *testing.T) {
	h := newHost()
	h.attached("v")
	h.before["record client"] = func() { h.volumes["v"].ResourceVersion = "another" }
	if _, err := h.service().NodeStageVolume(t.Context(), stageOf("v", t.TempDir(), mountCapability("ext4"))); err != nil {
		t.Fatal(err)
	}
	if address := h.volumes["v"].Status.ClientAddress; address != "10.0.0.1:0/1" {
		t.Errorf("client on record %q", address)
	}
}

// A volume whose truth is in Ceph, drained and attached, is staged again after a reboot: nothing
// may become dirty.
func TestStageConnectsWritingThroughWhileTheTruthIsInCeph(t *testing.T) {
	h := newHost()
	h.attached("v")
	h.volumes["v"].Status.Authority = v1alpha1.AuthorityCeph
	if _, err := h.service().NodeStageVolume(t.Context(), stageOf("v", t.TempDir(), mountCapability(""))); err != nil {
		t.Fatal(err)
	}
	if mode := h.status("v").Mode; mode != escache.ModeWritethrough {
		t.Errorf("mode %q", mode)
	}
}

// The controller asks whether the volume is drained, and the device writes through. The pod then goes
// and comes back: the volume is staged again by a record that still says Cache, so the new device
// writes back. Now the controller records that the truth is in Ceph. The device must not be used.
func TestStageDoesNotUseADeviceThatWritesBackOnceTheTruthIsInCeph(t *testing.T) {
	h := newHost()
	h.attached("v")
	h.before["record client"] = func() {
		v := h.volumes["v"]
		v.ResourceVersion, v.Status.Authority = "another", v1alpha1.AuthorityCeph
	}
	path := t.TempDir()
	stage := func() error {
		_, err := h.service().NodeStageVolume(t.Context(), stageOf("v", path, mountCapability("ext4")))
		return err
	}
	if err := stage(); Code(err) != codes.FailedPrecondition || h.status("v").Device != "" {
		t.Fatalf("%v, device %q in mode %q", err, h.status("v").Device, h.status("v").Mode)
	}
	if err := stage(); err != nil || h.status("v").Mode != escache.ModeWritethrough {
		t.Errorf("the repeated call: %v, mode %q", err, h.status("v").Mode)
	}
}

// Refused: the right code, a sentence, and nothing half done: not connected, not mounted, not
// formatted.
func TestStageRefusesBadInputAndLeavesNothingBehind(t *testing.T) {
	exit := &command.ExitError{Command: "mount", Code: 32, Stderr: "structure needs cleaning"}
	rows := []struct {
		name     string
		change   func(h *host, r *csi.NodeStageVolumeRequest, dir string)
		code     codes.Code
		sentence string
	}{
		{"no volume id", func(_ *host, r *csi.NodeStageVolumeRequest, _ string) { r.VolumeId = "" }, codes.InvalidArgument, "no volume id"},
		{"no staging path", func(_ *host, r *csi.NodeStageVolumeRequest, _ string) { r.StagingTargetPath = "" }, codes.InvalidArgument, "staging"},
		{"relative staging path", func(_ *host, r *csi.NodeStageVolumeRequest, _ string) { r.StagingTargetPath = "a/b" },
			codes.InvalidArgument, "not absolute"},
		{"staging path missing", func(_ *host, r *csi.NodeStageVolumeRequest, dir string) { r.StagingTargetPath = dir + "/missing" },
			codes.FailedPrecondition, "does not exist"},
		{"staging path is a symbolic link", func(_ *host, r *csi.NodeStageVolumeRequest, dir string) {
			r.StagingTargetPath = dir + "/link"
			_ = os.Symlink("/etc", r.GetStagingTargetPath())
		}, codes.FailedPrecondition, "symbolic link"},
		{"staging path is a file", func(_ *host, r *csi.NodeStageVolumeRequest, dir string) {
			r.StagingTargetPath = dir + "/file"
			_ = os.WriteFile(r.GetStagingTargetPath(), nil, 0o600)
		}, codes.FailedPrecondition, "not a directory"},
		{"no capability", func(_ *host, r *csi.NodeStageVolumeRequest, _ string) { r.VolumeCapability = nil }, codes.InvalidArgument, "capability"},
		{"no access mode", func(_ *host, r *csi.NodeStageVolumeRequest, _ string) { r.VolumeCapability.AccessMode = nil },
			codes.InvalidArgument, "access mode"},
		{"many nodes", func(_ *host, r *csi.NodeStageVolumeRequest, _ string) {
			r.VolumeCapability.AccessMode.Mode = csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
		}, codes.FailedPrecondition, "one node"},
		{"unknown fsType", func(_ *host, r *csi.NodeStageVolumeRequest, _ string) { r.VolumeCapability = mountCapability("btrfs") },
			codes.InvalidArgument, "btrfs"},
		{"mount group", func(_ *host, r *csi.NodeStageVolumeRequest, _ string) {
			r.VolumeCapability.GetMount().VolumeMountGroup = "7"
		},
			codes.FailedPrecondition, "fsGroupPolicy"},
		{"mkfs options that name a device", func(_ *host, r *csi.NodeStageVolumeRequest, _ string) {
			r.VolumeContext = map[string]string{"mkfsOptions": "/dev/sda"}
		}, codes.InvalidArgument, "/dev/sda"},
		{"no epoch", func(_ *host, r *csi.NodeStageVolumeRequest, _ string) { r.PublishContext = nil }, codes.InvalidArgument, "epoch"},
		{"unknown volume", func(_ *host, r *csi.NodeStageVolumeRequest, _ string) { r.VolumeId = "other" }, codes.NotFound, "not found"},
		{"older epoch", func(h *host, _ *csi.NodeStageVolumeRequest, _ string) { h.volumes["v"].Status.Epoch = 4 },
			codes.FailedPrecondition, "epoch 4"},
		{"attached elsewhere", func(h *host, _ *csi.NodeStageVolumeRequest, _ string) { h.volumes["v"].Status.AttachedNode = "n2" },
			codes.FailedPrecondition, "node n2"},
		{"attached nowhere", func(h *host, _ *csi.NodeStageVolumeRequest, _ string) { h.volumes["v"].Status.AttachedNode = "" },
			codes.FailedPrecondition, "ControllerPublishVolume"},
		{"outdated here", func(h *host, _ *csi.NodeStageVolumeRequest, _ string) {
			h.volumes["v"].Status.Outdated = []string{"n1"}
		},
			codes.FailedPrecondition, "outdated"},
		{"Kubernetes API silent", func(h *host, _ *csi.NodeStageVolumeRequest, _ string) { h.failures["read"] = kube.ErrUnavailable },
			codes.Unavailable, "API"},
		{"escached refuses", func(h *host, _ *csi.NodeStageVolumeRequest, _ string) {
			h.failures["connect"] = &escache.Problem{Code: escache.CodeImageInUse, Detail: "client 4711 has it"}
		}, codes.FailedPrecondition, "4711"},
		{"escached is out of room", func(h *host, _ *csi.NodeStageVolumeRequest, _ string) {
			h.failures["connect"] = &escache.Problem{Code: escache.CodeNoRoom, Detail: "too little memory: it takes 2.2 GiB"}
		}, codes.ResourceExhausted, "too little memory: it takes 2.2 GiB"},
		{"foreign data", func(h *host, _ *csi.NodeStageVolumeRequest, _ string) {
			h.contents["/dev/escache/p/v"] = fs.Content{Signature: fs.Signature{Found: true, Usage: "crypto", Type: "crypto_LUKS"}}
		}, codes.FailedPrecondition, "crypto_LUKS"},
		{"another filesystem", func(h *host, _ *csi.NodeStageVolumeRequest, _ string) {
			h.contents["/dev/escache/p/v"] = formatted("xfs", "u")
		}, codes.FailedPrecondition, "xfs"},
		{"vanished filesystem", func(h *host, _ *csi.NodeStageVolumeRequest, _ string) {
			h.volumes["v"].Annotations = map[string]string{v1alpha1.AnnotationFilesystem: `{"state":"formatted","type":"ext4","uuid":"u"}`}
		}, codes.FailedPrecondition, "vanished"},
		{"adopted and blank", func(h *host, _ *csi.NodeStageVolumeRequest, _ string) {
			h.volumes["v"].Spec.Adoption = &v1alpha1.Adoption{Request: "r"}
		}, codes.FailedPrecondition, "formatIfBlank"},
		{"a record that cannot be read", func(h *host, _ *csi.NodeStageVolumeRequest, _ string) {
			h.volumes["v"].Annotations = map[string]string{v1alpha1.AnnotationFilesystem: "x"}
		}, codes.FailedPrecondition, "restore it"},
		{"read-only and blank", func(_ *host, r *csi.NodeStageVolumeRequest, _ string) {
			r.VolumeCapability = mountCapability("ext4", "ro")
		},
			codes.FailedPrecondition, "read-only"},
		{"no record before mkfs", func(h *host, _ *csi.NodeStageVolumeRequest, _ string) { h.failures["annotate"] = kube.ErrNotFound },
			codes.NotFound, ""},
		{"mkfs fails", func(h *host, _ *csi.NodeStageVolumeRequest, _ string) {
			h.failures["mkfs"] = &command.ExitError{Command: "mkfs.ext4", Code: 1, Stderr: "invalid option"}
		}, codes.FailedPrecondition, "invalid option"},
		{"does not mount", func(h *host, _ *csi.NodeStageVolumeRequest, _ string) { h.failures["mount"] = exit },
			codes.FailedPrecondition, "e2fsck says"},
		{"something else is mounted there", func(h *host, r *csi.NodeStageVolumeRequest, _ string) {
			h.table = append(h.table, mounts.Entry{Path: r.GetStagingTargetPath(), Device: blockdev.Number{Major: 8, Minor: 1}, FSType: "ext4"})
		}, codes.AlreadyExists, "8:1"},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			h, dir := newHost(), t.TempDir()
			h.attached("v")
			r := stageOf("v", filepath.Join(dir, "staging"), mountCapability("ext4"))
			if err := os.Mkdir(r.GetStagingTargetPath(), 0o700); err != nil {
				t.Fatal(err)
			}
			row.change(h, r, dir)
			mounted := len(h.table)
			_, err := h.service().NodeStageVolume(t.Context(), r)
			if Code(err) != row.code || !strings.Contains(err.Error(), row.sentence) {
				t.Fatalf("%s: %v; want %s and %q", Code(err), err, row.code, row.sentence)
			}
			if len(h.table) != mounted || h.status("v").Device != "" {
				t.Errorf("left behind: mounts %+v, device %q", h.table, h.status("v").Device)
			}
		})
	}
}

// After a final error the kubelet does not unstage. If the device cannot be stopped, the error must
// not be final.
func TestStageIsNotFinalWhileTheDeviceStaysConnected(t *testing.T) {
	h := newHost()
	h.attached("v")
	h.contents["/dev/escache/p/v"] = formatted("xfs", "u")
	h.failures["stop"] = &escache.Problem{Code: escache.CodeDeviceOpen, Detail: "somebody looks at it"}
	_, err := h.service().NodeStageVolume(t.Context(), stageOf("v", t.TempDir(), mountCapability("ext4")))
	if IsFinal(Code(err)) || !strings.Contains(err.Error(), "somebody looks at it") || !errors.Is(err, fs.ErrForeign) {
		t.Errorf("%s: %v", Code(err), err)
	}
}

// A call that may still be going on is repeated by the kubelet: the device stays.
func TestStageKeepsTheDeviceAfterAnErrorThatIsNotFinal(t *testing.T) {
	h := newHost()
	h.attached("v")
	h.failures["mkfs"] = command.ErrTimeout
	_, err := h.service().NodeStageVolume(t.Context(), stageOf("v", t.TempDir(), mountCapability("ext4")))
	if Code(err) != codes.DeadlineExceeded || h.status("v").Device == "" {
		t.Errorf("%s: %v; device %q", Code(err), err, h.status("v").Device)
	}
}

func TestStageRefusesAFormatWhoseAttachmentEndedMeanwhile(t *testing.T) {
	h := newHost()
	h.attached("v")
	h.before["annotate"] = func() {
		v := h.volumes["v"]
		v.ResourceVersion, v.Status.AttachedNode, v.Status.Epoch = "moved", "n2", 4
	}
	_, err := h.service().NodeStageVolume(t.Context(), stageOf("v", t.TempDir(), mountCapability("ext4")))
	if Code(err) != codes.FailedPrecondition || slices.Contains(h.did, "mkfs") {
		t.Errorf("%v; did %q", err, h.did)
	}
	// A change of the status in between is no reason to refuse.
	h = newHost()
	h.attached("v")
	h.before["annotate"] = func() { h.volumes["v"].ResourceVersion = "dirty bytes" }
	if _, err := h.service().NodeStageVolume(t.Context(), stageOf("v", t.TempDir(), mountCapability("ext4"))); err != nil {
		t.Error(err)
	}
}

func TestStageRepairsWhatIsMounted(t *testing.T) {
	v := blockdev.Number{Major: 252, Minor: 0}
	old := blockdev.Number{Major: 252, Minor: 77}
	rows := []struct {
		name   string
		at     mounts.Entry
		pods   bool
		want   *csi.VolumeCapability
		code   codes.Code
		did    string // last of what was done
		mounts int
	}{
		{"as asked", mounts.Entry{Device: v, FSType: "ext4"}, true, mountCapability("ext4"), codes.OK, "record client", 2},
		{"with another SELinux context", mounts.Entry{Device: v, FSType: "ext4", Options: []string{"context=system_u:object_r:a:s0"}}, true,
			mountCapability("ext4", `context="system_u:object_r:b:s0:c1,c2"`), codes.AlreadyExists, "status", 2},
		{"with the same SELinux context", mounts.Entry{Device: v, FSType: "ext4", Options: []string{`context="u:r:t:s0:c1,c2"`}}, true,
			mountCapability("ext4", `context="u:r:t:s0:c1,c2"`), codes.OK, "record client", 2},
		{"writable, read-only wanted", mounts.Entry{Device: v, FSType: "ext4"}, true, mountCapability("ext4", "ro"), codes.AlreadyExists, "status", 2},
		{"as xfs", mounts.Entry{Device: v, FSType: "xfs"}, true, mountCapability("ext4"), codes.AlreadyExists, "status", 2},
		{"as a filesystem, block wanted", mounts.Entry{Device: v, FSType: "ext4"}, true, blockCapability(), codes.AlreadyExists, "status", 2},
		{"turned read-only, no pod", mounts.Entry{Device: v, FSType: "ext4", FilesystemReadOnly: true, ReadOnly: true}, false,
			mountCapability("ext4"), codes.OK, "mount", 1},
		{"turned read-only, with a pod", mounts.Entry{Device: v, FSType: "ext4", FilesystemReadOnly: true, ReadOnly: true}, true,
			mountCapability("ext4"), codes.FailedPrecondition, "status", 2},
		{"from a dead device", mounts.Entry{Device: old, FSType: "ext4"}, false, mountCapability("ext4"), codes.OK, "mount", 1},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			h, dir := newHost(), t.TempDir()
			h.attached("v")
			h.contents["/dev/escache/p/v"] = formatted("ext4", "u")
			h.dead[old] = true
			row.at.Path = dir
			h.table = []mounts.Entry{row.at}
			if row.pods {
				pod := row.at
				pod.Path = "/pod"
				h.table = append(h.table, pod)
			}
			_, err := h.service().NodeStageVolume(t.Context(), stageOf("v", dir, row.want))
			if Code(err) != row.code {
				t.Errorf("%s: %v; want %s", Code(err), err, row.code)
			}
			if last := h.did[len(h.did)-1]; last != row.did || len(h.table) != row.mounts {
				t.Errorf("did %q, mounts %+v", h.did, h.table)
			}
		})
	}
}

// csi-node is killed between two steps of making a filesystem, and a new one stages again.
func TestStageGoesOnAfterACrash(t *testing.T) {
	for _, step := range []string{"connect", "record client", "probe", "annotate", "mkfs", "annotate after mkfs", "mount"} {
		t.Run(step, func(t *testing.T) {
			h, dir := newHost(), t.TempDir()
			h.attached("v")
			func() {
				defer func() { _ = recover() }()
				if step == "annotate after mkfs" {
					h.before["mkfs"] = func() { h.before["annotate"] = func() { panic("killed") } }
				} else {
					h.before[step] = func() { panic("killed") }
				}
				_, _ = h.service().NodeStageVolume(t.Context(), stageOf("v", dir, mountCapability("xfs")))
			}()
			if _, err := h.service().NodeStageVolume(t.Context(), stageOf("v", dir, mountCapability("xfs"))); err != nil {
				t.Fatal(err)
			}
			record := h.volumes["v"].Annotations[v1alpha1.AnnotationFilesystem]
			if len(h.table) != 1 || !strings.Contains(record, `"formatted"`) || !strings.Contains(record, h.contents["/dev/escache/p/v"].Signature.UUID) {
				t.Errorf("mounts %+v, record %s", h.table, record)
			}
		})
	}
}

// csi-node is killed after it has mounted what was restored into a larger volume. The next call finds it mounted.
func TestStageGrowsWhatItFindsMountedAfterACrash(t *testing.T) {
	rows := []struct {
		name   string
		c      *csi.VolumeCapability
		change func(h *host)
		grows  bool
	}{
		{"came with the image", mountCapability("ext4"), func(*host) {}, true},
		{"growing fails again", mountCapability("ext4"), func(h *host) { h.failures["grow"] = command.ErrTimeout }, true},
		{"made by the driver", mountCapability("ext4"), func(h *host) {
			h.volumes["v"].Annotations = map[string]string{v1alpha1.AnnotationFilesystem: `{"state":"formatted","type":"ext4","uuid":"u"}`}
		}, false},
		{"I/O is frozen", mountCapability("ext4"), func(h *host) { h.change("v", frozen) }, false},
		{"a pod has it", mountCapability("ext4"), func(h *host) {
			h.table = append(h.table, mounts.Entry{Path: "/pod", Device: h.table[0].Device, FSType: "ext4"})
		}, false},
		{"a pod only reads", mountCapability("ext4", "ro"), func(h *host) {
			h.table[0].ReadOnly, h.table[0].FilesystemReadOnly = true, true
		}, false},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			h, dir := newHost(), t.TempDir()
			h.attached("v")
			c := formatted("ext4", "u")
			c.Surface.SizeBytes = 2 * c.Surface.Superblock.FilesystemBytes
			h.contents["/dev/escache/p/v"] = c
			func() {
				defer func() { _ = recover() }()
				h.before["grow"] = func() { panic("killed") }
				_, _ = h.service().NodeStageVolume(t.Context(), stageOf("v", dir, mountCapability("ext4")))
				t.Error("nothing is grown at first")
			}()
			row.change(h)
			h.did = nil
			if _, err := h.service().NodeStageVolume(t.Context(), stageOf("v", dir, row.c)); err != nil {
				t.Fatal(err)
			}
			if grows := slices.Contains(h.did, "grow"); grows != row.grows || slices.Contains(h.did, "mount") {
				t.Errorf("did %q", h.did)
			}
		})
	}
}

func TestTheSecondCallLearnsWhatRuns(t *testing.T) {
	h, dir := newHost(), t.TempDir()
	h.attached("v")
	h.attached("w")
	s := h.service()
	h.before["mkfs"] = func() {
		_, err := s.NodeUnstageVolume(t.Context(), &csi.NodeUnstageVolumeRequest{VolumeId: "v", StagingTargetPath: dir})
		if Code(err) != codes.Aborted || !strings.Contains(err.Error(), "NodeStageVolume of volume v has been running for") {
			t.Errorf("%s: %v", Code(err), err)
		}
		if _, err := s.NodeStageVolume(t.Context(), stageOf("w", t.TempDir(), mountCapability("ext4"))); err != nil {
			t.Errorf("another volume: %v", err)
		}
	}
	if _, err := s.NodeStageVolume(t.Context(), stageOf("v", dir, mountCapability("ext4"))); err != nil {
		t.Fatal(err)
	}
}

// TestACopyThatHasCaughtUpIsStaged: its disk had failed while this node had the volume; after a
// reboot it was filled from the peer.
func TestACopyThatHasCaughtUpIsStaged(t *testing.T) {
	for name, c := range map[string]struct {
		disk, peer escache.DiskState
		role       escache.Role
		outdated   []string
		code       codes.Code
	}{
		"equal to the peer's":             {"UpToDate", "UpToDate", escache.RoleSecondary, []string{"n1"}, codes.OK},
		"but the peer still writes":       {"UpToDate", "UpToDate", escache.RolePrimary, []string{"n1"}, codes.FailedPrecondition},
		"not yet":                         {"Inconsistent", "UpToDate", escache.RoleSecondary, []string{"n1"}, codes.FailedPrecondition},
		"equal to one that is outdated":   {"UpToDate", "UpToDate", escache.RoleSecondary, []string{"n1", "n2"}, codes.FailedPrecondition},
		"and the peer has lost its disk":  {"UpToDate", "Diskless", escache.RoleSecondary, []string{"n1"}, codes.FailedPrecondition},
		"and this disk has not come back": {"Diskless", "UpToDate", escache.RoleSecondary, []string{"n1"}, codes.FailedPrecondition},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost()
			h.attached("v")
			h.volumes["v"].Spec.Replicas, h.volumes["v"].Status.Outdated = []string{"n1", "n2"}, c.outdated
			h.change("v", func(s *escache.VolumeStatus) {
				s.DiskState, s.DirtyBytes = c.disk, nil
				s.Peers = []escache.Peer{{Name: "n2", ConnectionState: escache.LinkConnected, DiskState: c.peer, Role: c.role}}
			})
			r := stageOf("v", filepath.Join(t.TempDir(), "staging"), mountCapability("ext4"))
			if err := os.Mkdir(r.GetStagingTargetPath(), 0o700); err != nil {
				t.Fatal(err)
			}
			_, err := h.service().NodeStageVolume(t.Context(), r)
			if Code(err) != c.code {
				t.Fatalf("%s: %v", Code(err), err)
			}
			if left := h.volumes["v"].Status.IsOutdated("n1"); left != (c.code != codes.OK) {
				t.Errorf("on record as outdated: %v", left)
			}
		})
	}
}
