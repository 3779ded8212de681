package labtest

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// crashDir is where an escached built with the tag crashpoint writes the names of the points it
// reaches, and reads the one to die at.
const crashDir = "/run/escache-crashpoints"

// TraceCrashPoints makes escached write down the points it reaches, until the test ends.
func (h *Host) TraceCrashPoints(t T) {
	t.Helper()
	h.Run(t, "mkdir", "-p", crashDir)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
		defer cancel()
		if _, err := h.Try(ctx, nil, "rm", "-rf", crashDir); err != nil {
			t.Errorf("%v", err)
		}
	})
}

// CrashPoints returns the points reached since the last call, each once, in order.
func (h *Host) CrashPoints(t T) []string {
	t.Helper()
	var points []string
	for line := range strings.FieldsSeq(h.Shell(t, "cat "+crashDir+"/trace 2>/dev/null; rm -f "+crashDir+"/trace")) {
		if !slices.Contains(points, line) {
			points = append(points, line)
		}
	}
	return points
}

// CrashAt makes escached die when it reaches a point, once.
func (h *Host) CrashAt(t T, point string) (old string) {
	t.Helper()
	old = h.ServicePID(t)
	h.when(t, "at", point)
	return old
}

// StopAt stops the program that reaches a point, once, as SIGSTOP does.
func (h *Host) StopAt(t T, point string) {
	t.Helper()
	h.when(t, "stop", point)
}

// when has the file change at once: a program may be reading it.
func (h *Host) when(t T, file, point string) {
	t.Helper()
	h.Shell(t, fmt.Sprintf("echo %s >%s/new && mv %[2]s/new %[2]s/%s", point, crashDir, file))
}

// Crashed says whether the point was reached. If it was not, escached will not die there any more.
func (h *Host) Crashed(t T) bool {
	t.Helper()
	return h.Shell(t, "rm "+crashDir+"/at 2>/dev/null && echo waiting || echo reached") == "reached"
}

// WaitForCrash waits until an escached other than the old one answers. It fails the test if the
// point was not reached.
func (h *Host) WaitForCrash(t T, point, old string) {
	t.Helper()
	WaitFor(t, fmt.Sprintf("escached on %s is back after %s", h.Name, point), restartLimit, func(ctx context.Context) error {
		out, err := h.Try(ctx, nil, "sh", "-c", "ls "+crashDir+"; cat "+pidFile)
		switch {
		case err != nil:
			return err
		case slices.Contains(strings.Fields(out), "at"):
			return fmt.Errorf("it has not got to %s", point)
		case slices.Contains(strings.Fields(out), old):
			return fmt.Errorf("process %s is still there", old)
		}
		return h.ready(ctx)
	})
}
