package child

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/escache/escache-csi/internal/command"
	"github.com/escache/escache-csi/internal/escached/cache/writecache"
)

// inProcess runs Main as the child would.
type inProcess struct{ last command.Command }

func (r *inProcess) Run(_ context.Context, c command.Command) (command.Result, error) {
	r.last = c
	var out bytes.Buffer
	if err := Main(c.Args[1:], bytes.NewReader(c.Stdin), &out); err != nil {
		return command.Result{}, &command.ExitError{Command: Verb, Code: 1, Stderr: "Error: " + err.Error()}
	}
	return command.Result{Stdout: out.Bytes()}, nil
}

func TestBlocksGoPastThePageCacheAndBack(t *testing.T) {
	disk := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(disk, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	c := NewClient(&inProcess{})
	block := bytes.Repeat([]byte{7}, 2*writecache.BlockBytes)
	if err := c.Write(t.Context(), "v", disk, writecache.BlockBytes, block); err != nil {
		t.Fatal(err)
	}
	got, err := c.Read(t.Context(), "v", disk, writecache.BlockBytes, int64(len(block)))
	if err != nil || !bytes.Equal(got, block) {
		t.Fatal("what was written must come back", err)
	}
	if err := c.Write(t.Context(), "v", disk, 0, []byte("short")); err == nil {
		t.Fatal("less than a block must be refused")
	}
	if n, err := c.CountDirty(t.Context(), "v", disk, 512<<10); n != 0 || err != nil {
		t.Fatalf("blank metadata: %d, %v", n, err)
	}
	if _, err := c.CountDirty(t.Context(), "v", disk, writecache.BlockBytes); err == nil {
		t.Fatal("foreign metadata must be refused")
	}
}

func TestSysfsErrorsKeepTheirNumberAndSecretsStayOffTheCommandLine(t *testing.T) {
	r := &inProcess{}
	err := NewClient(r).WriteSysfs(t.Context(), "v", "/sys/kernel/no-such-file", []byte("secret=x"), 0)
	if !errors.Is(err, syscall.ENOENT) {
		t.Fatalf("want ENOENT, got %v", err)
	}
	if strings.Contains(strings.Join(r.last.Args, " ")+err.Error(), "secret") {
		t.Fatal("the secret leaked")
	}
	if err := NewClient(r).WriteSysfs(t.Context(), "v", "/etc/passwd", nil, 0); err == nil {
		t.Fatal("only sysfs may be written")
	}
}
