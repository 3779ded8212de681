//go:build e2e

package host

import (
	"fmt"
	"testing"
	"time"

	"github.com/escache/escache-csi/test/labtest"
)

// smallAndIdle looks at an escached with a connected volume to which nothing happens. What CPU time
// means on an emulated host depends on what else its machine does, so doing nothing is compared
// with doing something in the same run: being asked for its status ten times for each second.
func smallAndIdle(t *testing.T, lab *labtest.Lab) {
	const (
		look        = 30 * time.Second
		maxResident = 40 << 10 // KiB
	)
	n1 := lab.Hosts[0]
	v := lab.NewVolume(t, labtest.VolumeSpec{})
	v.Lay(t)
	n1.Fill(t, v.Connect(t, n1).Device, 0, mib)

	before := n1.ServiceUse(t)
	const questions = 300
	for range questions {
		v.Status(t, n1)
	}
	between, begin := n1.ServiceUse(t), time.Now()
	select {
	case <-time.After(look):
	case <-t.Context().Done():
	}
	after, elapsed := n1.ServiceUse(t), time.Since(begin)
	asked, idle := between.CPU-before.CPU, after.CPU-between.CPU
	t.Logf("escached: %s; idle for %s it took %s CPU, %.2f %% of an emulated core; %d questions for its status take %s",
		after, elapsed.Round(time.Second), idle, 100*idle.Seconds()/elapsed.Seconds(), questions, asked)
	if after.ResidentKiB > maxResident {
		t.Errorf("%d KiB resident, more than %d", after.ResidentKiB, maxResident)
	}
	if idle > asked {
		t.Errorf("doing nothing for %s took %s CPU, and %d answers only %s", look, idle, questions, asked)
	}
	v.Remove(t, n1)
}

// pollsStartNothing counts the processes of the whole host while it is asked what callers ask all
// the time: starting one takes seconds on a host that is short of CPU.
func pollsStartNothing(t *testing.T, lab *labtest.Lab) {
	const polls = 50
	n1 := lab.Hosts[0]
	v := lab.NewVolume(t, labtest.VolumeSpec{})
	v.Lay(t)
	n1.Fill(t, v.Connect(t, n1).Device, 0, mib)
	started := func() (n int) {
		t.Helper()
		if _, err := fmt.Sscan(n1.Shell(t, "sed -n 's/^processes //p' /proc/stat"), &n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	// What another volume's device is for a moment while it is made.
	n1.Shell(t, "dmsetup create escache-0123456789abcdef-new --notable")
	before, begin := started(), time.Now()
	var slowest time.Duration
	for range polls {
		for what, ask := range map[string]func() error{
			"node":   func() error { _, err := n1.API.Node(t.Context()); return err },
			"status": func() error { _, err := n1.API.Status(t.Context()); return err },
		} {
			asked := time.Now()
			if err := ask(); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			slowest = max(slowest, time.Since(asked))
		}
	}
	took, more := time.Since(begin), started()-before
	t.Logf("%d polls took %s, the slowest %s; the host started %d processes and threads meanwhile", 2*polls, took, slowest, more)
	if more > polls/2 {
		t.Errorf("%d polls came with %d new processes", 2*polls, more)
	}
	n1.Shell(t, "dmsetup remove escache-0123456789abcdef-new")
	v.Remove(t, n1)
}
