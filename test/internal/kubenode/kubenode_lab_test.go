//go:build lab

package kubenode

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/escache/escache-csi/test/internal/buildcache"
	"github.com/escache/escache-csi/test/internal/hostimage"
	"github.com/escache/escache-csi/test/internal/progress"
	"github.com/escache/escache-csi/test/internal/toolbuilder"
)

func TestRootImageHoldsNodeProgramsAndUnpackedImages(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	cache, err := buildcache.Open("")
	if err != nil {
		t.Fatal(err)
	}
	builder, err := toolbuilder.New(".", cache, progress.New(os.Stderr))
	if err != nil {
		t.Fatal(err)
	}
	programs, err := builder.Paths(ctx, Programs()...)
	if err != nil {
		t.Fatal(err)
	}
	pause := filepath.Join(t.TempDir(), "pause")
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", pause, "../../pause")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatal(err, string(out))
	}
	flavour, err := Flavour(programs, Images{Pause: pause})
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	image, err := hostimage.Build(ctx, cache, flavour, func(step string) { t.Log(time.Since(begin), step) })
	if err != nil {
		t.Fatal(err)
	}
	t.Log(time.Since(begin), image.Root)
	for _, path := range []string{
		"/usr/local/bin/kubelet", "/usr/sbin/runc", "/usr/lib/cni/ptp",
		"/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots/1/fs/pause",
		"/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots/2/fs/bin/busybox",
	} {
		out, err := exec.CommandContext(ctx, "debugfs", "-R", "stat "+path, image.Root).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "Type: regular") {
			t.Errorf("%s is not in the image: %v: %s", path, err, out)
		}
	}
}
