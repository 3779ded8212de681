package preflight

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/escache/escache-csi/internal/checklist"
)

func (h *Host) configuration(context.Context) checklist.Result {
	switch err := h.ConfigErr; {
	case errors.Is(err, fs.ErrNotExist) && !h.ConfigNamed:
		return checklist.Badf(checklist.Warning, "if the chart runs escached, nothing: it writes the file; otherwise write it "+
			"(docs/install.md), or name another one with --config", "there is no %s: the defaults are checked", h.ConfigPath)
	case err != nil:
		return checklist.Badf(checklist.Failed, "correct the file, or name another one with --config", "%v", err)
	}
	if err := h.Config.Validate(); err != nil {
		return checklist.Badf(checklist.Failed, "correct "+h.ConfigPath, "%s", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return checklist.Goodf("%s", h.ConfigPath)
}

// unread reports whether there is no configuration, so that what it must name is not known.
func (h *Host) unread() bool { return h.ConfigErr != nil }

func (h *Host) name(context.Context) checklist.Result {
	if h.Config.Node == h.Uname {
		return checklist.Goodf("%s, as uname -n prints it; the node's name in Kubernetes must be the same", h.Uname)
	}
	return checklist.Badf(checklist.Failed, "set node in "+h.ConfigPath+" (and the node's name in Kubernetes) to "+h.Uname+
		", or rename the host: hostnamectl set-hostname "+h.Config.Node,
		"node is %q, and uname -n prints %q: DRBD would not find its own end", h.Config.Node, h.Uname)
}

// directories checks what must, and what must not, survive a reboot.
func (h *Host) directories(context.Context) []checklist.Result {
	state := func() checklist.Result {
		inMemory, err := h.inMemory(h.Config.StateDir)
		switch {
		case err != nil:
			return checklist.Badf(checklist.Failed, "make it on the root disk, or change stateDir", "%v", err)
		case inMemory:
			return checklist.Badf(checklist.Failed, "change stateDir to a directory on the root disk",
				"%s is in memory: a reboot would lose the secrets of the replication links", h.Config.StateDir)
		}
		return checklist.Goodf("%s is on a disk", h.Config.StateDir)
	}
	run := func() checklist.Result {
		inMemory, err := h.inMemory(h.Config.RunDir)
		switch {
		case err != nil:
			return checklist.Badf(checklist.Failed, "make it below /run, or change runDir", "%v", err)
		case !inMemory:
			return checklist.Badf(checklist.Warning, "change runDir to a directory below /run",
				"%s is on a disk: a reboot should lose what is in it", h.Config.RunDir)
		}
		return checklist.Goodf("%s is in memory", h.Config.RunDir)
	}
	return []checklist.Result{state().Of("stateDir"), run().Of("runDir")}
}

// inMemory reports whether a directory, or the first one above it that exists, is on a filesystem that
// a reboot empties.
func (h *Host) inMemory(dir string) (bool, error) {
	path := h.System.path(dir)
	for {
		kind, err := h.System.Filesystem(path)
		switch {
		case err == nil:
			return kind == unix.TMPFS_MAGIC || kind == unix.RAMFS_MAGIC, nil
		case errors.Is(err, fs.ErrNotExist) && path != filepath.Dir(path):
			path = filepath.Dir(path)
		default:
			return false, &os.PathError{Op: "statfs", Path: path, Err: err}
		}
	}
}
