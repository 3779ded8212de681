package kernel

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/escache/escache-csi/internal/command"
)

type someCaches struct{}

func (someCaches) Version(context.Context) (string, error) { return "", nil }
func (someCaches) Modules() []string                       { return []string{"dm-writecache", "loop"} }

func TestOnlyModulesThatAreNotThereAreLoadedAndEachIsReported(t *testing.T) {
	sys, refused := t.TempDir(), errors.New("FATAL: Module rbd not found")
	for _, name := range []string{"dm_writecache", "loop"} {
		if err := os.MkdirAll(filepath.Join(sys, "module", name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var loaded []string
	run := command.RunnerFunc(func(_ context.Context, c command.Command) (command.Result, error) {
		loaded = append(loaded, c.Name+" "+strings.Join(c.Args, " "))
		if slices.Contains(c.Args, "rbd") {
			return command.Result{}, refused
		}
		return command.Result{}, nil
	})
	k := New(run, nil, nil, someCaches{})
	k.sys = sys
	var got []string
	for _, m := range k.Modules(t.Context()) {
		if (m.Name == "rbd") != errors.Is(m.Err, refused) {
			t.Errorf("%s: %v", m.Name, m.Err)
		}
		got = append(got, m.Name)
	}
	if want := []string{"drbd", "dm-writecache", "loop", "rbd"}; !slices.Equal(got, want) {
		t.Errorf("modules %q", got)
	}
	if want := []string{"modprobe drbd", "modprobe rbd"}; !slices.Equal(loaded, want) {
		t.Errorf("ran %q", loaded)
	}
	if err := k.Load(t.Context()); !errors.Is(err, refused) || !strings.Contains(err.Error(), "the kernel module rbd") {
		t.Errorf("Load: %v", err)
	}
}
