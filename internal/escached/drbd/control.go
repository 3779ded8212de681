// Package drbd drives DRBD 8.4, the one every stock kernel has: resource files, drbdadm, and
// /proc/drbd for status.
//
// Nothing here can force a promotion: `primary --force` ignores the fence-peer handler and ends in
// split brain.
package drbd

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/escache/escache-csi/internal/command"
)

// Why the kernel refused a change.
var (
	// ErrPeerNotFenced: the peer is lost and nobody has allowed going on without it, yet. Asking
	// again may help.
	ErrPeerNotFenced = errors.New("the peer is not known to be outdated")
	// ErrPeerPrimary: the peer holds the device as Primary.
	ErrPeerPrimary = errors.New("the peer is Primary")
	// ErrNoCurrentData: neither this replica nor a connected one is known to be current.
	ErrNoCurrentData = errors.New("no current data within reach")
	// ErrOpen: the device is open.
	ErrOpen = errors.New("the DRBD device is open")
	// ErrLinkLost: what needs both replicas was refused because they are not connected.
	ErrLinkLost = errors.New("the peer is not connected")
)

// Control changes the kernel's devices through drbdadm.
type Control struct {
	run   command.Runner
	files Files
}

// NewControl returns a Control that runs its commands with run, on resources whose files are there.
func NewControl(run command.Runner, files Files) *Control { return &Control{run: run, files: files} }

// Device is the path of a minor's block device.
func Device(minor int) string { return "/dev/drbd" + strconv.Itoa(minor) }

// CreateMetadata writes fresh metadata. Whatever the device held before counts as nothing
// afterwards.
func (c *Control) CreateMetadata(ctx context.Context, name string) error {
	return c.adm(ctx, name, "create-md", "--force", name)
}

// Up attaches the disk and starts connecting to the peer.
func (c *Control) Up(ctx context.Context, name string) error { return c.adm(ctx, name, "up", name) }

// Adjust makes the kernel's configuration equal to the resource's file.
func (c *Control) Adjust(ctx context.Context, name string) error {
	return c.adm(ctx, name, "adjust", name)
}

// Down takes the device away from the kernel. It fails while the device is Primary.
func (c *Control) Down(ctx context.Context, name string) error {
	return c.adm(ctx, name, "down", name)
}

// Disconnect drops the link to the peer. A Primary asks its arbiter about it and is frozen until
// that has answered. What is without a link already stays so: an earlier try, given up while the
// arbiter was asked, comes to its end in the kernel.
func (c *Control) Disconnect(ctx context.Context, name string) error {
	return unlinked(c.adm(ctx, name, "disconnect", name))
}

// Connect starts connecting to the peer again.
func (c *Control) Connect(ctx context.Context, name string) error {
	return c.adm(ctx, name, "connect", name)
}

// SkipFirstSync declares two connected, freshly created replicas equal. Their content must be.
func (c *Control) SkipFirstSync(ctx context.Context, name string) error {
	return refusal(c.adm(ctx, name, "new-current-uuid", "--clear-bitmap", name))
}

// Promote makes the device Primary. The kernel asks the fence-peer handler if the peer is lost, so
// this takes as long as the arbiter does.
func (c *Control) Promote(ctx context.Context, name string) error {
	return refusal(c.adm(ctx, name, "primary", name))
}

// Demote makes the device Secondary.
func (c *Control) Demote(ctx context.Context, name string) error {
	return refusal(c.adm(ctx, name, "secondary", name))
}

// freeing is added to the breaker's key by what ends frozen I/O: it must run while other commands
// of the volume are stuck in that.
const freeing = "/freeing"

// Leave drops the link to the peer at once, or gives up waiting for it, without telling the peer
// anything.
func (c *Control) Leave(ctx context.Context, name string) error {
	return unlinked(c.admFor(ctx, name+freeing, "disconnect", "--force", name))
}

// unlinked leaves out the error of taking away a link that is not there.
func unlinked(err error) error {
	if command.ExitCode(err) == refused && strings.Contains(err.Error(), "unknown connection") {
		return nil
	}
	return err
}

// refused is drbdadm's exit code for what the kernel does not do.
const refused = 10

// Detach takes the local disk away at once, also from a Primary. Nothing more is written to it.
func (c *Control) Detach(ctx context.Context, name string) error {
	return c.admFor(ctx, name+freeing, "detach", "--force", name)
}

// ResumeIO lets frozen I/O go on, whatever the arbiter says. Safe only without a disk and without a
// peer: then it fails.
func (c *Control) ResumeIO(ctx context.Context, name string) error {
	return c.admFor(ctx, name+freeing, "resume-io", name)
}

// alreadyWorse is drbdadm's exit code for a replica that is Inconsistent, which nobody can use
// anyway.
const alreadyWorse = 5

// Outdate marks the local replica as not current: it is not promoted until a resync has ended. It
// works before Up; connected to a current peer it does nothing.
func (c *Control) Outdate(ctx context.Context, name string) error {
	err := c.adm(ctx, name, "outdate", name)
	if command.ExitCode(err) == alreadyWorse {
		return nil
	}
	return err
}

// drbdadm gives each of its steps 5 s by itself and then says this, whatever deadline its caller
// has. On a busy host that is no failure of the step, which may even have got to its end.
const impatience = "did not terminate within"

// patience is how often a command is repeated for drbdadm's impatience.
const patience = 3

// transient is the kernel's number for "retry after next state change": the two ends are just
// shaking hands. It waits for that by itself before it changes a role, but not before it takes a
// link away.
const transient = "(-18)"

// handshake is the pause before a command is repeated because of it; the handshake itself takes
// milliseconds, or ends with the link.
const handshake = 50 * time.Millisecond

func (c *Control) adm(ctx context.Context, name string, args ...string) error {
	return c.admFor(ctx, name, args...)
}

// admFor runs drbdadm with a breaker key, which is a volume's name or derived from one. The
// resource is the last argument.
func (c *Control) admFor(ctx context.Context, key string, args ...string) error {
	config, err := c.files.config(args[len(args)-1])
	if err != nil {
		return err
	}
	for tries := 1; ; {
		_, err = c.run.Run(ctx, command.Command{
			Volume: key, Name: "drbdadm", Args: append([]string{"--config-file", config}, args...), Timeout: time.Minute,
		})
		switch {
		case err == nil:
			return nil
		case strings.Contains(err.Error(), transient):
			select {
			case <-ctx.Done():
				return err
			case <-time.After(handshake):
			}
		case strings.Contains(err.Error(), impatience) && tries < patience:
			tries++
			if args[0] == "up" {
				args = []string{"adjust", args[len(args)-1]} // goes on from wherever it got to
			}
		default:
			return err
		}
	}
}

// refusal names the kernel's reasons. drbdsetup's exit codes alone (10, 11, 17) do not tell them
// apart; the number it prints in brackets does.
func refusal(err error) error {
	if err == nil {
		return nil
	}
	for number, reason := range map[string]error{
		"(-7)": ErrPeerNotFenced, "(-1)": ErrPeerPrimary, "(-2)": ErrNoCurrentData, "(-12)": ErrOpen,
		"(151)": ErrLinkLost,
	} {
		if strings.Contains(err.Error(), number) {
			return fmt.Errorf("%w: %w", reason, err)
		}
	}
	return err
}
