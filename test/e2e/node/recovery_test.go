//go:build e2e

package node

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/escache/escache-csi/test/lab/labclient"
	"github.com/escache/escache-csi/test/labtest"
)

// TestRecovery has csi-controller bring volumes back after the loss of hosts and copies, and of
// Ceph's good will. Each test has the flags of csi-controller that it needs: most of this is off by
// default.
func TestRecovery(t *testing.T) {
	w := open(t)
	tests := []struct {
		name  string
		flags []string
		run   func(*testing.T, *world)
	}{
		{"what Ceph refuses stays in the cache and with its host", nil, refused},
		{"a dead disk takes the place of a peer on record that has everything", nil, deadDiskOnRecord},
		{"the loss of the only current copy is accepted by name", nil, discarded},
		{"a lost replica is replaced on the third host under load", []string{"--repair-after=15s"}, replaced},
		{"a dead host is tainted, and its pod moves", []string{"--taint-dead-nodes", "--taint-after=15s"}, tainted},
		{"a host that lives is not tainted", []string{"--taint-dead-nodes", "--taint-after=15s"}, notTainted},
		{"a pod leaves its volume's group without the cache, and gets it back", []string{"--uncached-fallback"}, leavesItsGroup},
	}
	defer func() { check(t, w.lab.SetControllerFlags(context.WithoutCancel(t.Context()))) }()
	var flags []string
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if strings.Join(flags, " ") != strings.Join(test.flags, " ") {
				check(t, w.lab.SetControllerFlags(t.Context(), test.flags...))
				flags = test.flags
			}
			w.ready(t)
			defer w.cleanUp(t)
			test.run(t, w)
		})
	}
}

// history is every version of an object since it is followed.
type history[T any] struct {
	mu  sync.Mutex
	all []T
}

func (h *history[T]) versions() []T {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clip(h.all)
}

// follow returns once the first version is there.
func follow[T any](t *testing.T, w *world, kind, name string) *history[T] {
	t.Helper()
	h := &history[T]{}
	cmd := exec.CommandContext(t.Context(), filepath.Join(os.Getenv(labclient.EnvBin), "kubectl"), "get", kind, name, "--watch", "-o", "json")
	out, err := cmd.StdoutPipe()
	check(t, err)
	check(t, cmd.Start())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		versions := json.NewDecoder(out)
		for {
			var version T
			if versions.Decode(&version) != nil {
				_ = cmd.Wait() // it ends with the test
				return
			}
			h.mu.Lock()
			h.all = append(h.all, version)
			h.mu.Unlock()
		}
	}()
	t.Cleanup(func() { <-ended })
	labtest.WaitForCommand(t, kind+" "+name+" is followed", commandTime, func(context.Context) error {
		if len(h.versions()) == 0 {
			return fmt.Errorf("no version yet")
		}
		return nil
	})
	return h
}

// said is what Events tell of an object: messages by reason.
func (w *world) said(ctx context.Context, kind, name string) (map[string]string, error) {
	all, err := w.eventsOf(ctx, kind, name)
	told := map[string]string{}
	for _, e := range all {
		told[e.Reason] += e.Message + "\n"
	}
	return told, err
}

// waitForEvent waits until an Event of that reason tells all of the words, and returns its message.
func (w *world) waitForEvent(t *testing.T, kind, name, reason string, words ...string) string {
	t.Helper()
	message := ""
	took := labtest.WaitForCommand(t, fmt.Sprintf("Event %s of %s %s", reason, kind, name), podTime, func(ctx context.Context) error {
		told, err := w.said(ctx, kind, name)
		if err != nil {
			return err
		}
		for _, word := range words {
			if !strings.Contains(told[reason], word) {
				return fmt.Errorf("no %q in %q", word, told)
			}
		}
		if message = strings.TrimSpace(told[reason]); message == "" {
			return fmt.Errorf("there are only %q", told)
		}
		return nil
	})
	t.Logf("after %s: %s: %s", took.Round(1e8), reason, message)
	return message
}

// third is the node of the group that has no replica.
func (w *world) third(t *testing.T, volume string) string {
	t.Helper()
	spec := w.volume(t, volume).Spec
	for _, n := range w.nodes {
		if !spec.HasReplica(n) {
			return n
		}
	}
	t.Fatalf("volume %s has replicas on %q, and there are %q", volume, spec.Replicas, w.nodes)
	return ""
}

// waitForVolume waits until a volume's record is as wanted.
func (w *world) waitForVolume(t *testing.T, volume, what string, wanted func(*cacheVolume) error) {
	t.Helper()
	took := labtest.WaitForCommand(t, "volume "+volume+" "+what, podTime, func(ctx context.Context) error {
		v, err := w.read(ctx, volume)
		if err == nil {
			err = wanted(v)
		}
		return err
	})
	t.Logf("%s after %s", what, took.Round(1e8))
}

// boot brings back a host that nobody has tainted.
func (w *world) boot(t *testing.T, node string) {
	t.Helper()
	check(t, w.lab.PowerOn(t.Context(), node))
	w.kubectl(t, "wait", "--for=condition=Ready", "node/"+node, fmt.Sprintf("--timeout=%s", podTime))
}
