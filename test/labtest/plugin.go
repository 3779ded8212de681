package labtest

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/escache/escache-csi/test/lab/labclient"
)

// pluginTime bounds one command of an operator. Some wait until caches are written back.
const pluginTime = 12 * time.Minute

// Said is what a command has answered.
type Said struct {
	Out, Complaints string
	Code            int // its exit code
}

// All is both outputs, one after the other.
func (s Said) All() string { return strings.TrimSpace(s.Out + s.Complaints) }

// Escache runs `kubectl escache` as an operator does, who types something if typed is not empty. kubectl
// finds the plugin beside the tests' own program.
func Escache(t T, typed string, args ...string) Said {
	t.Helper()
	tests, err := os.Executable()
	if err != nil {
		t.Fatalf("%v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), pluginTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(os.Getenv(labclient.EnvBin), "kubectl"), append([]string{"escache"}, args...)...)
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(tests)+":"+os.Getenv("PATH"))
	var out, complaints bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(typed), &out, &complaints
	err = cmd.Run()
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		t.Fatalf("kubectl escache %s: %v", strings.Join(args, " "), err)
	}
	return Said{Out: out.String(), Complaints: complaints.String(), Code: cmd.ProcessState.ExitCode()}
}
