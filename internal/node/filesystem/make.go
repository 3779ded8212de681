package filesystem

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/escache/escache-csi/internal/command"
	"github.com/escache/escache-csi/internal/fstype"
)

const (
	makeTimeout  = 100 * time.Second
	growTimeout  = 100 * time.Second
	checkTimeout = 30 * time.Second
)

// Make runs mkfs. The action is Format or Reformat; only Reformat may overwrite anything. mkfs
// discards no blocks: a new image has none to discard, and through a cache that would take long.
func (t *Tools) Make(ctx context.Context, volume, device string, action Action, record Record, options []string) error {
	name, args := "mkfs."+record.Type, []string{"-q"}
	switch record.Type {
	case Ext4:
		args = append(args, "-m", "0", "-E", "nodiscard", "-U", record.UUID)
		if action == Reformat {
			args = append(args, "-F")
		}
	case XFS:
		args = append(args, "-K", "-m", "uuid="+record.UUID)
		if action == Reformat {
			args = append(args, "-f")
		}
	default:
		return fstype.Known(record.Type)
	}
	_, err := t.run.Run(ctx, command.Command{
		Volume: volume, Name: name, Args: append(append(args, options...), device), Timeout: makeTimeout,
	})
	return err
}

// Grow makes a mounted filesystem as large as its device. It does nothing if the filesystem has
// that size already.
func (t *Tools) Grow(ctx context.Context, volume, device, mountPoint, fsType string) error {
	c := command.Command{Volume: volume, Timeout: growTimeout}
	switch fsType {
	case Ext4:
		c.Name, c.Args = "resize2fs", []string{device}
	case XFS:
		c.Name, c.Args = "xfs_growfs", []string{"-d", mountPoint}
	default:
		return fstype.Known(fsType)
	}
	_, err := t.run.Run(ctx, c)
	return err
}

// Check runs the filesystem checker on a filesystem that could not be mounted, and returns its
// findings. It changes nothing: a repair can lose data, so it is an operator's decision.
func (t *Tools) Check(ctx context.Context, volume, device, fsType string) string {
	c := command.Command{Volume: volume, Timeout: checkTimeout}
	switch fsType {
	case Ext4:
		c.Name, c.Args = "e2fsck", []string{"-n", device}
	case XFS:
		c.Name, c.Args = "xfs_repair", []string{"-n", device}
	default:
		return ""
	}
	_, err := t.run.Run(ctx, c)
	if err == nil {
		return fmt.Sprintf("%s found no error", c.Name)
	}
	exit, ok := errors.AsType[*command.ExitError](err)
	if !ok {
		return fmt.Sprintf("%s gave no result: %v", c.Name, err)
	}
	return fmt.Sprintf("%s says: %s", c, lastLines(exit.Stdout+exit.Stderr, 6))
}

func lastLines(text string, n int) string {
	var lines []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines[max(0, len(lines)-n):], "; ")
}

// Slack is by how many bytes a device must exceed its filesystem before the filesystem is grown.
const Slack = 1 << 20

// NeedsGrowth reports whether the filesystem is smaller than its device, as after restoring into a
// larger volume.
func (s Surface) NeedsGrowth() bool {
	return s.Superblock != nil && s.SizeBytes-s.Superblock.FilesystemBytes >= Slack
}
