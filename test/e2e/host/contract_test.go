//go:build e2e

package host

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/command"
	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/cache/cachetest"
	logengine "github.com/escache/escache-csi/internal/escached/cache/log/engine"
	"github.com/escache/escache-csi/internal/escached/cache/log/launch"
	"github.com/escache/escache-csi/internal/escached/cache/writecache"
	"github.com/escache/escache-csi/internal/escached/cache/writecache/loop"
	"github.com/escache/escache-csi/internal/escached/child"
	"github.com/escache/escache-csi/internal/escached/devmapper"
	"github.com/escache/escache-csi/test/labtest"
)

// The contract of a cache's engine must run where the kernel is: this program copies itself to a
// host and runs one test of its own there.
const (
	contractTest = "TestContractOnThisKernel"
	onThisKernel = "ESCACHE_CONTRACT_ON_THIS_KERNEL"
	copyOnHost   = "/run/contract.test"
	// contractEngine names the engine whose contract is tested.
	contractEngine = "ESCACHE_CONTRACT_ENGINE"
	copyLimit      = 3 * time.Minute
)

// keepsTheContract runs the contract of cache engines against one of them.
func keepsTheContract(engine escache.Engine) func(t *testing.T, lab *labtest.Lab) {
	return func(t *testing.T, lab *labtest.Lab) {
		out := onHost(t, lab.Hosts[0], contractTest, contractEngine+"="+string(engine))
		for _, check := range cachetest.Checks() {
			if name := strings.ReplaceAll(check.Name, " ", "_"); !t.Failed() && !strings.Contains(out, "PASS: "+contractTest+"/"+name+" ") {
				t.Errorf("%q did not run", check.Name)
			}
		}
	}
}

// onHost runs one test of this program on a host, with more in its environment, and returns what it prints.
func onHost(t *testing.T, n1 *labtest.Host, test string, environment ...string) string {
	t.Helper()
	program := copyOnHost + "." + test
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = self.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 2*copyLimit)
	defer cancel()
	if _, err := n1.Try(ctx, self, "sh", "-c", "cat >"+program+" && chmod +x "+program); err != nil {
		t.Fatal(err)
	}
	line := slices.Concat([]string{"env", onThisKernel + "=1"}, environment, []string{program, "-test.run=^" + test + "$", "-test.v"})
	out, err := n1.Try(ctx, nil, line...)
	t.Log(out)
	if err != nil {
		t.Error(err)
	}
	n1.Shell(t, "rm "+program)
	return out
}

// TestContractOnThisKernel needs root, and what the engine needs of the kernel.
func TestContractOnThisKernel(t *testing.T) {
	if os.Getenv(onThisKernel) == "" {
		t.Skip("keepsTheContract runs it on a host of the lab")
	}
	cachetest.Run(t, func(t *testing.T) cachetest.Host { return newKernelHost(t) })
}

const (
	contractName = "contract-v" // not of escached's prefix: it must not see this cache
	originName   = "contract-origin"
	diskMiB      = 32
	originMiB    = 4
)

// kernelHost is the running kernel with a disk and an origin in memory.
type kernelHost struct {
	t      *testing.T
	run    *command.Exec
	disk   string
	below  string // what the origin is on
	size   int64
	refuse bool
}

func newKernelHost(t *testing.T) *kernelHost {
	h := &kernelHost{t: t, run: command.NewExec(), size: 1 << 20}
	for _, module := range h.Engine().Modules() {
		h.do("modprobe", module)
	}
	h.disk, h.below = h.loop("disk", diskMiB), h.loop("origin", originMiB)
	h.dmsetup("create", originName, "--table", h.table())
	t.Cleanup(func() {
		if err := h.Engine().Remove(context.Background(), contractName); err != nil {
			t.Error(err)
		}
		h.dmsetup("remove", originName)
		h.do("losetup", "--detach", h.disk)
		h.do("losetup", "--detach", h.below)
	})
	return h
}

