package preflight

import (
	"context"
	"errors"
	"io/fs"
	"strings"

	"github.com/escache/escache-csi/internal/checklist"
	"github.com/escache/escache-csi/internal/escached/krbd"
)

const confRemedy = "correct ceph.conf, ceph.keyring and ceph.user in the configuration; with the chart the keyring is inside " +
	"escached's pod only, so run preflight there: docs/install.md"

// misconfigured is the result if Ceph's files lack something. That there are none is not yet a fault where
// escached is not installed.
func (h *Host) misconfigured(err error) checklist.Result {
	if errors.Is(err, fs.ErrNotExist) && h.unread() && !h.CephNamed {
		return checklist.Badf(checklist.Unknown, "name the files with --ceph-conf, --ceph-keyring and --ceph-user",
			"not checked: no configuration names Ceph's files")
	}
	return checklist.Badf(checklist.Failed, confRemedy, "%v", err)
}

func (h *Host) monitors(ctx context.Context) checklist.Result {
	mons, err := h.Images.Monitors(ctx)
	if err != nil {
		return h.misconfigured(err)
	}
	silent := h.Images.Silent(ctx, mons)
	const remedy = "see that the monitors serve their v1 addresses (port 6789) and that no firewall is between"
	switch {
	case len(silent) == len(mons):
		return checklist.Badf(checklist.Failed, remedy, "none answers: %s", strings.Join(silent, ", "))
	case len(silent) > 0:
		return checklist.Badf(checklist.Warning, remedy, "%d of %d do not answer: %s", len(silent), len(mons), strings.Join(silent, ", "))
	}
	return checklist.Goodf("all %d answer: %s", len(mons), strings.Join(mons, ", "))
}

// pool has the kernel look for an image that does not exist. That shows that it reaches the cluster, and
// that the key and the caps allow looking. It does not show that they allow writing.
func (h *Host) pool(ctx context.Context) checklist.Result {
	user := "client." + h.Config.Ceph.User
	switch {
	case h.Pool == "":
		return checklist.Badf(checklist.Unknown, "name the StorageClass's pool with --pool", "not checked: no pool is named")
	case !h.Images.Available(): // a map would say that there is no such image
		return checklist.Badf(checklist.Unknown, "load the module rbd", "not checked: the kernel has no rbd")
	}
	switch err := h.Images.Reach(ctx, h.Pool); {
	case err == nil:
		return checklist.Goodf("the cluster takes the key of %s, which may look for images in pool %s", user, h.Pool)
	case errors.Is(err, krbd.ErrNoPool):
		return checklist.Badf(checklist.Failed,
			"make it (ceph osd pool create "+h.Pool+"; rbd pool init "+h.Pool+"), or name the right one",
			"the cluster has no pool %s", h.Pool)
	case errors.Is(err, krbd.ErrNotFound):
		return checklist.Badf(checklist.Unknown, "see with ceph osd pool ls whether there is the pool",
			"the cluster takes the key of %s; whether it "+
				"has pool %s is not known: %v", user, h.Pool, err)
	case errors.Is(err, krbd.ErrRefused):
		return checklist.Badf(checklist.Failed, "compare the key and the caps with ceph auth get "+user+": it needs mon 'profile rbd' and "+
			"osd 'profile rbd pool="+h.Pool+"' (docs/security.md); ceph auth caps replaces all caps, so name "+
			"the other pools again", "%v", err)
	case errors.Is(err, krbd.ErrConfig):
		return h.misconfigured(err)
	case errors.Is(err, krbd.ErrUnavailable):
		return checklist.Badf(checklist.Failed, "check the network to the monitors and to the OSDs, and Ceph itself: ceph -s", "%v", err)
	default:
		return checklist.Badf(checklist.Failed, "read dmesg: libceph and rbd say there what they lack", "%v", err)
	}
}
