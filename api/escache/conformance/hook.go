package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"time"

	"github.com/escache/escache-csi/api/escache"
)

// Hook is a program that does for the suite what only the operator of a target can:
//
//	HOOK create POOL IMAGE BYTES     make an image; print Ceph's id of it
//	HOOK grow POOL IMAGE BYTES       grow it
//	HOOK remove POOL IMAGE           remove it
//	HOOK run HOST COMMAND ARG...     run a command on a host, with this input and output
//	HOOK occupy POOL IMAGE           take the image's exclusive lock, print a line "ready", keep it until the input ends
//	HOOK stall                       make writes to Ceph hang, print a line "ready", and end that when the input ends
//	HOOK fail POOL IMAGE HOST        make the disk of a host's replica fail, print a line "ready", and end that when the input ends
//	HOOK restart HOST                end the service of a host as a crash does, and start it again
//
// It exits with 64 from what it cannot do: occupy, stall, fail and restart may be left out.
type Hook string

// exitUnsupported is EX_USAGE of sysexits.h.
const exitUnsupported = 64

// Create makes an image.
func (h Hook) Create(ctx context.Context, ref escache.VolumeRef, sizeBytes int64) (string, error) {
	var id strings.Builder
	err := h.exec(ctx, nil, &id, "create", ref.Pool, ref.Image, fmt.Sprint(sizeBytes))
	return strings.TrimSpace(id.String()), err
}

// Grow grows an image.
func (h Hook) Grow(ctx context.Context, ref escache.VolumeRef, sizeBytes int64) error {
	return h.exec(ctx, nil, nil, "grow", ref.Pool, ref.Image, fmt.Sprint(sizeBytes))
}

// Remove removes an image.
func (h Hook) Remove(ctx context.Context, ref escache.VolumeRef) error {
	return h.exec(ctx, nil, nil, "remove", ref.Pool, ref.Image)
}

// Occupy takes the image's lock.
func (h Hook) Occupy(ctx context.Context, ref escache.VolumeRef) (io.Closer, error) {
	return hold(ctx, h.exec, "occupy", ref.Pool, ref.Image)
}

// Stall makes Ceph hang.
func (h Hook) Stall(ctx context.Context) (io.Closer, error) { return hold(ctx, h.exec, "stall") }

// FailDisk makes the disk of a host's replica fail.
func (h Hook) FailDisk(ctx context.Context, ref escache.VolumeRef, host string) (io.Closer, error) {
	return hold(ctx, h.exec, "fail", ref.Pool, ref.Image, host)
}

// Restart restarts the service of a host.
func (h Hook) Restart(ctx context.Context, host string) error {
	return h.exec(ctx, nil, nil, "restart", host)
}

// On uses the devices of a host.
func (h Hook) On(host string) Devices {
	return Shell(func(ctx context.Context, stdin io.Reader, stdout io.Writer, args ...string) error {
		return h.exec(ctx, stdin, stdout, append([]string{"run", host}, args...)...)
	})
}

func (h Hook) exec(ctx context.Context, stdin io.Reader, stdout io.Writer, args ...string) error {
	cmd := exec.CommandContext(ctx, string(h), args...)
	cmd.WaitDelay = 5 * time.Second // what the hook started may keep its pipes open
	var complaints bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, &complaints
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.ExitCode() == exitUnsupported:
		return ErrUnsupported
	case err != nil:
		return fmt.Errorf("%s %s: %w: %s", string(h), strings.Join(args, " "), err, bytes.TrimSpace(complaints.Bytes()))
	}
	return nil
}
