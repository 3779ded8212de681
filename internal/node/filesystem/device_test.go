package filesystem

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/escache/escache-csi/internal/command"
)

const inspectArgument = "inspect-for-test"

// TestMain lets the test binary stand in for `csi-node inspect`, which runs as a child.
func TestMain(m *testing.M) {
	if len(os.Args) < 2 || os.Args[1] != inspectArgument {
		os.Exit(m.Run())
	}
	s, err := Inspect(os.Args[len(os.Args)-1], os.Args[2] == "--scan")
	switch {
	case errors.Is(err, ErrInUse):
		os.Exit(ExitInUse)
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	_ = json.NewEncoder(os.Stdout).Encode(s)
}

func tools() *Tools {
	return NewTools(command.NewExec(), []string{os.Args[0], inspectArgument})
}

// loop returns a loop device of that size over a sparse file.
func loop(t *testing.T, size int64) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: it uses loop devices")
	}
	file := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file, size); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("losetup", "--find", "--show", file).CombinedOutput()
	if err != nil {
		t.Fatalf("losetup: %v: %s", err, out)
	}
	device := strings.TrimSpace(string(out))
	t.Cleanup(func() { _ = exec.Command("losetup", "--detach", device).Run() })
	return device
}

func sh(t *testing.T, device, script string) {
	t.Helper()
	cmd := exec.Command("sh", "-ec", script)
	cmd.Env = append(os.Environ(), "DEV="+device)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", script, err, out)
	}
}

