package hostimage

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// lz4Magic begins what Debian's kernel image unpacks at boot.
const lz4Magic = "\x02\x21\x4c\x18"

// makeKernel writes the kernel that the machines boot: the same kernel as in Debian's image, but
// unpacked already, because QEMU's emulated processor takes half a second for that. Where it is
// packed in another way, the image is taken as it is; QEMU boots both.
func makeKernel(ctx context.Context, image, target string) error {
	data, err := os.ReadFile(image)
	if err != nil {
		return fmt.Errorf("kernel: %w", err)
	}
	_, packed, found := bytes.Cut(data, []byte(lz4Magic))
	if !found {
		return copyFile(image, target, 0o644)
	}
	unpack := exec.CommandContext(ctx, "lz4", "-dc")
	unpack.Stdin = bytes.NewReader(append([]byte(lz4Magic), packed...))
	var kernel bytes.Buffer
	unpack.Stdout = &kernel
	// It complains about what follows the packed kernel in the image; whether all of it came is
	// seen by the result.
	failed := unpack.Run()
	if !bytes.HasPrefix(kernel.Bytes(), []byte("\x7fELF")) || kernel.Len() < len(data) {
		return fmt.Errorf("unpack %s: %w", filepath.Base(image), failed)
	}
	if err := os.WriteFile(target, kernel.Bytes(), 0o644); err != nil {
		return fmt.Errorf("kernel: %w", err)
	}
	return nil
}
