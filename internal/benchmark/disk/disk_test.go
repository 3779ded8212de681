package disk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/escache/escache-csi/internal/benchmark"
	"github.com/escache/escache-csi/internal/benchmark/device"
)

// onDisk is a directory on a real filesystem with direct I/O.
func onDisk(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "probe")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := device.Open(path, device.Read)
	if err != nil {
		t.Skipf("no direct I/O here: %v", err)
	}
	f.Close()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	return dir
}

func opened(t *testing.T, mode device.Mode) *os.File {
	t.Helper()
	path := filepath.Join(onDisk(t), "file")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := device.Open(path, mode)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

const span = 16 * benchmark.BlockBytes

// Each block differs from all others, and has no zero that a layer could skip.
func TestWritesHaveAContentOfTheirOwn(t *testing.T) {
	for name, load := range map[string]Load{
		"sync":       SyncWrites(opened(t, device.WriteSync), span, 2),
		"sequential": SequentialWrites(opened(t, device.Write), span, 4*benchmark.BlockBytes, 2),
	} {
		t.Run(name, func(t *testing.T) {
			load.Operations = span / load.OperationBytes
			turn, err := load.Run(t.Context())
			if err != nil || turn.Bytes != span {
				t.Fatalf("%+v, %v", turn, err)
			}
		})
	}
	f := opened(t, device.Write)
	if _, err := SequentialWrites(f, span, 4*benchmark.BlockBytes, 2).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	p, err := os.ReadFile(f.Name())
	if err != nil || len(p) != span || bytes.IndexByte(p, 0) >= 0 {
		t.Fatalf("%d bytes, or zeros in them: %v", len(p), err)
	}
	seen := map[string]bool{}
	for at := 0; at < span; at += benchmark.BlockBytes {
		seen[string(p[at:at+benchmark.BlockBytes])] = true
	}
	if len(seen) != 16 {
		t.Errorf("%d different blocks of 16", len(seen))
	}
}

func TestSyncWritesVisitEachBlock(t *testing.T) {
	f := opened(t, device.WriteSync)
	load := SyncWrites(f, span, 3)
	load.Operations = 16
	turn, err := load.Run(t.Context())
	if err != nil || turn.Operations != 16 || turn.P50Micros > turn.P99Micros || turn.P99Micros > turn.MaxMicros || turn.PerSecond <= 0 {
		t.Fatalf("%+v, %v", turn, err)
	}
	if p, err := os.ReadFile(f.Name()); err != nil || len(p) != span || bytes.IndexByte(p, 0) >= 0 {
		t.Errorf("%d bytes, some not written: %v", len(p), err)
	}
}

func TestALoadEndsAtItsFirstBound(t *testing.T) {
	load := Load{Workers: 2, OperationBytes: 1, Time: 50 * time.Millisecond, Start: func(int) (func(int64) error, error) {
		return func(int64) error { time.Sleep(time.Millisecond); return nil }, nil
	}}
	turn, err := load.Run(t.Context())
	if err != nil || turn.Seconds < 0.05 || turn.Operations < 2 {
		t.Errorf("by time: %+v, %v", turn, err)
	}
	load.Time, load.Operations = time.Minute, 7
	if turn, err = load.Run(t.Context()); err != nil || turn.Operations != 7 || turn.Seconds > 30 {
		t.Errorf("by operations: %+v, %v", turn, err)
	}
	load.Time, load.Operations = time.Nanosecond, 0
	if turn, err = load.Run(t.Context()); err != nil || turn.Operations < 2 || turn.PerSecond <= 0 {
		t.Errorf("each worker does one operation at least: %+v, %v", turn, err)
	}
}

func TestALoadFailsWithItsOperations(t *testing.T) {
	bad := errors.New("bad sector")
	load := Load{Workers: 2, Time: time.Minute, Start: func(int) (func(int64) error, error) {
		return func(n int64) error {
			if n == 5 {
				return bad
			}
			return nil
		}, nil
	}}
	if _, err := load.Run(t.Context()); !errors.Is(err, bad) {
		t.Errorf("an operation failed: %v", err)
	}
	load.Start = func(int) (func(int64) error, error) { return func(int64) error { return nil }, nil }
	load.Finish = func() error { return bad }
	load.Time = time.Millisecond
	if _, err := load.Run(t.Context()); !errors.Is(err, bad) {
		t.Errorf("what was written did not become stable: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := load.Run(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("it was interrupted: %v", err)
	}
}

var small = benchmark.Plan{Bytes: benchmark.MinBytes, Rounds: 2, Turn: benchmark.MinTurn}

func TestVolumesTakeTurnsAndKeepNothing(t *testing.T) {
	first, second := onDisk(t), onDisk(t)
	var told []string
	result, err := Compare(t.Context(), small, []Volume{{"a", first}, {"b", second}}, func(line string) { told = append(told, line) })
	if err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(result.Volumes) != "[a b]" || len(result.Tests) != len(benchmark.Tests()) {
		t.Fatalf("%+v", result)
	}
	for _, o := range result.Tests {
		for i, turns := range o.Turns {
			if len(turns) != small.Rounds {
				t.Errorf("%s on %s: %d turns", o.Name, result.Volumes[i], len(turns))
			}
			for _, turn := range turns {
				if turn.Operations == 0 || turn.PerSecond <= 0 || turn.Bytes > max(small.TurnBytes(o.Test), 0) && o.Name != benchmark.RandomRead {
					t.Errorf("%s on %s: %+v", o.Name, result.Volumes[i], turn)
				}
			}
		}
	}
	for _, dir := range []string{first, second} {
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("left %v, %v", left, err)
		}
	}
	want := "fill a file of 128Mi on a|fill a file of 128Mi on b|round 1 of 2|round 2 of 2"
	if got := strings.Join(told, "|"); got != want {
		t.Errorf("told %s", got)
	}
}

func TestAnInterruptedBenchmarkKeepsNothing(t *testing.T) {
	dir := onDisk(t)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := Compare(ctx, small, []Volume{{"a", dir}}, func(line string) {
		if line == "round 1 of 2" {
			cancel()
		}
	})
	if left, readErr := os.ReadDir(dir); !errors.Is(err, context.Canceled) || readErr != nil || len(left) > 0 {
		t.Errorf("%v; left %v, %v", err, left, readErr)
	}
}

func TestAVolumeThatCannotBeMeasuredIsNamed(t *testing.T) {
	for _, tc := range []struct {
		plan benchmark.Plan
		dir  string
		says string
	}{
		{benchmark.Plan{}, onDisk(t), "not between 256Mi"},
		{small, filepath.Join(onDisk(t), "none"), "volume b: free space of"},
	} {
		_, err := Compare(t.Context(), tc.plan, []Volume{{"b", tc.dir}}, func(string) {})
		if err == nil || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%v, want %q", err, tc.says)
		}
	}
	if err := room(onDisk(t), math.MaxInt64); err == nil || !strings.Contains(err.Error(), "choose a larger size") {
		t.Errorf("a full volume: %v", err)
	}
}
