package hostimage

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// bootModules are what the kernel needs to find its root disk.
var bootModules = []string{"virtio_pci", "virtio_blk", "ext4"}

// initramfsPadding is how many zeros stand behind the archive, which the kernel skips. QEMU loads
// the file as high as it can and spares 160 KiB above it for the firmware, where SeaBIOS with its
// virtio disks has taken 176 (the kernel's log shows that RAMDISK ends in what BIOS-e820 calls
// reserved). What the firmware wrote late was then missing from the end of the archive, and init
// died.
const initramfsPadding = 128 << 10

// makeInitramfs writes the smallest initramfs that mounts the root disk: a start script, busybox
// and a handful of modules.
func makeInitramfs(ctx context.Context, k *kernel, work, target string) error {
	modules, err := k.closure(bootModules)
	if err != nil {
		return err
	}
	for _, dir := range []string{"bin", "dev", "proc", "root", "modules"} {
		if err := os.MkdirAll(filepath.Join(work, dir), 0o755); err != nil {
			return fmt.Errorf("initramfs: %w", err)
		}
	}
	if err := copyFile(filepath.Join(k.root, "bin/busybox"), filepath.Join(work, "bin/busybox"), 0o755); err != nil {
		return err
	}
	var order strings.Builder
	for _, module := range modules {
		name := filepath.Base(module)
		if err := copyFile(filepath.Join(k.dir(), module), filepath.Join(work, "modules", name), 0o644); err != nil {
			return err
		}
		fmt.Fprintln(&order, name)
	}
	if err := os.WriteFile(filepath.Join(work, "modules/order"), []byte(order.String()), 0o644); err != nil {
		return fmt.Errorf("initramfs: %w", err)
	}
	script, err := source.ReadFile("initramfs.sh")
	if err != nil {
		return fmt.Errorf("initramfs: %w", err)
	}
	if err := os.WriteFile(filepath.Join(work, "init"), script, 0o755); err != nil {
		return fmt.Errorf("initramfs: %w", err)
	}
	pack := exec.CommandContext(ctx, "sh", "-c", `{ find . | cpio --quiet -o -H newc | gzip -1; head -c "$2" /dev/zero; } >"$1"`, "sh",
		target, strconv.Itoa(initramfsPadding))
	pack.Dir = work
	if _, err := output(pack); err != nil {
		return fmt.Errorf("initramfs: %w", err)
	}
	return nil
}
