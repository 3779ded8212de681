package loop

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/escache/escache-csi/internal/command"
)

// kernel has loop devices, shown in a directory like /sys/block, and block devices with a number
// each.
type kernel struct {
	t       *testing.T
	sys     string
	numbers map[string]uint64
	open    bool // somebody has the loop device open
	ran     []string
}

func (k *kernel) show(loop, backing, size string) {
	dir := filepath.Join(k.sys, loop, "loop")
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(k.sys, loop, "size"), []byte(size+"\n"), 0o600),
		os.WriteFile(filepath.Join(dir, "backing_file"), []byte(backing+"\n"), 0o600)); err != nil {
		k.t.Fatal(err)
	}
}

func (k *kernel) Run(_ context.Context, c command.Command) (command.Result, error) {
	k.ran = append(k.ran, c.Name+" "+strings.Join(c.Args, " "))
	switch c.Args[0] {
	case "--find":
		k.show("loop7", c.Args[len(c.Args)-1], "8")
		return command.Result{Stdout: []byte("/dev/loop7\n")}, nil
	case "--detach":
		if !k.open {
			return command.Result{}, os.RemoveAll(filepath.Join(k.sys, filepath.Base(c.Args[1]), "loop"))
		}
	}
	return command.Result{}, nil
}

func newKernel(t *testing.T) (*kernel, *Control) {
	k := &kernel{t: t, sys: t.TempDir(), numbers: map[string]uint64{"/dev/mapper/v": 2, "/dev/dm-2": 2, "/dev/mapper/other": 3}}
	k.show("loop1", "/dev/mapper/other", "8")
	k.show("loop2", "/dev/gone", "8")
	number := func(path string) (uint64, error) {
		if n, ok := k.numbers[path]; ok {
			return n, nil
		}
		return 0, os.ErrNotExist
	}
	return k, &Control{run: k, sys: k.sys, number: number, backing: func(device string) (uint64, error) {
		return number("behind " + device)
	}}
}

func TestALoopDeviceIsMadeOnceAndGrowsWithItsDevice(t *testing.T) {
	k, c := newKernel(t)
	for _, step := range []struct {
		size int64
		ran  string
	}{
		{8 * 512, "losetup --find --show --direct-io=on --sector-size 4096 /dev/mapper/v"},
		{8 * 512, ""},
		{16 * 512, "losetup --set-capacity /dev/loop7"},
	} {
		k.ran = nil
		device, err := c.Attach(t.Context(), "v", "/dev/mapper/v", step.size)
		if err != nil || device != "/dev/loop7" || strings.Join(k.ran, "; ") != step.ran {
			t.Errorf("%d bytes: %q, %v, ran %q, not %q", step.size, device, err, k.ran, step.ran)
		}
	}
}

func TestALoopDeviceIsFoundByTheNumberOfItsDevice(t *testing.T) {
	k, c := newKernel(t)
	k.show("loop3", "/dev/dm-2", "8") // another node of the same device
	for backing, want := range map[string]string{"/dev/mapper/v": "/dev/loop3", "/dev/mapper/other": "/dev/loop1", "/dev/mapper/none": ""} {
		if got, err := c.Find(backing); err != nil || got != want {
			t.Errorf("%s: %q, %v, not %q", backing, got, err, want)
		}
	}
	if len(k.ran) > 0 {
		t.Errorf("ran %q", k.ran)
	}
}

func TestALoopDeviceOfAContainerThatHasEndedIsFound(t *testing.T) {
	k, c := newKernel(t)
	k.numbers["/dev/mapper/old"], k.numbers["behind /dev/loop4"] = 5, 5
	k.show("loop4", "/mapper/old", "8") // as the kernel has it when the mount that the path went through is gone
	if got, err := c.Find("/dev/mapper/old"); err != nil || got != "/dev/loop4" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestALoopDeviceThatIsOpenIsNotSaidToBeGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, c := newKernel(t)
		if err := c.Detach(t.Context(), "v", "/dev/mapper/v"); err != nil || len(k.ran) > 0 {
			t.Errorf("there is none: %v, ran %q", err, k.ran)
		}
		k.open = true
		if err := c.Detach(t.Context(), "v", "/dev/mapper/other"); !errors.Is(err, ErrOpen) {
			t.Errorf("somebody has it open: %v", err)
		}
		k.open = false
		if err := c.Detach(t.Context(), "v", "/dev/mapper/other"); err != nil {
			t.Error(err)
		}
		if device, err := c.Find("/dev/mapper/other"); err != nil || device != "" {
			t.Errorf("still there: %q, %v", device, err)
		}
	})
}
