package labtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"github.com/escache/escache-csi/api/escache"
)

// Grow makes the volume's image larger.
func (v *Volume) Grow(t T, sizeBytes int64) {
	t.Helper()
	if err := v.lab.grow(t.Context(), v.VolumeRef, sizeBytes); err != nil {
		t.Fatalf("%v", err)
	}
}

// grow makes an image larger while a host has it, as csi-controller does.
func (l *Lab) grow(ctx context.Context, ref escache.VolumeRef, sizeBytes int64) error {
	program, err := grower()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "ceph-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	keyring, err := command(ctx, "ceph", "auth", "get", "client.admin")
	if err != nil {
		return err
	}
	cluster := filepath.Join(dir, "lab")
	err = errors.Join(os.Mkdir(cluster, 0o700), os.Symlink(os.Getenv("CEPH_CONF"), filepath.Join(cluster, "ceph.conf")),
		os.WriteFile(filepath.Join(cluster, "keyring"), []byte(keyring), 0o600))
	if err != nil {
		return err
	}
	_, err = command(ctx, program, "-dir", dir, "-cluster", "lab", "-pool", ref.Pool, "-image", ref.Image, "-bytes", fmt.Sprint(sizeBytes))
	return err
}

// grower builds test/growimage, once: it needs Ceph's libraries, which the tests themselves are not
// linked with.
var grower = sync.OnceValues(func() (string, error) {
	const module = "github.com/escache/escache-csi"
	ctx, cancel := context.WithTimeout(context.Background(), 5*cephTimeout)
	defer cancel()
	run := func(name string, args ...string) (string, error) {
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
		out, err := cmd.CombinedOutput()
		if err != nil {
			return "", fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
		}
		return strings.TrimSpace(string(out)), nil
	}
	checkout, err := run("go", "list", "-m", "-f", "{{.Dir}}")
	if err != nil {
		return "", err
	}
	tags, err := run(filepath.Join(checkout, "hack", "ceph-tags.sh"))
	if err != nil {
		return "", err
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	program := filepath.Join(dir, "escache-csi", "growimage")
	_, err = run("go", "build", "-tags", tags, "-o", program, module+"/test/growimage")
	return program, err
})
