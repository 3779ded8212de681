// Package drbd drives DRBD 8.4, the version in every stock kernel. It writes resource files,
// changes devices through drbdadm, and reads their state from /proc/drbd.
//
// It never forces a promotion: `primary --force` ignores the fence-peer handler and ends in split
// brain.
package drbd

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/escache/escache-csi/internal/command"
	"github.com/escache/escache-csi/internal/pause"
)

// Reasons for which the kernel refuses a change.
var (
	// ErrPeerNotFenced means that the peer is lost and that the fence-peer handler did not allow
	// going on without it. Asking again may help.
	ErrPeerNotFenced = errors.New("the peer is not known to be outdated")
	// ErrPeerPrimary means that the peer is Primary.
	ErrPeerPrimary = errors.New("the peer is Primary")
	// ErrNoCurrentData means that neither this replica nor a connected one is known to be current.
	ErrNoCurrentData = errors.New("no current copy can be reached")
	// ErrOpen means that the device is open.
	ErrOpen = errors.New("the DRBD device is open")
	// ErrLinkLost means that a change that needs both replicas was refused because they are not
	// connected.
	ErrLinkLost = errors.New("the peer is not connected")
)

// Control changes the kernel's devices through drbdadm.
type Control struct {
	run   command.Runner
	files Files
}

// NewControl returns a Control that runs its commands with run. files has the resources' files.
func NewControl(run command.Runner, files Files) *Control { return &Control{run: run, files: files} }

// Device is the path of a minor's block device.
func Device(minor int) string { return "/dev/drbd" + strconv.Itoa(minor) }

// CreateMetadata writes fresh metadata. DRBD then treats the disk as empty.
func (c *Control) CreateMetadata(ctx context.Context, name string) error {
	return c.adm(ctx, name, "create-md", "--force", name)
}

// WipeMetadata removes the metadata from the disk of a device that is down. DRBD then does not take
// the disk for a replica any more.
func (c *Control) WipeMetadata(ctx context.Context, name string) error {
	return c.adm(ctx, name, "--", "--force", "wipe-md", name)
}

// Up attaches the disk and starts connecting to the peer.
func (c *Control) Up(ctx context.Context, name string) error { return c.adm(ctx, name, "up", name) }

// attached is drbdmeta's message if DRBD uses the disk already: an attach that took long has succeeded after all.
const attached = "is configured!"

// Attach attaches the disk of a device that has none, and makes no link.
func (c *Control) Attach(ctx context.Context, name string) error {
	for _, step := range []string{"new-resource", "new-minor", "attach"} {
		if err := c.adm(ctx, name, step, name); err != nil && (step != "attach" || !strings.Contains(err.Error(), attached)) {
			return err
		}
	}
	return nil
}

// Adjust makes the kernel's configuration equal to the resource's file.
func (c *Control) Adjust(ctx context.Context, name string) error {
	return c.adm(ctx, name, "adjust", name)
}

// Freeze makes the kernel freeze I/O when the peer is lost, or makes it go on. It changes nothing that
// runs: it waits until the I/O that is under way has ended, and holds new I/O back meanwhile. It fails
// without a disk.
func (c *Control) Freeze(ctx context.Context, name string, freeze bool) error {
	return c.adm(ctx, name, "--", "--fencing="+fencing(freeze), "disk-options", name)
}

// Down takes the device away from the kernel. It fails while the device is Primary.
func (c *Control) Down(ctx context.Context, name string) error {
	return c.adm(ctx, name, "down", name)
}

// Disconnect drops the link to the peer. A Primary then runs the fence-peer handler, and its I/O is
// frozen until the handler has answered. Disconnect succeeds if there is no link: an earlier try
// that timed out while the handler ran is completed by the kernel.
func (c *Control) Disconnect(ctx context.Context, name string) error {
	return unlinked(c.admFor(ctx, name+asking, "disconnect", name))
}

// Connect starts connecting to the peer again.
func (c *Control) Connect(ctx context.Context, name string) error {
	return c.admFor(ctx, name+asking, "connect", name)
}

// SkipFirstSync declares two connected, freshly created replicas equal. Their contents must be
// equal.
func (c *Control) SkipFirstSync(ctx context.Context, name string) error {
	return refusal(c.adm(ctx, name, "new-current-uuid", "--clear-bitmap", name))
}

// Promote makes the device Primary. The kernel asks the fence-peer handler if the peer is lost, so
// Promote takes as long as the arbiter does.
func (c *Control) Promote(ctx context.Context, name string) error {
	return refusal(c.adm(ctx, name, "primary", name))
}

// Demote makes the device Secondary.
func (c *Control) Demote(ctx context.Context, name string) error {
	return refusal(c.adm(ctx, name, "secondary", name))
}

// These are appended to the breaker's key of commands that end frozen I/O: they must run while other commands of the
// volume are stuck in that I/O.
const (
	// asking is for those that make the kernel ask the fence-peer handler.
	asking = "/asking"
	// freeing is for those that give the device up. They must run even if one that asks is stuck.
	freeing = "/freeing"
)

