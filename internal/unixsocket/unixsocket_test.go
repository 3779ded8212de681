package unixsocket

import (
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"testing"
)

func connect(t *testing.T, path string) {
	t.Helper()
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
}

func TestASocketReplacesTheOneBefore(t *testing.T) {
	base, err := os.MkdirTemp("", "sock") //nolint:usetesting // a socket's path has 108 characters at most
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(base)
	dir := filepath.Join(base, "d")
	path := filepath.Join(dir, "s")
	for _, modes := range []Modes{{0o700, 0o600}, {0o755, 0o660}} { // the directory is there the second time
		listener, err := Listen(path, modes)
		if err != nil {
			t.Fatal(err)
		}
		connect(t, path)
		info, err := os.Stat(path)
		if err != nil || info.Mode() != fs.ModeSocket|modes.Socket {
			t.Errorf("the socket is %v, %v", info.Mode(), err)
		}
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("its directory is %v, %v", info.Mode(), err)
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
			t.Errorf("in the directory are %v, %v", entries, err)
		}
		defer listener.Close()
	}
	connect(t, path) // the first listener still listens, and nobody reaches it
}

func TestCloseLeavesTheSocketOfASuccessor(t *testing.T) {
	dir, err := os.MkdirTemp("", "sock") //nolint:usetesting // a socket's path has 108 characters at most
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "s")
	first, err := Listen(path, Modes{0o700, 0o600})
	if err != nil {
		t.Fatal(err)
	}
	second, err := Listen(path, Modes{0o700, 0o600})
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	connect(t, path)
}