// Only the content of the device decides; there is no record unless the row has one. Every device
// is read again after the decision: nothing may have changed.
func TestNeverFormatsOverAnything(t *testing.T) {
	const ours, other = "5f6a0c5e-8a43-4b4f-9d53-0c7c5b0d0001", "5f6a0c5e-8a43-4b4f-9d53-0c7c5b0d0002"
	record := func(state RecordState, fsType string) *Record {
		return &Record{State: state, Type: fsType, UUID: ours, ImageID: "id"}
	}
	rows := []struct {
		name    string
		prepare string // shell; $DEV is the device
		want    string
		record  *Record
		action  Action
		refused error
	}{
		{"zeroed", "true", Ext4, nil, Format, nil},
		{"zeroed, xfs wanted", "true", XFS, nil, Format, nil},
		{"ext4", "mkfs.ext4 -q $DEV", Ext4, nil, Mount, nil},
		{"ext4, xfs wanted", "mkfs.ext4 -q $DEV", XFS, nil, Mount, ErrForeign},
		{"ext3", "mkfs.ext3 -q $DEV", Ext4, nil, Mount, ErrForeign},
		{"xfs", "mkfs.xfs -q $DEV", XFS, nil, Mount, nil},
		{"xfs, ext4 wanted", "mkfs.xfs -q $DEV", Ext4, nil, Mount, ErrForeign},
		{"LVM physical volume", "pvcreate -q --config 'devices{use_devicesfile=0}' $DEV", Ext4, nil, Mount, ErrForeign},
		{"LUKS", "head -c 32 /dev/urandom > /dev/shm/k.$$; cryptsetup luksFormat -q --type luks2 --pbkdf pbkdf2 " +
			"--pbkdf-force-iterations 1000 $DEV /dev/shm/k.$$; rm /dev/shm/k.$$", Ext4, nil, Mount, ErrForeign},
		{"GPT", "sgdisk -n 1 $DEV", Ext4, nil, Mount, ErrForeign},
		{"GPT without partitions", "sgdisk -o $DEV", XFS, nil, Mount, ErrForeign},
		{"backup GPT only", "sgdisk -n 1 $DEV; dd if=/dev/zero of=$DEV bs=64k count=1 2>&1", Ext4, nil, Mount, ErrForeign},
		{"MBR", "printf '\\200\\1\\1\\0\\203\\1\\1\\1\\0\\10\\0\\0\\0\\20\\0\\0' | dd of=$DEV bs=1 seek=446 2>&1; " +
			"printf '\\125\\252' | dd of=$DEV bs=1 seek=510 2>&1", Ext4, nil, Mount, ErrForeign},
		{"swap", "mkswap $DEV", Ext4, nil, Mount, ErrForeign},
		{"ext4 and squashfs signatures (ambivalent)", "mkfs.ext4 -q $DEV; printf hsqs > $DEV", Ext4, nil, Mount, ErrForeign},
		{"garbage at the beginning", "head -c 65536 /dev/urandom > $DEV", Ext4, nil, Mount, ErrForeign},
		{"one byte at the beginning", "printf x > $DEV", Ext4, nil, Mount, ErrForeign},
		{"one byte at the end", "printf x | dd of=$DEV bs=1 seek=$(($(blockdev --getsize64 $DEV)-1)) 2>&1", Ext4, nil, Mount, ErrForeign},
		{"data in the middle", "head -c 33554432 /dev/urandom | dd of=$DEV bs=1M seek=20 2>&1", XFS, nil, Mount, ErrForeign},
		{"ext4 with a wiped superblock", "mkfs.ext4 -q -E lazy_itable_init=0 $DEV; dd if=/dev/zero of=$DEV bs=1k seek=1 count=1 2>&1",
			Ext4, nil, Mount, ErrForeign},

		{"blank, was formatted once", "true", Ext4, record(Formatted, Ext4), Mount, ErrVanished},
		{"ext4, was formatted once", "mkfs.ext4 -q -U " + ours + " $DEV", Ext4, record(Formatted, Ext4), Mount, nil},
		{"swap, was formatted once", "mkswap $DEV", Ext4, record(Formatted, Ext4), Mount, ErrForeign},

		{"own mkfs had not begun", "true", Ext4, record(Formatting, Ext4), Format, nil},
		{"own mkfs left no superblock", "mkfs.ext4 -q -U " + ours + " -E lazy_itable_init=0 $DEV; " +
			"dd if=/dev/zero of=$DEV bs=1k seek=1 count=1 2>&1", Ext4, record(Formatting, Ext4), Reformat, nil},
		{"own ext4, never mounted", "mkfs.ext4 -q -U " + ours + " $DEV", Ext4, record(Formatting, Ext4), Reformat, nil},
		{"own ext4, once mounted", "mkfs.ext4 -q -U " + ours + " $DEV; debugfs -w -R 'set_super_value mnt_count 1' $DEV",
			Ext4, record(Formatting, Ext4), Mount, nil},
		{"own xfs, in progress", "mkfs.xfs -q -m uuid=" + ours + " $DEV; printf '\\1' | dd of=$DEV bs=1 seek=126 2>&1",
			XFS, record(Formatting, XFS), Reformat, nil},
		{"own xfs, whole", "mkfs.xfs -q -m uuid=" + ours + " $DEV", XFS, record(Formatting, XFS), Mount, nil},
		{"somebody else's ext4 where ours was interrupted", "mkfs.ext4 -q -U " + other + " $DEV", Ext4,
			record(Formatting, Ext4), Mount, ErrForeign},
		{"somebody's LUKS where ours was interrupted", "printf 'LUKS\\272\\276\\0\\1' > $DEV", Ext4,
			record(Formatting, Ext4), Mount, ErrForeign},
		{"own mkfs of the other type", "mkfs.ext4 -q -U " + ours + " $DEV", XFS, record(Formatting, Ext4), Mount, ErrForeign},
		{"record of another image", "true", Ext4, &Record{State: Formatting, Type: Ext4, UUID: ours, ImageID: "old"}, Mount, ErrForeign},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			size := int64(64 << 20)
			if strings.Contains(row.prepare, "xfs") {
				size = 320 << 20 // mkfs.xfs makes none below 300 MiB
			}
			device := loop(t, size)
			sh(t, device, row.prepare)
			before := checksum(t, device)
			content, err := tools().Probe(t.Context(), "v", device)
			if err != nil {
				t.Fatal(err)
			}
			action, err := Decide(content, row.want, "id", row.record)
			if !errors.Is(err, row.refused) || (row.refused == nil && (err != nil || action != row.action)) {
				t.Errorf("content %+v: action %d, error %v; want action %d, error %v", content, action, err, row.action, row.refused)
			}
			if after := checksum(t, device); after != before {
				t.Error("the device has changed")
			}
		})
	}
}

