//go:build crashpoint

package crashpoint

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Reach appends the name to the trace, and kills or stops the process if a test asked for that name.
func Reach(name string) {
	dir := cmp.Or(os.Getenv("ESCACHE_CRASHPOINTS"), "/run/escache-crashpoints")
	trace, err := os.OpenFile(filepath.Join(dir, "trace"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return
	}
	fmt.Fprintln(trace, name)
	trace.Close()
	if asked(filepath.Join(dir, "stop"), name) {
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	}
	if asked(filepath.Join(dir, "at"), name) {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {} // the signal is on its way; nothing after this point may happen
	}
}

// asked reports whether a file has this name, and removes it then: it counts once.
func asked(file, name string) bool {
	want, err := os.ReadFile(file)
	if err != nil || strings.TrimSpace(string(want)) != name {
		return false
	}
	return os.Remove(file) == nil
}
