package memory

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// onTmpfs returns a path in the kernel's memory.
func onTmpfs(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "escache-memory") //nolint:usetesting // t.TempDir is on a disk
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "memory")
}

func open(t *testing.T, path string) *Memory {
	t.Helper()
	m, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func memfd(t *testing.T) string {
	t.Helper()
	fd, err := unix.MemfdCreate("escache", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fmt.Sprintf("/proc/self/fd/%d", fd)
}

func TestWhatIsInAMemoryIsThereForTheNextProcess(t *testing.T) {
	for name, path := range map[string]string{"a file on tmpfs": onTmpfs(t), "a memfd": memfd(t)} {
		m := open(t, path)
		first := m.Name()
		m.Area(0)[0], m.Area(Areas - 1)[len(m.Area(0))-1] = 1, 2
		if _, err := Open(path); !errors.Is(err, ErrInUse) {
			t.Errorf("%s: a second process: %v", name, err)
		}
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		m = open(t, path)
		if m.Name() != first || m.Area(0)[0] != 1 || m.Area(Areas - 1)[len(m.Area(0))-1] != 2 {
			t.Errorf("%s: something is lost", name)
		}
		m.Renew()
		if m.Name() == first || m.Area(0)[0] != 0 || m.Area(Areas - 1)[len(m.Area(0))-1] != 0 {
			t.Errorf("%s: something is left after Renew", name)
		}
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// Such a memory would be older than the log after the host has lost its power.
func TestAMemoryIsNotOnADisk(t *testing.T) {
	dir := t.TempDir()
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil || fs.Type == unix.TMPFS_MAGIC {
		t.Skipf("the directory for tests is on tmpfs, or: %v", err)
	}
	path := filepath.Join(dir, "memory")
	if _, err := Open(path); !errors.Is(err, ErrNotMemory) {
		t.Errorf("got %v", err)
	}
	if info, err := os.Stat(path); err != nil || info.Size() != 0 {
		t.Errorf("it was changed: %v, %v", info, err)
	}
}

func TestAFileThatHoldsSomethingElseIsNotChanged(t *testing.T) {
	for name, content := range map[string][]byte{
		"of another size":    []byte("a letter"),
		"of the same size":   append([]byte("a letter"), make([]byte, size-8)...),
		"of a later version": append([]byte("EMEMORY2"), make([]byte, size-8)...),
	} {
		path := onTmpfs(t)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(path); !errors.Is(err, ErrNotMemory) {
			t.Errorf("%s: %v", name, err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != string(content) {
			t.Errorf("%s: it was changed", name)
		}
	}
}

// A process may be killed in Renew.
func TestAMemoryThatWasNotFinishedIsRenewed(t *testing.T) {
	path := onTmpfs(t)
	if err := os.WriteFile(path, append(make([]byte, 8), make([]byte, size-8)...), 0o600); err != nil {
		t.Fatal(err)
	}
	m := open(t, path)
	defer m.Close()
	if m.Name() == [16]byte{} {
		t.Error("the memory has no name")
	}
}
