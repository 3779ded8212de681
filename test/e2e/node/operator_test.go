//go:build e2e

package node

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/test/labtest"
)

// escache runs `kubectl escache`, as an operator does. It returns what it said, and its exit code.
func (w *world) escache(t *testing.T, args ...string) (said string, code int) {
	t.Helper()
	return w.escacheTyped(t, "", args...)
}

// escacheTyped is escache with what the operator types.
func (*world) escacheTyped(t *testing.T, typed string, args ...string) (said string, code int) {
	t.Helper()
	answer := labtest.Escache(t, typed, args...)
	return answer.All(), answer.Code
}

// done is escache where anything but success fails the test.
func (w *world) done(t *testing.T, args ...string) string {
	t.Helper()
	said, code := w.escache(t, args...)
	if code != 0 {
		t.Fatalf("kubectl escache %s: exit code %d: %s", strings.Join(args, " "), code, said)
	}
	return said
}

// cacheFlush reads one.
func (w *world) cacheFlush(ctx context.Context, name string) (*v1alpha1.CacheFlush, error) {
	text, err := w.try(ctx, "", "get", "cacheflush", name, "-o", "json")
	if err != nil {
		return nil, err
	}
	f := &v1alpha1.CacheFlush{}
	return f, json.Unmarshal([]byte(text), f)
}

// kernelDirty is what the caches of a host hold that Ceph has not, as its kernel counts it: blocks
// of 4 KiB that are neither free nor belong to a cache that is being made.
func (w *world) kernelDirty(t *testing.T, node string) (bytes int64, caches int) {
	t.Helper()
	for line := range strings.Lines(w.shell(t, node, "dmsetup status --noflush --target writecache")) {
		// NAME: START LENGTH writecache ERROR BLOCKS FREE …
		fields := strings.Fields(line)
		var failed, blocks, free int64
		if len(fields) < 7 || fields[3] != "writecache" {
			continue // dmsetup says so where there is none
		}
		if _, err := fmt.Sscan(strings.Join(fields[4:7], " "), &failed, &blocks, &free); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if failed != 0 {
			t.Errorf("a cache of %s has an error: %s", node, line)
		}
		bytes += (blocks - free) << 12
		caches++
	}
	return bytes, caches
}

// onHost is what a host's escached says of a volume.
func (w *world) onHost(t *testing.T, node, volume string) escache.VolumeStatus {
	t.Helper()
	spec := w.volume(t, volume).Spec
	for _, h := range labtest.Open(t).Hosts {
		if h.Name == node {
			status, err := h.API.VolumeStatus(t.Context(), escache.VolumeRef{Pool: spec.Pool, Image: spec.Image})
			check(t, err)
			return *status
		}
	}
	t.Fatalf("the lab has no host %s", node)
	return escache.VolumeStatus{}
}

// failedIO is what the kernel of a host has said of I/O that failed since it was booted.
func (w *world) failedIO(t *testing.T, node string) string {
	t.Helper()
	return w.shell(t, node, "dmesg | grep -e 'I/O error' -e 'EXT4-fs error' -e 'Aborting journal' -e 'lost async page write' || true")
}

// endFlushes removes what a test has left, so that no volume of the next one writes through.
func (w *world) endFlushes(t *testing.T) {
	t.Helper()
	if _, err := w.try(context.WithoutCancel(t.Context()), "", "delete", "cacheflushes", "--all", "--timeout=120s"); err != nil {
		t.Errorf("%v", err)
	}
}
