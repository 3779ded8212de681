// Package memory is what the process of a cache keeps where its death does not reach: in a file of the kernel's own
// memory (tmpfs, or a memfd that the process was handed). The kernel's page cache drops a block once its write was
// answered, so what was answered and is not in the log yet must be there for the next process on this host.
//
// It does not outlive the host, and must not: then it would be older than the log.
package memory

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/escache/escache-csi/internal/escached/cache/log/record"
	"github.com/escache/escache-csi/internal/escached/cache/log/ring"
)

// Areas is the number of batches that a memory has room for: one that fills, and one on its way to the log.
const Areas = 2

// Bytes is the size of a Memory.
const Bytes = record.BlockBytes + Areas*ring.AreaBytes

// In the first block.
const (
	magicAt   = 0
	nameAt    = 8
	heldAt    = 32
	throughAt = 40

	size  = Bytes
	magic = 0x3159524f4d454d45 // "EMEMORY1"
)

var (
	// ErrInUse means that another process has the memory.
	ErrInUse = errors.New("another process has this memory")
	// ErrNotMemory means that a file is not in the kernel's memory, or holds something else.
	ErrNotMemory = errors.New("not a memory of a cache's log")
)

// Memory is mapped, locked, and this process's alone. Its methods are safe for concurrent use.
type Memory struct {
	file *os.File
	data []byte
}

// Open maps the memory at a path on tmpfs, and makes it if there is none. For a memfd the path is /proc/self/fd/N. It waits
// for nobody: as long as a process has the memory, even one that was killed and still has a write under way, Open returns ErrInUse.
func Open(path string) (*Memory, error) {
	// Opened again, also a memfd has a lock that ends with this process and not with the one that handed it over.
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the memory: %w", err)
	}
	m := &Memory{file: file}
	if err := m.mapFile(); err != nil {
		return nil, errors.Join(fmt.Errorf("map the memory %s: %w", path, err), file.Close())
	}
	return m, nil
}

func (m *Memory) mapFile() error {
	fd := int(m.file.Fd())
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			return ErrInUse
		}
		return fmt.Errorf("lock: %w", err)
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return fmt.Errorf("ask for the filesystem: %w", err)
	}
	if fs.Type != unix.TMPFS_MAGIC {
		return fmt.Errorf("%w: it is not on tmpfs", ErrNotMemory)
	}
	info, err := m.file.Stat()
	if err != nil {
		return fmt.Errorf("ask for its size: %w", err)
	}
	if n := info.Size(); n != 0 && n != size {
		return fmt.Errorf("%w: it has %d bytes, not %d", ErrNotMemory, n, size)
	}
	// A page that tmpfs has no room for later would kill the process in the middle of a write.
	if err := unix.Fallocate(fd, 0, 0, size); err != nil {
		return fmt.Errorf("allocate %d bytes: %w", size, err)
	}
	if m.data, err = unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE); err != nil {
		return fmt.Errorf("map: %w", err)
	}
	if err := m.lockAndCheck(); err != nil {
		return errors.Join(err, unix.Munmap(m.data))
	}
	return nil
}

// lockAndCheck keeps the memory from being swapped out: the swap may need this very volume.
func (m *Memory) lockAndCheck() error {
	if err := unix.Mlock(m.data); err != nil {
		return fmt.Errorf("lock %d bytes in RAM (give the process CAP_IPC_LOCK or a higher RLIMIT_MEMLOCK): %w", size, err)
	}
	switch m.word(magicAt).Load() {
	case magic:
	case 0:
		m.Renew()
	default:
		return fmt.Errorf("%w: it holds something else", ErrNotMemory)
	}
	return nil
}

// Close unmaps the memory. What is in it stays for the next process.
func (m *Memory) Close() error {
	return errors.Join(unix.Munmap(m.data), m.file.Close())
}

func (m *Memory) word(at int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&m.data[at])) //nolint:gosec // the mapping begins at a page
}

// Name is the memory's own. It changes when the memory is renewed.
func (m *Memory) Name() record.Memory { return record.Memory(m.data[nameAt:]) }

// Renew forgets everything, and takes another name.
func (m *Memory) Renew() {
	// While it has no magic, a process that finds it renews it again.
	m.word(magicAt).Store(0)
	clear(m.data)
	_, _ = rand.Read(m.data[nameAt:][:len(record.Memory{})]) // it never fails
	m.word(magicAt).Store(magic)
}

// Area is the memory of a batch.
func (m *Memory) Area(i int) []byte {
	return m.data[record.BlockBytes+i*ring.AreaBytes:][:ring.AreaBytes:ring.AreaBytes]
}

// SetHeld notes until when a hold lasts, on the clock of Now; zero means that there is none.
func (m *Memory) SetHeld(until time.Duration) { m.word(heldAt).Store(uint64(until)) }

// Held returns what SetHeld noted.
func (m *Memory) Held() time.Duration { return time.Duration(m.word(heldAt).Load()) }

// What the word about writing through says. An earlier version does not know the last one, and takes it for the second.
const (
	writesBack = iota
	writesThrough
	nothingAnswered
)

// SetThrough notes whether the device writes through.
func (m *Memory) SetThrough(on bool) {
	word := uint64(writesBack)
	if on {
		word = writesThrough
	}
	m.word(throughAt).Store(word)
}

// Through returns whether the device writes through.
func (m *Memory) Through() bool { return m.word(throughAt).Load() != writesBack }

// SetNothingAnswered notes that the device writes through, and that nobody has an answer to what is in the batches now, or
// comes there before the next SetThrough.
func (m *Memory) SetNothingAnswered() { m.word(throughAt).Store(nothingAnswered) }

// NothingAnswered returns what SetNothingAnswered noted.
func (m *Memory) NothingAnswered() bool { return m.word(throughAt).Load() == nothingAnswered }

// Now is the time since the host started, which is the same for all processes, and which nobody sets.
func Now() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		panic(fmt.Sprintf("the kernel has no CLOCK_BOOTTIME: %v", err)) // every kernel since 2.6.39 has it
	}
	return time.Duration(t.Nano())
}
