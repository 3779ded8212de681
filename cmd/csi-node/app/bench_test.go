package app

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/escache/escache-csi/internal/benchmark"
)

// messages runs the command line and returns its lines.
func messages(t *testing.T, args ...string) ([]benchmark.Message, error) {
	t.Helper()
	var out bytes.Buffer
	cmd := root("test")
	cmd.SetArgs(append([]string{"bench"}, args...))
	cmd.SetOut(&out)
	err := cmd.ExecuteContext(t.Context())
	var all []benchmark.Message
	for line := range strings.Lines(out.String()) {
		m := benchmark.Message{}
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		all = append(all, m)
	}
	return all, err
}

func TestBenchPrintsProgressAndThenTheResult(t *testing.T) {
	dir := t.TempDir()
	all, err := messages(t, "--size=268435456", "--rounds=1", "--turn=100ms", "one="+dir)
	if errors.Is(err, syscall.EINVAL) {
		t.Skipf("no direct I/O here: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	last := all[len(all)-1].Result
	if last == nil || !slices.Equal(last.Volumes, []string{"one"}) || len(last.Tests) != len(benchmark.Tests()) {
		t.Errorf("the last line is %+v", all[len(all)-1])
	}
	if !slices.ContainsFunc(all, func(m benchmark.Message) bool { return m.Progress == "round 1 of 1" }) {
		t.Errorf("no progress in %+v", all)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

func TestBenchSaysWhatIsWrong(t *testing.T) {
	all, err := messages(t, "--size=268435456", "one=/nowhere")
	if err == nil || len(all) == 0 || !strings.Contains(all[len(all)-1].Error, "volume one: free space of /nowhere") {
		t.Errorf("%v; %+v", err, all)
	}
	for _, args := range [][]string{{}, {"--size=268435456", "nothing"}, {"--size=1", "one=/tmp"}} {
		if _, err := messages(t, args...); err == nil {
			t.Errorf("%q is accepted", args)
		}
	}
}