func checksum(t *testing.T, device string) string {
	t.Helper()
	out, err := exec.Command("sha1sum", device).Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// mkfs is killed at a random moment, twice, and then resumed: it ends in a whole filesystem with
// the UUID on record.
func TestKilledMkfsIsResumed(t *testing.T) {
	longest := map[string]int{Ext4: 30, XFS: 8} // milliseconds; mkfs.xfs is quick
	for _, fsType := range []string{Ext4, XFS} {
		t.Run(fsType, func(t *testing.T) {
			record := Record{State: Formatting, Type: fsType, UUID: "5f6a0c5e-8a43-4b4f-9d53-0c7c5b0d0003", ImageID: "id"}
			options := map[string][]string{Ext4: {"-E", "lazy_itable_init=0,lazy_journal_init=0"}, XFS: {"-l", "size=64m"}}[fsType]
			found := map[Action]int{}
			for range 12 {
				device := loop(t, 1<<30)
				for range 2 {
					action := decideRecorded(t, device, record)
					if action == Mount {
						break
					}
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rand.IntN(longest[fsType]))*time.Millisecond)
					_ = tools().Make(ctx, "v", device, action, record, options)
					cancel()
				}
				action := decideRecorded(t, device, record)
				found[action]++
				if action != Mount {
					if err := tools().Make(t.Context(), "v", device, action, record, options); err != nil {
						t.Fatal(err)
					}
				}
				content, err := tools().Probe(t.Context(), "v", device)
				if err != nil || content.Signature.UUID != record.UUID {
					t.Fatalf("%+v %v", content, err)
				}
				if said := tools().Check(t.Context(), "v", device, fsType); !strings.HasSuffix(said, "found no error") {
					t.Error(said)
				}
			}
			t.Logf("left blank %d times, half-written %d times, whole %d times", found[Format], found[Reformat], found[Mount])
		})
	}
}

func decideRecorded(t *testing.T, device string, record Record) Action {
	t.Helper()
	content, err := tools().Probe(t.Context(), "v", device)
	if err != nil {
		t.Fatal(err)
	}
	action, err := Decide(content, record.Type, "id", &record)
	if err != nil {
		t.Fatalf("%+v: %v", content, err)
	}
	return action
}

func TestProbeRefusesADeviceSomebodyHolds(t *testing.T) {
	device := loop(t, 64<<20)
	f, err := os.OpenFile(device, os.O_RDWR|syscall.O_EXCL, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := tools().Probe(t.Context(), "v", device); !errors.Is(err, ErrInUse) {
		t.Fatalf("got %v, want ErrInUse", err)
	}
}

func TestProbeFailsWhereTheDeviceIsGone(t *testing.T) {
	content, err := tools().Probe(t.Context(), "v", filepath.Join(t.TempDir(), "gone"))
	if err == nil {
		t.Fatalf("a device that is not there reads as %+v", content)
	}
}

func TestSuperblockReportsSizeAndErrors(t *testing.T) {
	device := loop(t, 512<<20)
	sh(t, device, "mkfs.ext4 -q $DEV 300M; debugfs -w -R 'set_super_value state 2' $DEV")
	s, err := Inspect(device, false)
	if err != nil || s.Superblock == nil || s.Superblock.FilesystemBytes != 300<<20 || !s.Superblock.Errors || !s.NeedsGrowth() {
		t.Errorf("ext4: %+v %+v %v", s, s.Superblock, err)
	}
	device = loop(t, 512<<20)
	sh(t, device, "mkfs.xfs -q -d size=400m $DEV")
	s, err = Inspect(device, false)
	if err != nil || s.Superblock == nil || s.Superblock.FilesystemBytes != 400<<20 || !s.NeedsGrowth() {
		t.Errorf("xfs: %+v %+v %v", s, s.Superblock, err)
	}
}
