package device

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/escache/escache-csi/internal/escached/cache/log/memory"
	"github.com/escache/escache-csi/internal/escached/cache/log/record"
	"github.com/escache/escache-csi/internal/escached/cache/log/ring"
)

// victimDir is set in the process that the test kills.
const victimDir = "ESCACHE_TEST_VICTIM"

func TestMain(m *testing.M) {
	if dir := os.Getenv(victimDir); dir != "" {
		seed, _ := strconv.ParseUint(os.Args[1], 10, 64)
		first, _ := strconv.ParseUint(os.Args[2], 10, 32)
		fmt.Println("failed", victim(dir, rand.New(rand.NewPCG(seed, 3)), uint32(first)))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// file is a disk and an origin.
type file struct{ *os.File }

func (f file) WriteStable(p []byte, at int64) error {
	_, err := f.WriteAt(p, at)
	return err
}

func (f file) Zero(at, bytes int64, _ bool) error {
	_, err := f.WriteAt(make([]byte, bytes), at)
	return err
}

// openIn opens the device whose parts are in a directory on tmpfs.
func openIn(dir string) (*Device, *memory.Memory, error) {
	var files [2]file
	for i, name := range []string{"log", "image"} {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDWR, 0)
		if err != nil {
			return nil, nil, err
		}
		files[i] = file{f}
	}
	m, err := memory.Open(filepath.Join(dir, "memory"))
	if err != nil {
		return nil, nil, err
	}
	d, losses, err := Open(files[0], files[1], m)
	if err == nil && len(losses) > 0 {
		err = fmt.Errorf("lost: %v", losses)
	}
	return d, m, err
}

// victim writes, flushes and writes back until it is killed, and tells the test of each write before it and after it.
func victim(dir string, random *rand.Rand, serial uint32) error {
	d, _, err := openIn(dir)
	if err != nil {
		return err
	}
	background := make(chan error)
	go func() {
		for {
			if _, err := d.Step(); err != nil {
				background <- err
			}
		}
	}()
	go func() {
		for {
			if err := d.Flush(); err != nil {
				background <- err
			}
			time.Sleep(100 * time.Microsecond)
		}
	}()
	fmt.Println("ready")
	for {
		select {
		case err := <-background:
			return err
		default:
		}
		if random.IntN(20) == 0 {
			d.WriteThrough(random.IntN(3) == 0)
		}
		serial++
		start := random.IntN(volumeBlocks)
		n := 1 + random.IntN(min(3, volumeBlocks-start))
		zero := random.IntN(6) == 0
		fmt.Println("begin", start, n, serial, zero)
		if zero {
			err = d.Zero(uint64(start), uint32(n), true)
		} else {
			err = d.Write(uint64(start), slices.Concat(slices.Repeat([][]byte{numbered(serial)}, n)...))
		}
		if err != nil {
			return err
		}
		fmt.Println("answered")
	}
}

// Also writes that were never flushed are there in the next process, wherever the one before was killed.
func TestAKilledProcessLosesNoAnsweredWrite(t *testing.T) {
	dir, err := os.MkdirTemp("/dev/shm", "escache-kill") //nolint:usetesting // t.TempDir is on a disk
	must(t, err)
	defer os.RemoveAll(dir)
	for name, blocks := range map[string]int64{"log": record.Superblocks + ringBlocks, "image": volumeBlocks} {
		must(t, os.WriteFile(filepath.Join(dir, name), make([]byte, blocks*record.BlockBytes), 0o600))
	}
	log, err := os.OpenFile(filepath.Join(dir, "log"), os.O_RDWR, 0)
	must(t, err)
	must(t, ring.Format(file{log}, record.Volume{1}, (record.Superblocks+ringBlocks)*record.BlockBytes))
	must(t, log.Close())

	k := &killed{t: t, dir: dir, random: rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 1))}
	kills, inMemory := 100, 0
	if testing.Short() {
		kills = 20
	}
	for range kills {
		k.run()
		if k.check() {
			inMemory++
		}
	}
	t.Logf("%d writes were answered before %d kills; %d of them left something in the memory", k.answered, kills, inMemory)
	if inMemory == 0 {
		t.Error("no kill left anything in the memory: the test has tried nothing")
	}
}

// killed follows what a row of victims says.
type killed struct {
	t        *testing.T
	dir      string
	random   *rand.Rand
	now      volume  // after the last write that was answered
	next     *volume // after the one that was under way
	serial   uint32
	answered int
}

// run starts a victim, and kills it some time after it is ready.
func (k *killed) run() {
	k.t.Helper()
	cmd := exec.CommandContext(k.t.Context(), os.Args[0], strconv.FormatUint(k.random.Uint64(), 10), strconv.FormatUint(uint64(k.serial), 10))
	cmd.Env = append(os.Environ(), victimDir+"="+k.dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	must(k.t, err)
	must(k.t, cmd.Start())
	k.next = nil
	k.follow(out, func() {
		time.AfterFunc(time.Duration(k.random.Int64N(int64(20*time.Millisecond))), func() { _ = cmd.Process.Kill() })
	})
	_ = cmd.Wait() // it was killed
}

func (k *killed) follow(out io.Reader, ready func()) {
	k.t.Helper()
	for lines := bufio.NewScanner(out); lines.Scan(); {
		var (
			start, n int
			zero     bool
		)
		switch line := lines.Text(); line {
		case "ready":
			ready()
		case "answered":
			k.now, k.next = *k.next, nil
			k.answered++
		default:
			if _, err := fmt.Sscan(line[len("begin"):], &start, &n, &k.serial, &zero); err != nil {
				k.t.Fatalf("the process says %q", line)
			}
			next := k.now
			for i := range n {
				if next[start+i] = k.serial; zero {
					next[start+i] = 0
				}
			}
			k.next = &next
		}
	}
}

// check opens the device as the next process does, and reports whether something was in the memory.
func (k *killed) check() (inMemory bool) {
	k.t.Helper()
	d, m, err := openIn(k.dir)
	must(k.t, err)
	defer m.Close()
	inMemory = d.flying != nil || !d.pending.Empty()
	got, err := (&life{Device: d}).content(k.t)
	must(k.t, err)
	for b := range got {
		if got[b] != k.now[b] && (k.next == nil || got[b] != k.next[b]) {
			k.t.Fatalf("block %d is of write %d, and %d was answered", b, got[b], k.now[b])
		}
	}
	k.now = got
	return inMemory
}
