package trim

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/escache/escache-csi/internal/command"
)

// TestMain lets the test binary stand in for escached, which runs itself as a child.
func TestMain(m *testing.M) {
	if len(os.Args) != 2 || os.Args[1] != Verb {
		os.Exit(m.Run())
	}
	if err := Main(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// device makes a filesystem on a loop device, and returns both the device and the file below it.
func device(t *testing.T, fsType string, size int64) (device, file string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: it mounts a loop device")
	}
	if _, err := exec.LookPath("mkfs." + fsType); err != nil {
		t.Skip("needs mkfs." + fsType)
	}
	file = filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file, size); err != nil {
		t.Fatal(err)
	}
	// Without -K and nodiscard mkfs would leave holes everywhere, and nothing to trim.
	run(t, "mkfs."+fsType, slices.Concat(map[string][]string{"ext4": {"-q", "-E", "nodiscard"}, "xfs": {"-q", "-K"}}[fsType], []string{file})...)
	device = strings.TrimSpace(run(t, "losetup", "--find", "--show", file))
	t.Cleanup(func() { run(t, "losetup", "--detach", device) })
	return device, file
}

func run(t *testing.T, program string, args ...string) string {
	t.Helper()
	out, err := exec.Command(program, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v: %s", program, args, err, out)
	}
	return string(out)
}

// mount mounts a device for users of it, in a mount namespace that only this test has.
func mount(t *testing.T, device, fsType, options string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount(device, dir, fsType, 0, options); err != nil {
		t.Skipf("needs a kernel that mounts %s: %v", fsType, err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, 0) })
	return dir
}

func allocated(t *testing.T, file string) int64 {
	t.Helper()
	var s unix.Stat_t
	if err := unix.Stat(file, &s); err != nil {
		t.Fatal(err)
	}
	return s.Blocks * 512
}

const mib = 1 << 20

// fill writes a file of 100 MiB and one of 1 MiB, and deletes the large one.
func fill(t *testing.T, dir string) {
	t.Helper()
	for name, size := range map[string]int{"kept": mib, "gone": 100 * mib} {
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		_, err = f.Write(bytes.Repeat([]byte(name), size/4))
		if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(filepath.Join(dir, "gone")); err != nil {
		t.Fatal(err)
	}
	unix.Sync()
}

func TestTheSpaceOfADeletedFileComesBackAndTheOthersStay(t *testing.T) {
	for _, fsType := range []string{"ext4", "xfs"} {
		for _, inUse := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, mounted by others: %v", fsType, inUse), func(t *testing.T) {
				dev, file := device(t, fsType, 400*mib)
				dir := mount(t, dev, fsType, "")
				fill(t, dir)
				if !inUse {
					if err := unix.Unmount(dir, 0); err != nil {
						t.Fatal(err)
					}
				}
				before := allocated(t, file)
				r := Request{Device: dev, Type: fsType, Options: []string{"noatime,nodev", "x-test"}, Longest: time.Minute}
				result, err := NewClient(command.NewExec()).Trim(t.Context(), "v", r)
				if err != nil || !result.Done || result.Trimmed < 100*mib {
					t.Fatalf("%+v %v", result, err)
				}
				if after := allocated(t, file); before-after < 90*mib {
					t.Errorf("%d bytes were allocated, and %d are", before, after)
				}
				if !inUse {
					dir = mount(t, dev, fsType, "")
				}
				kept, err := os.ReadFile(filepath.Join(dir, "kept"))
				if err != nil || !bytes.Equal(kept, bytes.Repeat([]byte("kept"), mib/4)) {
					t.Errorf("the file that was kept: %d bytes, %v", len(kept), err)
				}
			})
		}
	}
}

// Nothing may be left of the mount, or the device could not be stopped.
func TestTheDeviceIsNotInUseAfterwards(t *testing.T) {
	dev, _ := device(t, "ext4", 64*mib)
	for _, r := range []Request{{Type: "ext4", Longest: time.Minute}, {Type: "xfs", Longest: time.Minute}} {
		r.Device = dev
		_, _ = NewClient(command.NewExec()).Trim(t.Context(), "v", r)
		fd, err := unix.Open(dev, unix.O_RDONLY|unix.O_EXCL, 0)
		if err != nil {
			t.Fatalf("after %s: %v", r.Type, err)
		}
		_ = unix.Close(fd)
	}
}

func TestWhatCannotBeTrimmedIsRefused(t *testing.T) {
	client := NewClient(command.NewExec())
	dev, file := device(t, "ext4", 64*mib)
	before := sum(t, file)
	for what, r := range map[string]Request{
		"another filesystem":     {Device: dev, Type: "xfs"},
		"none that is known":     {Device: dev, Type: "vfat"},
		"an option of no kernel": {Device: dev, Type: "ext4", Options: []string{"no-such-option"}},
		"read-only":              {Device: dev, Type: "ext4", Options: []string{"ro"}},
	} {
		r.Longest = time.Minute
		if result, err := client.Trim(t.Context(), "v", r); !errors.Is(err, ErrRefused) {
			t.Errorf("%s: %+v %v", what, result, err)
		}
	}
	if now := sum(t, file); now != before {
		t.Error("a refusal has written")
	}
	blank := filepath.Join(t.TempDir(), "blank")
	if err := errors.Join(os.WriteFile(blank, nil, 0o600), os.Truncate(blank, 64*mib)); err != nil {
		t.Fatal(err)
	}
	empty := strings.TrimSpace(run(t, "losetup", "--find", "--show", blank))
	defer run(t, "losetup", "--detach", empty)
	if _, err := client.Trim(t.Context(), "v", Request{Device: empty, Type: "ext4", Longest: time.Minute}); !errors.Is(err, ErrRefused) {
		t.Errorf("a blank device: %v", err)
	}
	if allocated(t, blank) > mib {
		t.Error("a blank device was written to")
	}
	dir := mount(t, dev, "ext4", "")
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Trim(t.Context(), "v", Request{Device: dev, Type: "ext4", Longest: time.Minute}); !errors.Is(err, ErrRefused) {
		t.Errorf("one that its users have read-only: %v", err)
	}
}

