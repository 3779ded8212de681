package child

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"github.com/escache/escache-csi/internal/command"
)

// inProcess runs Main as the child would.
type inProcess struct {
	last    command.Command
	queries map[string]Query
}

func (r *inProcess) Run(_ context.Context, c command.Command) (command.Result, error) {
	r.last = c
	var out bytes.Buffer
	if err := Main(c.Args[1:], r.queries, bytes.NewReader(c.Stdin), &out); err != nil {
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
	block := bytes.Repeat([]byte{7}, 2*blockBytes)
	if err := c.Write(t.Context(), "v", disk, blockBytes, block); err != nil {
		t.Fatal(err)
	}
	got, err := c.Read(t.Context(), "v", disk, 2*blockBytes, 0, blockBytes)
	want := [][]byte{block[:blockBytes], make([]byte, blockBytes), block[blockBytes:]}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Fatal("what was written must come back, in the order in which it was asked for", err)
	}
	if _, err := c.Read(t.Context(), "v", disk, 0, 1<<20); err == nil {
		t.Fatal("a block behind the end must be refused")
	}
	if err := c.Write(t.Context(), "v", disk, 0, []byte("short")); err == nil {
		t.Fatal("less than a block must be refused")
	}
}

func TestAQueryReadsAnyPartOfADevice(t *testing.T) {
	disk := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(disk, bytes.Repeat([]byte{7}, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	c := NewClient(&inProcess{queries: map[string]Query{"first": func(device io.ReaderAt, out io.Writer) error {
		buf := make([]byte, 2*blockBytes)
		n, err := device.ReadAt(buf, blockBytes)
		fmt.Fprintln(out, n, buf[0])
		return err
	}}})
	if out, err := c.Query(t.Context(), "v", "first", disk, 0); err != nil || string(out) != "8192 7\n" {
		t.Errorf("%q, %v", out, err)
	}
	if _, err := c.Query(t.Context(), "v", "second", disk, 0); err == nil {
		t.Error("a query that nobody registered must be refused")
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

// What changes something may take effect when the next escached has looked already.
func TestChangesAreMarkedAndLooksAreNot(t *testing.T) {
	r := &inProcess{}
	c := NewClient(r)
	for _, call := range []struct {
		do   func()
		want bool
	}{
		{func() { _ = c.WriteSysfs(t.Context(), "v", "/sys/kernel/no-such-file", nil, 0) }, true},
		{func() { _ = c.Write(t.Context(), "v", "/nonexistent", 0, make([]byte, blockBytes)) }, true},
		{func() { _, _ = c.Read(t.Context(), "v", "/nonexistent", 0) }, false},
		{func() { _, _ = c.Query(t.Context(), "v", "first", "/nonexistent", 0) }, false},
	} {
		if call.do(); r.last.Mark != call.want || r.last.Volume != "v" {
			t.Errorf("%+v", r.last)
		}
	}
}
