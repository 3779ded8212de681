package node

import (
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/escache/escache-csi/internal/node/blockdev"
	"github.com/escache/escache-csi/internal/node/mounts"
)

// The kubelet stages again after each of its starts. The first column is what the StorageClass
// asks for, the second what the mount table shows of the mount that was made with it.
func TestStageAgainWhateverWayTheKernelShowsTheOptions(t *testing.T) {
	for name, c := range map[string]struct {
		fsType       string
		asked, shown []string
	}{
		"discard, which the device does not take": {"xfs", []string{"discard"}, []string{"rw", "relatime", "attr2"}},
		"several in one item":                     {"xfs", []string{"noatime,nodiratime"}, []string{"rw", "noatime", "nodiratime"}},
		"one that undoes another":                 {"ext4", []string{"noatime", "relatime"}, []string{"rw", "relatime"}},
		"one that brings others":                  {"ext4", []string{"user"}, []string{"rw", "nosuid", "nodev", "noexec", "relatime"}},
		"one that undoes what another brought":    {"ext4", []string{"noexec,exec"}, []string{"rw", "relatime"}},
		"the filesystem's own default":            {"ext4", []string{"errors=continue"}, []string{"rw", "relatime"}},
		"a context where SELinux is off":          {"ext4", []string{`context="u:r:t:s0:c1,c2"`}, []string{"rw", "relatime"}},
		"categories in another order":             {"ext4", []string{`context="u:r:t:s0:c3,c2,c1"`}, []string{"rw", `context=u:r:t:s0:c1.c3`}},
	} {
		t.Run(name, func(t *testing.T) {
			h, dir := newHost(), t.TempDir()
			h.attached("v")
			h.contents["/dev/escache/p/v"] = formatted(c.fsType, "u")
			at := mounts.Entry{Path: dir, Device: blockdev.Number{Major: 252}, FSType: c.fsType, Options: c.shown}
			pod := at
			pod.Path = "/pod"
			h.table = []mounts.Entry{at, pod}
			if _, err := h.service().NodeStageVolume(t.Context(), stageOf("v", dir, mountCapability(c.fsType, c.asked...))); err != nil {
				t.Error(err)
			}
			if len(h.table) != 2 {
				t.Errorf("mounts %+v", h.table)
			}
		})
	}
}

func TestStageAgainRefusesARealDifference(t *testing.T) {
	for name, c := range map[string]struct {
		asked, shown []string
		readOnly     bool
	}{
		"read-only is asked for, in one item with another": {[]string{"noatime,ro"}, []string{"rw", "noatime"}, false},
		"writing is asked for last":                        {[]string{"ro", "rw"}, []string{"ro", "relatime"}, true},
		"programs must not run":                            {[]string{"noatime,noexec"}, []string{"rw", "noatime"}, false},
		"another SELinux context":                          {[]string{`context="u:r:t:s0:c1,c2"`}, []string{"rw", `context="u:r:t:s0:c1,c3"`}, false},
		"no SELinux context of the mount's own":            {[]string{`context="u:r:t:s0"`}, []string{"rw", "seclabel"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			h, dir := newHost(), t.TempDir()
			h.attached("v")
			h.table = []mounts.Entry{{
				Path: dir, Device: blockdev.Number{Major: 252}, FSType: "ext4", Options: c.shown, ReadOnly: c.readOnly,
			}}
			_, err := h.service().NodeStageVolume(t.Context(), stageOf("v", dir, mountCapability("ext4", c.asked...)))
			if Code(err) != codes.AlreadyExists {
				t.Errorf("%s: %v", Code(err), err)
			}
		})
	}
}
