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

// Reach appends the name to the trace, and kills the process if a test asked for that name.
func Reach(name string) {
	dir := cmp.Or(os.Getenv("ESCACHE_CRASHPOINTS"), "/run/escache-crashpoints")
	trace, err := os.OpenFile(filepath.Join(dir, "trace"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return
	}
	fmt.Fprintln(trace, name)
	trace.Close()
	at := filepath.Join(dir, "at")
	want, err := os.ReadFile(at)
	if err != nil || strings.TrimSpace(string(want)) != name {
		return
	}
	os.Remove(at)
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // the signal is on its way; nothing after this point may happen
}
