package vm

import (
	"bytes"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func TestACopyHasTheSameContentAndKeepsHoles(t *testing.T) {
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	if err := MakeDisk(from, 64); err != nil {
		t.Fatal(err)
	}
	source, err := os.OpenFile(from, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []int64{4096, 10 << 20, 40 << 20} {
		if _, err := source.WriteAt(bytes.Repeat([]byte{byte(at >> 12)}, 300<<10), at); err != nil {
			t.Fatal(err)
		}
	}
	if err := source.Close(); err != nil {
		t.Fatal(err)
	}
	if err := CopyDisk(from, to); err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(to)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("the copy differs (%v)", err)
	}
	var stat syscall.Stat_t
	if err := syscall.Stat(to, &stat); err != nil || stat.Blocks*512 > 8<<20 {
		t.Errorf("the copy takes %d bytes (%v)", stat.Blocks*512, err)
	}
}

func TestADiskIsNeverOverwritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk")
	if err := MakeDisk(path, 1); err != nil {
		t.Fatal(err)
	}
	if MakeDisk(path, 1) == nil || CopyDisk(path, path) == nil {
		t.Error("an existing disk was replaced")
	}
}
