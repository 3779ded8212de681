//go:build lab

package microceph

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func startForTest(t *testing.T) *Cluster {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	begin := time.Now()
	dir, err := os.MkdirTemp("", "mc-") //nolint:usetesting // the path of a socket has to be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	c, err := Start(ctx, Config{Dir: filepath.Join(dir, "c"), Address: "127.0.0.1", Log: func(step string) { t.Log(time.Since(begin), step) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Log(time.Since(begin), "ready")
	t.Cleanup(func() {
		if err := c.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return c
}

func TestTwoClustersSideBySideHoldTheirOwnData(t *testing.T) {
	a, b := startForTest(t), startForTest(t)
	for i, c := range []*Cluster{a, b} {
		if _, err := c.run(t.Context(), "", "rbd", "create", "--size", "8M", fmt.Sprintf("fast/image-%d", i)); err != nil {
			t.Fatal(err)
		}
		images, err := c.run(t.Context(), "", "rbd", "ls", "fast")
		if want := fmt.Sprintf("image-%d\n", i); err != nil || string(images) != want {
			t.Errorf("cluster %d holds %q, %v; want %q", i, images, err, want)
		}
	}
}

func TestUserCanDoNoMoreThanItsCapabilities(t *testing.T) {
	c := startForTest(t)
	keyring, err := c.CreateUser(t.Context(), "client.escache", map[string]string{"mon": "profile rbd", "osd": "profile rbd pool=rbd"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(keyring); err != nil {
		t.Fatal(err)
	}
	if _, err := c.run(t.Context(), "", "rbd", "--id", "escache", "create", "--size", "8M", "rbd/mine"); err != nil {
		t.Errorf("in its own pool: %v", err)
	}
	if _, err := c.run(t.Context(), "", "rbd", "--id", "escache", "create", "--size", "8M", "fast/foreign"); err == nil {
		t.Error("it may write to a pool that it has no capability for")
	}
}

func TestStalledOSDHangsWritesUntilResumed(t *testing.T) {
	c := startForTest(t)
	if err := c.Stall(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	if _, err := c.run(ctx, "", "rbd", "create", "--size", "8M", "rbd/image"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("write with a stalled OSD: %v", err)
	}
	if err := c.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.run(t.Context(), "", "rbd", "create", "--size", "8M", "rbd/image2"); err != nil {
		t.Errorf("after resume: %v", err)
	}
}

func TestDaemonThatCannotStartIsNamedWithItsLog(t *testing.T) {
	dir := t.TempDir()
	c, err := Start(t.Context(), Config{Dir: dir, RunDir: t.TempDir(), Address: "203.0.113.1"})
	if err == nil {
		c.Stop(context.Background())
		t.Fatal("a cluster on an address that this machine does not have")
	}
	if !strings.Contains(err.Error(), "mon.a") || !strings.Contains(err.Error(), dir) {
		t.Errorf("the error names neither the daemon nor its log: %v", err)
	}
}

func TestStopLeavesNoProcess(t *testing.T) {
	c := startForTest(t)
	if err := c.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("pgrep", "-f", c.Conf()).Output(); err == nil {
		t.Errorf("still there: %s", out)
	}
}