// Leave drops the link to the peer at once, or gives up waiting for it, without telling the peer
// anything.
func (c *Control) Leave(ctx context.Context, name string) error {
	return unlinked(c.admFor(ctx, name+freeing, "disconnect", "--force", name))
}

// unlinked ignores the error of removing a link that does not exist.
func unlinked(err error) error {
	if command.ExitCode(err) == refused && strings.Contains(err.Error(), "unknown connection") {
		return nil
	}
	return err
}

// refused is drbdadm's exit code for a change that the kernel refuses.
const refused = 10

// Detach detaches the local disk at once, also from a Primary. Nothing more is written to the disk.
func (c *Control) Detach(ctx context.Context, name string) error {
	return c.admFor(ctx, name+freeing, "detach", "--force", name)
}

// ResumeIO lets frozen I/O go on, whatever the arbiter says. It is safe only without a disk and
// without a peer: the I/O then fails.
func (c *Control) ResumeIO(ctx context.Context, name string) error {
	return c.admFor(ctx, name+freeing, "resume-io", name)
}

// alreadyWorse is drbdadm's exit code for a replica that is Inconsistent. Such a replica cannot be
// promoted anyway.
const alreadyWorse = 5

// Outdate marks the local replica as not current. The kernel does not promote it until a resync has
// ended. Outdate also works before Up. It does nothing to a replica that is connected to a current
// peer.
func (c *Control) Outdate(ctx context.Context, name string) error {
	err := c.adm(ctx, name, "outdate", name)
	if command.ExitCode(err) == alreadyWorse {
		return nil
	}
	return err
}

// Concede marks the replica of a device that is down as incomplete: its peer, which must have all
// data, fills it where the two may differ. Like after Outdate, it is not promoted before. Outdate alone is
// not enough if the replica was Primary last: DRBD would fill the peer from it, and the peer could not
// be promoted meanwhile.
func (c *Control) Concede(ctx context.Context, name string) error {
	const incomplete = "::::0:0" // the flags "consistent" and "was up to date"; what is left out stays
	return c.adm(ctx, name, "--", "--force", incomplete, "set-gi", name+onlyVolume)
}

// onlyVolume follows a resource's name in commands that want a volume. Our resources have one.
const onlyVolume = "/0"

// impatience is in the message of a drbdadm that has waited 5 s for one of its steps. It does not
// know its caller's deadline. On a busy host the step may still have succeeded.
const impatience = "did not terminate within"

// patience bounds how often a command is run because of drbdadm's impatience.
const patience = 3

// transient is the kernel's number for "retry after next state change": a handshake is under way.
// The kernel waits for its end before it changes a role, but not before it removes a link.
const transient = "(-18)"

// handshake is the pause before a command is repeated during a handshake, which takes milliseconds.
const handshake = 50 * time.Millisecond

func (c *Control) adm(ctx context.Context, name string, args ...string) error {
	return c.admFor(ctx, name, args...)
}

// admFor runs drbdadm with a breaker key, which is a volume's name or derived from one. The
// resource, or its only volume, is the last argument.
func (c *Control) admFor(ctx context.Context, key string, args ...string) error {
	config, err := c.files.config(strings.TrimSuffix(args[len(args)-1], onlyVolume))
	if err != nil {
		return err
	}
	verb := args[slices.IndexFunc(args, func(arg string) bool { return !strings.HasPrefix(arg, "-") })]
	for tries := 1; ; {
		_, err = c.run.Run(ctx, command.Command{
			Volume: key, Name: "drbdadm", Args: append([]string{"--config-file", config}, args...), Verb: verb, Timeout: time.Minute,
		})
		err = withoutSecret(err)
		switch {
		case err == nil:
			return nil
		case strings.Contains(err.Error(), transient):
			if pause.For(ctx, handshake) != nil {
				return err
			}
		case strings.Contains(err.Error(), impatience) && tries < patience:
			tries++
			if args[0] == "up" {
				args = []string{"adjust", args[len(args)-1]} // completes an up that was interrupted
			}
		default:
			return err
		}
	}
}

// sharedSecret is the option with which drbdadm hands the link's secret to drbdsetup.
var sharedSecret = regexp.MustCompile(`(shared-secret)\S*`)

// withoutSecret hides the secret of the link in an error. drbdadm prints the command that has failed
// with all its arguments, and errors go into logs and answers.
func withoutSecret(err error) error {
	exit, ok := errors.AsType[*command.ExitError](err)
	if !ok {
		return err
	}
	clean := *exit
	clean.Stdout, clean.Stderr = sharedSecret.ReplaceAllString(exit.Stdout, "$1"), sharedSecret.ReplaceAllString(exit.Stderr, "$1")
	return &clean
}

// refusal wraps err with the kernel's reason, such as ErrOpen. drbdsetup's exit codes (10, 11, 17)
// do not distinguish the reasons. The number that it prints in brackets does.
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