// What such a filesystem counts as free may be in use: only fsck knows.
func TestAFilesystemThatHasFoundErrorsInItselfIsNotTrimmed(t *testing.T) {
	if _, err := exec.LookPath("debugfs"); err != nil {
		t.Skip("needs debugfs")
	}
	dev, file := device(t, "ext4", 64*mib)
	run(t, "debugfs", "-w", "-R", "set_super_value state 3", dev) // unmounted cleanly, and with errors
	run(t, "blockdev", "--flushbufs", dev)
	before := allocated(t, file)
	client := NewClient(command.NewExec())
	for _, inUse := range []bool{false, true} {
		if inUse {
			mount(t, dev, "ext4", "errors=continue")
		}
		_, err := client.Trim(t.Context(), "v", Request{Device: dev, Type: "ext4", Longest: time.Minute})
		if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "fsck") {
			t.Errorf("mounted by others: %v: %v", inUse, err)
		}
	}
	if after := allocated(t, file); after < before {
		t.Errorf("%d bytes were discarded", before-after)
	}
}

func sum(t *testing.T, file string) string {
	t.Helper()
	return run(t, "sha256sum", file)
}

func TestARequestThatRunsOutOfTimeGoesOnWhereItWas(t *testing.T) {
	dev, _ := device(t, "ext4", 3<<30)
	client := NewClient(command.NewExec())
	first, err := client.Trim(t.Context(), "v", Request{Device: dev, Type: "ext4"})
	if err != nil || first.Done || first.Next != firstPart {
		t.Fatalf("%+v %v", first, err)
	}
	second, err := client.Trim(t.Context(), "v", Request{Device: dev, Type: "ext4", Start: first.Next, Longest: time.Minute})
	if err != nil || !second.Done {
		t.Fatalf("%+v %v", second, err)
	}
	for _, start := range []int64{3 << 30, 4 << 30} {
		if end, err := client.Trim(t.Context(), "v", Request{Device: dev, Type: "ext4", Start: start, Longest: time.Minute}); err != nil || !end.Done {
			t.Errorf("behind the end: %+v %v", end, err)
		}
	}
}

func TestPartsAreAsLargeAsTheirTimeAllows(t *testing.T) {
	const size = 1 << 43
	for _, row := range []struct {
		name     string
		took     time.Duration // of a part
		longest  time.Duration
		reaches  int64 // the part that is furthest from the first one
		finishes bool
	}{
		{"quick ones grow", time.Millisecond, time.Minute, mostPart, true},
		{"slow ones shrink", 4 * time.Second, time.Minute, leastPart, false},
		{"one is trimmed without any time", time.Second, 0, firstPart, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			now, at, sizes := time.Unix(0, 0), int64(0), []int64{}
			p := parts{size: size, now: func() time.Time { return now }, trim: func(start, length int64) (int64, error) {
				if start != at {
					t.Fatalf("a part begins at %d, and the one before ended at %d", start, at)
				}
				now, at, sizes = now.Add(row.took), start+length, append(sizes, length)
				return length / 2, nil
			}}
			result, err := p.run(0, now.Add(row.longest))
			if err != nil || result.Next != at || result.Trimmed != at/2 || result.Done != row.finishes {
				t.Errorf("%+v %v after %d parts", result, err, len(sizes))
			}
			if slices.Min(sizes) < min(firstPart, row.reaches) || slices.Max(sizes) > max(firstPart, row.reaches) ||
				!slices.Contains(sizes, row.reaches) {
				t.Errorf("the parts have %d bytes", sizes)
			}
			if after := now.Sub(time.Unix(0, 0)); after > row.longest+row.took {
				t.Errorf("it took %s", after)
			}
		})
	}
}

func TestAPartThatFailsEndsIt(t *testing.T) {
	broken := errors.New("broken")
	p := parts{size: 8 << 30, now: time.Now, trim: func(start, _ int64) (int64, error) {
		if start > 0 {
			return 0, broken
		}
		return 5, nil
	}}
	if result, err := p.run(0, time.Now().Add(time.Minute)); !errors.Is(err, broken) || result.Next != firstPart {
		t.Errorf("%+v %v", result, err)
	}
}

func TestOptionsThatAreNotTheFilesystemsAreLeftOut(t *testing.T) {
	got := filesystemOptions([]string{"noatime", "nodev,nosuid", "data=ordered,", `context="a:s0:c1,c2",nofail`, "x-systemd.foo=1", "usrquota", "rw"})
	if want := []string{"data=ordered", `context="a:s0:c1,c2"`, "usrquota"}; !slices.Equal(got, want) {
		t.Errorf("%v, not %v", got, want)
	}
}
