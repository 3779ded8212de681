package authority

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
)

// Loss describes what is given up when a cache is discarded.
type Loss struct {
	// Nodes lists the hosts with the only current copies. They may answer if the image is gone. It may be empty.
	Nodes []string
	// BytesAtStake is the number of dirty bytes in the last report.
	BytesAtStake int64
	// Reason says why the volume's clients are fenced.
	Reason string
}

// Discard decides whether the dirty data may be given up. The operator must have decided by the
// record of this epoch, there must be something to give up, and no current copy may be within
// reach. If Ceph says that the image is gone, a copy within reach is of no use: nobody can attach the
// volume, or write it back. The reports are of all replicas, by node; the death is the attached node's.
// Errors wrap ErrRefused or ErrUnreachable.
func Discard(v *v1alpha1.CacheVolume, epoch int64, reports map[string]Report, death Death, imageGone bool) (Loss, error) {
	s := &v.Status
	switch {
	case s.Epoch != epoch:
		return Loss{}, fmt.Errorf("volume %s is in epoch %d, and the decision was made by the record of epoch %d; look at it again: %w",
			v.Name, s.Epoch, epoch, ErrRefused)
	case InCeph(v):
		return Loss{}, fmt.Errorf("volume %s has nothing to discard, Ceph has all of it: %w", v.Name, ErrRefused)
	case s.AttachedNode != "" && death.Reason == "":
		return Loss{}, fmt.Errorf("volume %s is attached to node %s, which Kubernetes has not given up; detach it, or taint the node "+
			"node.kubernetes.io/out-of-service, first: %w", v.Name, s.AttachedNode, ErrRefused)
	}
	loss := Loss{BytesAtStake: s.DirtyBytes, Reason: "the cache of volume " + v.Name + " is discarded"}
	for _, node := range Current(v) {
		r, asked := reports[node]
		if !asked {
			return Loss{}, fmt.Errorf("volume %s: nobody has asked node %s about its copy: %w", v.Name, node, ErrUnreachable)
		}
		if errors.Is(r.doubt, ErrRecordBehind) {
			return Loss{}, fmt.Errorf("volume %s: node %s answers, but %w: %w", v.Name, node, r.doubt, ErrRefused)
		}
		if r.usable() && !imageGone {
			return Loss{}, fmt.Errorf("volume %s: node %s answers and has a current copy (%s, %s, %s): attach the volume there, "+
				"which loses nothing: %w", v.Name, node, r.status.State, r.status.DiskState, dirty(r.status), ErrRefused)
		}
		loss.Nodes = append(loss.Nodes, node)
	}
	return loss, nil
}

// usable reports whether the host's copy is within reach. It is also if the device has an error
// that does not come from the cache itself.
func (r Report) usable() bool {
	s := r.status
	if !r.known {
		return false
	}
	if s.State == escache.StateError && s.Error != nil && slices.Contains(beyondRepair(), s.Error.Code) {
		return false
	}
	return s.DiskState == escache.DiskUpToDate || s.DiskState == escache.DiskConsistent || s.DiskState == ""
}

func beyondRepair() []escache.Code {
	return []escache.Code{escache.CodeCacheCorrupt, escache.CodeIdentityMismatch}
}

// AtStake returns a sentence for a refused attach: which nodes with a current copy cannot be
// reached, since when, and what helps. It is empty if one of them can be reached, or if nothing is
// dirty.
func AtStake(v *v1alpha1.CacheVolume, reports map[string]Report, lastSeen func(node string) time.Time) string {
	if InCeph(v) {
		return ""
	}
	current := Current(v)
	var gone []string
	for _, node := range current {
		r, asked := reports[node]
		since := lastSeen(node)
		switch {
		case !asked || r.usable() || errors.Is(r.doubt, ErrRecordBehind):
			return ""
		case errors.Is(r.doubt, errLost):
			gone = append(gone, fmt.Sprintf("node %s answers that it has no replica any more", node))
		case errors.Is(r.doubt, errOtherHost):
			gone = append(gone, fmt.Sprintf("node %s is not the machine that had the copy (%v)", node, r.doubt))
		case r.known:
			gone = append(gone, fmt.Sprintf("node %s answers that its copy is %s %s", node, r.status.State, r.status.DiskState))
		case since.IsZero():
			gone = append(gone, fmt.Sprintf("node %s does not answer", node))
		default:
			gone = append(gone, fmt.Sprintf("node %s has not answered since %s", node, since.UTC().Format(time.RFC3339)))
		}
	}
	if len(gone) == 0 {
		gone = []string{"no current copy is left"}
	}
	bytes := v.Status.DirtyBytes
	return fmt.Sprintf("%s, and %d bytes (%s) of dirty data are at stake, as last reported. Bring that host back; or, if it is lost "+
		"for good, accept the loss: kubectl escache discard-cache %s", strings.Join(gone, ", "), bytes, v1alpha1.HumanBytes(bytes), v.Name)
}