func (h *kernelHost) do(name string, args ...string) string {
	h.t.Helper()
	out, err := h.run.Run(context.Background(), command.Command{Name: name, Args: args})
	if err != nil {
		h.t.Fatal(err)
	}
	return strings.TrimSpace(string(out.Stdout))
}

func (h *kernelHost) dmsetup(args ...string) { h.t.Helper(); h.do("dmsetup", args...) }

func (h *kernelHost) loop(name string, size int64) string {
	h.t.Helper()
	file := filepath.Join(h.t.TempDir(), name)
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Truncate(file, size*mib)); err != nil {
		h.t.Fatal(err)
	}
	return h.do("losetup", "--find", "--show", file)
}

func (h *kernelHost) table() string {
	if h.refuse {
		return fmt.Sprintf("0 %d error", h.size/devmapper.SectorBytes)
	}
	return fmt.Sprintf("0 %d linear %s 0", h.size/devmapper.SectorBytes, h.below)
}

func (h *kernelHost) reload() {
	h.t.Helper()
	h.dmsetup("suspend", "--noflush", "--nolockfs", originName)
	h.dmsetup("load", originName, "--table", h.table())
	h.dmsetup("resume", originName)
}

func (h *kernelHost) Refuse(refuse bool) { h.refuse = refuse; h.reload() }
func (h *kernelHost) Grow(bytes int64)   { h.size = bytes; h.reload() }

// Engine returns the engine with its child in this process: here is no escached to be started
// again.
func (h *kernelHost) Engine() cache.Engine {
	queries := map[string]child.Query{}
	maps.Copy(queries, writecache.Queries())
	maps.Copy(queries, logengine.Queries())
	children := child.NewClient(command.RunnerFunc(func(_ context.Context, c command.Command) (command.Result, error) {
		var out strings.Builder
		err := child.Main(c.Args[1:], queries, strings.NewReader(string(c.Stdin)), &out)
		return command.Result{Stdout: []byte(out.String())}, err
	}))
	if os.Getenv(contractEngine) == string(escache.EngineLog) {
		return logengine.New(logengine.Config{
			Mapper: devmapper.New(h.run), Disks: children, Dir: logDir, Boot: "this one", Kernel: logengine.HostKernel{Program: cacheProgram},
			Processes: launch.Launcher{Binary: cacheProgram, Escached: "/usr/local/bin/escached", Logs: logDir},
		})
	}
	return writecache.New(devmapper.New(h.run), loop.New(h.run), children)
}

const (
	cacheProgram = "/usr/local/bin/" + launch.Program
	logDir       = "/run/contract-log" // tmpfs, and short enough for a socket
)

func (h *kernelHost) Spec() cache.Spec {
	return cache.Spec{
		Disk: cache.Disk{Name: contractName, Path: h.disk}, Origin: devmapper.Node(originName), Bytes: h.size,
	}
}

func (h *kernelHost) OriginNumber() string {
	var st unix.Stat_t
	if err := unix.Stat(devmapper.Node(originName), &st); err != nil {
		h.t.Fatal(err)
	}
	return fmt.Sprintf("%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev))
}

func (h *kernelHost) Open(path string) (cachetest.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_DIRECT|unix.O_SYNC, 0)
	if err != nil {
		return nil, err
	}
	buf, err := unix.Mmap(-1, 0, cache.BlockBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &directFile{f: f, buf: buf}, nil
}

// directFile reads and writes one block at a time, through a buffer that direct I/O takes.
type directFile struct {
	f   *os.File
	buf []byte
}

func (d *directFile) ReadAt(p []byte, at int64) (int, error) {
	n, err := d.f.ReadAt(d.buf, at)
	return copy(p, d.buf[:n]), err
}

func (d *directFile) WriteAt(p []byte, at int64) (int, error) {
	copy(d.buf, p)
	return d.f.WriteAt(d.buf, at)
}

func (d *directFile) Close() error { return errors.Join(unix.Munmap(d.buf), d.f.Close()) }
