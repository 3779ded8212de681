package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/benchmark"
	"github.com/escache/escache-csi/internal/benchmark/device"
)

// Volume is a mounted filesystem that is measured.
type Volume struct {
	Name string // what the result calls it
	Dir  string // where it is mounted; files of the benchmark are made there and removed
}

// ErrStuck means that an operation has not ended, and that nothing can end it.
var ErrStuck = errors.New("reads or writes do not end")

// Compare measures volumes. They take turns, and every second round begins with the last one. tell gets
// a line of progress now and then. After ErrStuck, files stay and goroutines wait for the volume.
func Compare(ctx context.Context, plan benchmark.Plan, volumes []Volume, tell func(string)) (result benchmark.Result, err error) {
	if err := plan.Validate(); err != nil {
		return result, err
	}
	scenes := make([]*scene, len(volumes))
	defer func() {
		if errors.Is(err, ErrStuck) {
			return // the removal would get stuck as well
		}
		for _, s := range scenes {
			err = errors.Join(err, s.remove())
		}
	}()
	for i, v := range volumes {
		tell(fmt.Sprintf("fill a file of %s on %s", v1alpha1.HumanBytes(plan.FileBytes()), v.Name))
		if scenes[i], err = newScene(ctx, plan, v); err != nil {
			return result, fmt.Errorf("volume %s: %w", v.Name, err)
		}
		result.Volumes = append(result.Volumes, v.Name)
	}
	for _, t := range benchmark.Tests() {
		result.Tests = append(result.Tests, benchmark.Outcome{Test: t, Turns: make([][]benchmark.Turn, len(volumes))})
	}
	for round := range plan.Rounds {
		tell(fmt.Sprintf("round %d of %d", round+1, plan.Rounds))
		if err := runRound(ctx, scenes, result.Tests, round%2 == 1); err != nil {
			return result, err
		}
	}
	return result, nil
}

func runRound(ctx context.Context, scenes []*scene, tests []benchmark.Outcome, backward bool) error {
	order := make([]int, len(scenes))
	for i := range order {
		order[i] = i
	}
	if backward {
		slices.Reverse(order)
	}
	for _, o := range tests {
		for _, i := range order {
			turn, err := scenes[i].turn(ctx, o.Test)
			if err != nil {
				return fmt.Errorf("volume %s: %s by %d: %w", scenes[i].Name, o.Name, o.Workers, err)
			}
			o.Turns[i] = append(o.Turns[i], turn)
		}
	}
	return nil
}

// scene has the files of a benchmark on one volume. nil has none.
type scene struct {
	Volume

	plan        benchmark.Plan
	own         string   // directory of all files
	plain, sync *os.File // the same file
}

// newScene makes the file and fills it. What it has made is in the scene also if it fails.
func newScene(ctx context.Context, plan benchmark.Plan, v Volume) (*scene, error) {
	if err := room(v.Dir, plan.FileBytes()+plan.AppendBytes()); err != nil {
		return nil, err
	}
	own, err := os.MkdirTemp(v.Dir, "escache-bench-")
	if err != nil {
		return nil, fmt.Errorf("it takes no files of user %d: %w", os.Getuid(), err)
	}
	s := &scene{Volume: v, plan: plan, own: own}
	path := filepath.Join(own, "file")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return s, err
	}
	if s.plain, err = open(path, device.Write); err != nil {
		return s, err
	}
	if s.sync, err = open(path, device.WriteSync); err != nil {
		return s, err
	}
	filling := SequentialWrites(s.plain, plan.FileBytes(), benchmark.ChunkBytes, 4)
	filling.Time = plan.FillTime()
	filled, err := bounded(ctx, filling)
	if err == nil && filled.Bytes < plan.FileBytes() {
		err = fmt.Errorf("it has taken %s in %s; choose a smaller size", v1alpha1.HumanBytes(filled.Bytes), plan.FillTime())
	}
	return s, err
}

// room fails if the filesystem has not that many bytes free.
func room(dir string, bytes int64) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return fmt.Errorf("free space of %s: %w", dir, err)
	}
	if free := int64(fs.Bavail) * fs.Bsize; free < bytes {
		return fmt.Errorf("it has %s free, and the files need %s; choose a larger size",
			v1alpha1.HumanBytes(free), v1alpha1.HumanBytes(bytes))
	}
	return nil
}

func open(path string, mode device.Mode) (*os.File, error) {
	f, err := device.Open(path, mode)
	if errors.Is(err, syscall.EINVAL) {
		return nil, fmt.Errorf("its filesystem has no direct I/O, so it cannot be measured: %w", err)
	}
	return f, err
}

func (s *scene) remove() error {
	if s == nil {
		return nil
	}
	for _, f := range []*os.File{s.plain, s.sync} {
		if f != nil {
			_ = f.Close() // all its writes are stable, and it is removed
		}
	}
	return os.RemoveAll(s.own)
}

// turn runs one test.
func (s *scene) turn(ctx context.Context, t benchmark.Test) (turn benchmark.Turn, err error) {
	load := SequentialWrites(s.plain, s.plan.FileBytes(), benchmark.ChunkBytes, t.Workers)
	switch t.Name {
	case benchmark.SyncWrite:
		load = SyncWrites(s.sync, s.plan.FileBytes(), t.Workers)
	case benchmark.RandomRead:
		load = RandomReads(s.plain, s.plan.FileBytes(), t.Workers)
	case benchmark.Append:
		var files []*os.File
		files, err = s.newFiles(t.Workers)
		defer func() {
			if !errors.Is(err, ErrStuck) {
				removeFiles(files)
			}
		}()
		if err != nil {
			return turn, err
		}
		load = Appends(files)
	}
	load.Time, load.Operations = s.plan.Turn, s.plan.TurnOperations(t)
	return bounded(ctx, load)
}

// newFiles returns those that it has made also if it fails.
func (s *scene) newFiles(count int) ([]*os.File, error) {
	var files []*os.File
	for i := range count {
		f, err := os.Create(filepath.Join(s.own, fmt.Sprintf("append-%d", i)))
		if err != nil {
			return files, err
		}
		files = append(files, f)
	}
	return files, nil
}

// removeFiles gives their room back. It does not matter if it fails: all files are removed at the end.
func removeFiles(files []*os.File) {
	for _, f := range files {
		_ = f.Truncate(0)
		_ = f.Close()
	}
}

// bounded runs a load, and gives up on it when it does not end long after it should have.
func bounded(ctx context.Context, load Load) (benchmark.Turn, error) {
	type outcome struct {
		turn benchmark.Turn
		err  error
	}
	ended := make(chan outcome, 1)
	go func() {
		turn, err := load.Run(ctx)
		ended <- outcome{turn, err}
	}()
	select {
	case o := <-ended:
		return o.turn, o.err
	case <-time.After(load.Time + benchmark.Patience):
		return benchmark.Turn{}, fmt.Errorf("%w within %s", ErrStuck, load.Time+benchmark.Patience)
	}
}
