package microceph

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"sort"
	"strings"
	"syscall"
	"time"
)

// commandTimeout is for one try of one command of the ceph tool. Its own start takes most of a
// second on a loaded machine.
const commandTimeout = 15 * time.Second

// Ceph runs `ceph ARGS` as client.admin and returns its output. A command without an answer is
// repeated: a monitor that has just formed its quorum leaves some unanswered, so whatever is asked
// here must bear being asked twice. An answer that is an error is returned at once.
func (c *Cluster) Ceph(ctx context.Context, args ...string) ([]byte, error) {
	return c.cephWithInput(ctx, "", args...)
}

func (c *Cluster) cephWithInput(ctx context.Context, input string, args ...string) ([]byte, error) {
	for {
		out, err := c.run(ctx, input, "ceph", args...)
		// The tool says 1 and "error connecting" or "timed out" when it found no monitor, and 110
		// (ETIMEDOUT) when the monitor did not answer.
		unanswered := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, errNoMonitor)
		if !unanswered || ctx.Err() != nil {
			return out, err
		}
	}
}

var errNoMonitor = errors.New("no answer from the monitor")

// run runs one of Ceph's tools once.
func (c *Cluster) run(ctx context.Context, input, tool string, args ...string) ([]byte, error) {
	limit := commandTimeout
	if tool != "ceph" {
		limit = 2 * time.Minute // nobody repeats it
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	args = append([]string{"-c", c.Conf(), "--connect-timeout", "5"}, args...)
	if tool != "ceph" {
		args = append(args[:2:2], args[4:]...)
	}
	cmd := exec.CommandContext(ctx, tool, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var out, complaints bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &complaints
	err := cmd.Run()
	switch {
	case err == nil:
		return out.Bytes(), nil
	case ctx.Err() != nil:
		err = ctx.Err()
	case tool == "ceph" && cmd.ProcessState.ExitCode() == int(syscall.ETIMEDOUT),
		tool == "ceph" && strings.Contains(complaints.String(), "error connecting"),
		tool == "ceph" && strings.TrimSpace(complaints.String()) == "timed out":
		err = errNoMonitor
	}
	return nil, fmt.Errorf("%s %s: %w: %s", tool, strings.Join(args[2:], " "), err, strings.TrimSpace(complaints.String()))
}

// CreatePool makes a pool ready for RBD. A pool that is there already is left as it is.
func (c *Cluster) CreatePool(ctx context.Context, name string) error {
	if _, err := c.Ceph(ctx, "osd", "pool", "create", name, "8"); err != nil {
		return err
	}
	// Waits for the placement groups, sets the application and writes what librbd looks for.
	_, err := c.run(ctx, "", "rbd", "pool", "init", name)
	return err
}

// CreateUser makes a user, e.g. "client.escache" with {"mon": "profile rbd", "osd": "profile rbd"},
// and returns the path of its keyring. If the user is there already with other capabilities, that
// is an error.
func (c *Cluster) CreateUser(ctx context.Context, name string, caps map[string]string) (keyringPath string, err error) {
	args := []string{"auth", "get-or-create", name}
	services := make([]string, 0, len(caps))
	for service := range caps {
		services = append(services, service)
	}
	sort.Strings(services)
	for _, service := range services {
		args = append(args, service, caps[service])
	}
	keyringPath = c.keyring(name)
	_, err = c.Ceph(ctx, append(args, "-o", keyringPath)...)
	return keyringPath, err
}

// request is a command to a daemon's admin socket: "prefix" and its arguments.
type request map[string]any

// askDaemon sends a request to a daemon's admin socket and decodes the answer: it needs no quorum,
// no key and no start of an interpreter.
func (c *Cluster) askDaemon(ctx context.Context, daemon string, what request, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", c.adminSocket(daemon))
	if err != nil {
		return err
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return err
	}
	// Ceph's protocol: the command as JSON up to a zero byte; back come four bytes of length, big
	// endian, and the text.
	what["format"] = "json"
	text, err := json.Marshal(what)
	if err != nil {
		return err
	}
	if _, err := conn.Write(append(text, 0)); err != nil {
		return err
	}
	var size uint32
	if err := binary.Read(conn, binary.BigEndian, &size); err != nil {
		return fmt.Errorf("ask %s for %s: %w", daemon, what["prefix"], err)
	}
	return json.NewDecoder(io.LimitReader(conn, int64(size))).Decode(answer)
}
