package filelock

import (
	"os"
	"path/filepath"
	"testing"
)

func TestAFileIsFreeUntilItIsLockedAndAfterItIsClosed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	if !IsFree(path) {
		t.Error("a file that does not exist is locked")
	}
	open := func() *os.File {
		file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = file.Close() })
		return file
	}
	first, second := open(), open()
	if !IsFree(path) {
		t.Error("an open file is locked")
	}
	if err := Take(first); err != nil {
		t.Fatal(err)
	}
	if IsFree(path) || Take(second) == nil {
		t.Error("a locked file is free")
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if !IsFree(path) || Take(second) != nil {
		t.Error("the file is locked after its descriptor is closed")
	}
}
