//go:build e2e

package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/escache/escache-csi/internal/command"
	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/cache/log/control"
	"github.com/escache/escache-csi/internal/escached/cache/log/nbd/kernel"
	"github.com/escache/escache-csi/internal/escached/cache/log/process"
	"github.com/escache/escache-csi/internal/escached/cache/log/record"
	"github.com/escache/escache-csi/internal/escached/cache/log/ring"
	"github.com/escache/escache-csi/test/labtest"
)

// escache-cache is tried with the kernel's own NBD driver: this program copies itself to a host, as for the contract of engines.
const cacheProcessTest = "TestCacheProcessOnThisKernel"

func aCacheProcessIsReplacedUnderWriters(t *testing.T, lab *labtest.Lab) {
	out := onHost(t, lab.Hosts[0], cacheProcessTest)
	for _, name := range []string{"device", "killed", "upgraded", "slow", "stopped"} {
		if !strings.Contains(out, "PASS: "+cacheProcessTest+"/"+name+" ") {
			t.Errorf("%q did not run", name)
		}
	}
}

// TestCacheProcessOnThisKernel needs root, the module nbd, and escache-cache in /usr/local/bin.
func TestCacheProcessOnThisKernel(t *testing.T) {
	if os.Getenv(onThisKernel) == "" {
		t.Skip("aCacheProcessIsReplacedUnderWriters runs it on a host of the lab")
	}
	h := newCacheHost(t)
	h.start()
	t.Run("device", h.looksRight)
	t.Run("killed", func(t *testing.T) {
		h.underWriter(t, func() {
			fatal(t, h.cmd.Process.Kill())
			_ = h.cmd.Wait()
			h.start()
		})
	})
	t.Run("upgraded", func(t *testing.T) {
		h.underWriter(t, func() {
			old := h.cmd
			h.start()
			fatal(t, old.Wait()) // it has handed over
		})
	})
	t.Run("slow", func(t *testing.T) { // the kernel gives up connections of a process that stands still, and fails nothing
		h.underWriter(t, func() {
			fatal(t, h.cmd.Process.Signal(syscall.SIGSTOP))
			time.Sleep(3 * kernel.RequestTimeout)
			fatal(t, h.cmd.Process.Signal(syscall.SIGCONT))
		})
	})
	t.Run("stopped", h.isStopped)
}

const (
	cacheProcessName = "cacheprocess-v"

	cacheBlocks   = 64 // that the writer writes
	cacheDiskMiB  = 32
	cacheImageMiB = 64
)

type cacheHost struct {
	*kernelHost

	flags  []string
	log    string
	client *control.Client
	cmd    *exec.Cmd
	index  int
}

func newCacheHost(t *testing.T) *cacheHost {
	h := &cacheHost{kernelHost: &kernelHost{t: t, run: command.NewExec()}, index: -1}
	h.do("modprobe", "nbd")
	disk, image := h.loop("disk", cacheDiskMiB), h.loop("image", cacheImageMiB)
	id := cache.Identity{Pool: "p", Image: "i", ImageID: "1"}
	header, err := cache.Header{Identity: id, Formatted: true}.Block()
	fatal(t, err)
	file, err := os.OpenFile(disk, os.O_RDWR|unix.O_SYNC, 0)
	fatal(t, err)
	_, err = file.WriteAt(header, 0)
	fatal(t, errors.Join(err, ring.Format(behindHeader{file}, record.Volume{1}, cacheDiskMiB*mib-cache.HeaderBytes), file.Close()))
	const name, run = cacheProcessName, "/run/cacheprocess"
	fatal(t, os.MkdirAll(run, 0o700))
	socket := filepath.Join(run, "socket")
	h.client, h.log = control.NewClient(socket), filepath.Join(run, "log")
	h.flags = []string{
		"--debug", "--name", name, "--disk", disk, "--origin", image, "--bytes", fmt.Sprint(cacheImageMiB * mib / 2),
		"--pool", id.Pool, "--image", id.Image, "--image-id", id.ImageID, "--socket", socket, "--memory", filepath.Join(run, "memory"),
	}
	t.Cleanup(func() {
		if h.cmd != nil {
			_ = h.cmd.Process.Kill()
			_ = h.cmd.Wait()
		}
		if all, err := kernel.All(); err == nil {
			if found, there := all[process.Backend(name)]; there {
				driver, err := kernel.Open()
				fatal(t, err)
				fatal(t, driver.Disconnect(context.Background(), found.Index))
			}
		}
		fatal(t, os.RemoveAll(run))
		h.do("losetup", "--detach", disk)
		h.do("losetup", "--detach", image)
	})
	return h
}

// behindHeader is the log's part of a disk.
type behindHeader struct{ *os.File }

func (d behindHeader) ReadAt(p []byte, at int64) (int, error) {
	return d.File.ReadAt(p, at+cache.HeaderBytes)
}

func (d behindHeader) WriteStable(p []byte, at int64) error {
	_, err := d.WriteAt(p, at+cache.HeaderBytes)
	return err
}

