package labtest

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
)

// Output runs a command and returns what it printed, without the space around it. The error of a
// command that failed has what it complained of.
func Output(cmd *exec.Cmd) (string, error) {
	out, err := cmd.Output()
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		err = fmt.Errorf("%s %s: %w: %s", filepath.Base(cmd.Path), strings.Join(cmd.Args[1:], " "), err, exit.Stderr)
	}
	return strings.TrimSpace(string(out)), err
}
