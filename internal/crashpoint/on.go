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

// Reach records the name, and kills or stops the process if it is the one asked for.
func Reach(name string) {
	dir := cmp.Or(os.Getenv("ESCACHE_CRASHPOINTS"), "/run/escache-crashpoints")
	trace, err := os.OpenFile(filepath.Join(dir, "trace"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return
	}
	fmt.Fprintln(trace, name)
	trace.Close()
	at := filepath.Join(dir, "at")
	order, err := os.ReadFile(at)
	if err != nil {
		return
	}
	want, stop := strings.CutPrefix(strings.TrimSpace(string(order)), "stop ")
	if want != name {
		return
	}
	os.Remove(at)
	if stop {
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		return
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // the signal is on its way; nothing after this point may happen
}