// start starts a process, and returns when it serves.
func (h *cacheHost) start() {
	h.t.Helper()
	before, _ := h.client.Status(context.Background())
	h.cmd = exec.Command("/usr/local/bin/escache-cache", h.flags...)
	log, err := os.OpenFile(h.log, os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	fatal(h.t, err)
	defer log.Close()
	h.cmd.Stderr = log
	fatal(h.t, h.cmd.Start())
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		s, err := h.client.Status(context.Background())
		if err == nil && s.Log.Generation > before.Log.Generation && s.PID == h.cmd.Process.Pid {
			_, err = fmt.Sscanf(s.Device, "/dev/nbd%d", &h.index)
			fatal(h.t, err)
			return
		}
		if time.Now().After(end) {
			text, _ := os.ReadFile(h.log)
			h.t.Fatalf("escache-cache does not serve: %v; its log:\n%s", err, text)
		}
	}
}

func (h *cacheHost) device() string { return fmt.Sprintf("/dev/nbd%d", h.index) }

func (h *cacheHost) open(t *testing.T) *os.File {
	t.Helper()
	f, err := os.OpenFile(h.device(), os.O_RDWR|unix.O_DIRECT|unix.O_DSYNC, 0)
	fatal(t, err)
	return f
}

// looksRight checks what the kernel was told of the device, and that TRIM makes zeros.
func (h *cacheHost) looksRight(t *testing.T) {
	for file, want := range map[string]string{
		"queue/write_cache": "write back", "queue/fua": "1", "queue/logical_block_size": "4096", "queue/scheduler": "[none]",
		"backend": process.Backend(cacheProcessName), "size": fmt.Sprint(cacheImageMiB * mib / 2 / 512),
	} {
		got, err := os.ReadFile(fmt.Sprintf("/sys/block/nbd%d/%s", h.index, file))
		if err != nil || !strings.Contains(string(got), want) {
			t.Errorf("%s is %q, not %q; %v", file, got, want, err)
		}
	}
	f := h.open(t)
	defer f.Close()
	p := ring.AlignedBytes(record.BlockBytes)
	copy(p, bytes.Repeat([]byte{7}, len(p)))
	_, err := f.WriteAt(p, 0)
	fatal(t, err)
	h.do("blkdiscard", "--offset", "0", "--length", "4096", h.device())
	_, err = f.ReadAt(p, 0)
	if err != nil || !bytes.Equal(p, make([]byte, len(p))) {
		t.Errorf("after TRIM the block has %d; %v", p[0], err)
	}
	fatal(t, h.client.Resize(context.Background(), cacheImageMiB*mib))
	if got, err := os.ReadFile(fmt.Sprintf("/sys/block/nbd%d/size", h.index)); strings.TrimSpace(string(got)) != fmt.Sprint(cacheImageMiB*mib/512) {
		t.Errorf("after Resize it has %q sectors; %v", got, err)
	}
}

// underWriter does something while blocks are written, each of which must read as it was written last. Nothing may fail.
func (h *cacheHost) underWriter(t *testing.T, do func()) {
	t.Helper()
	f := h.open(t)
	defer f.Close()
	stop := make(chan struct{})
	var writers sync.WaitGroup
	var longest [4]time.Duration
	for w := range longest {
		writers.Go(func() {
			p, got := ring.AlignedBytes(record.BlockBytes), ring.AlignedBytes(record.BlockBytes)
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				at := int64(i%(cacheBlocks/len(longest))*len(longest)+w) * record.BlockBytes
				copy(p, fmt.Sprintf("%s %d %d", t.Name(), w, i))
				begun := time.Now()
				_, err := f.WriteAt(p, at)
				longest[w] = max(longest[w], time.Since(begun))
				if err == nil {
					_, err = f.ReadAt(got, at)
				}
				if err != nil || !bytes.Equal(got, p) {
					t.Errorf("write %d of writer %d: %v; it reads %.40q", i, w, err, got)
					return
				}
			}
		})
	}
	time.Sleep(time.Second)
	do()
	time.Sleep(2 * time.Second)
	close(stop)
	writers.Wait()
	t.Logf("longest write: %v", longest)
	if s, err := h.client.Status(context.Background()); err != nil || s.Counters.Errors != 0 {
		t.Errorf("%+v, %v", s.Counters, err)
	}
}

// isStopped stops the process, but not while somebody has the device open.
func (h *cacheHost) isStopped(t *testing.T) {
	f := h.open(t)
	if err := h.client.Stop(context.Background()); !errors.Is(err, cache.ErrOpen) {
		t.Errorf("Stop of a device that is open: %v", err)
	}
	fatal(t, h.cmd.Process.Signal(syscall.SIGTERM))
	time.Sleep(time.Second)
	p := ring.AlignedBytes(record.BlockBytes)
	_, err := f.WriteAt(p, 0)
	fatal(t, errors.Join(err, f.Close()))
	fatal(t, h.client.WriteBack(context.Background()))
	fatal(t, h.client.Stop(context.Background()))
	fatal(t, h.cmd.Wait())
	h.cmd = nil
	all, err := kernel.All()
	if found, there := all[process.Backend(cacheProcessName)]; err != nil || there {
		t.Errorf("the kernel still has %+v; %v", found, err)
	}
}

func fatal(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
