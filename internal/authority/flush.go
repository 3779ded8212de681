package authority

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
)

// Flushers returns the nodes that can write their current copy back now, the best one first. The
// current nodes are those with a current copy; reports are by node. If none can, the error says for
// each node why not; it wraps ErrUnreachable if a host has to answer first, else ErrRefused. If a host has
// seen a later attachment than the record, nothing is written back: the copy that the record calls current
// may be an old one. The error wraps ErrRecordBehind then.
func Flushers(v *v1alpha1.CacheVolume, current []string, reports map[string]Report) ([]string, error) {
	for node, r := range reports {
		if errors.Is(r.doubt, ErrRecordBehind) {
			return nil, fmt.Errorf("volume %s, node %s: %w", v.Name, node, r.doubt)
		}
	}
	if len(current) == 0 {
		return nil, noneLeft(v)
	}
	var able, reasons []string
	because := ErrRefused
	for _, node := range current {
		r := reports[node]
		doubt := r.doubted()
		switch {
		case errors.Is(doubt, errLost):
			reasons = append(reasons, node+" has no replica any more")
		case doubt != nil:
			reasons, because = append(reasons, fmt.Sprintf("%s does not answer (%v)", node, doubt)), ErrUnreachable
		case r.connected():
			// Connected and yet not attached: it was fenced, and its map cannot write any more.
			reasons = append(reasons, fmt.Sprintf("%s still has the device of an earlier attachment (%s) and has to be rebooted",
				node, r.device()))
		default:
			able = append(able, node)
		}
	}
	if len(able) == 0 {
		return nil, fmt.Errorf("volume %s may have dirty data (%d bytes when last seen) only in its cache on %s, which has to be written "+
			"back first: %s: %w", v.Name, v.Status.DirtyBytes, strings.Join(current, " and "), strings.Join(reasons, "; "), because)
	}
	rank := func(node string) int {
		switch reports[node].status.DiskState { //nolint:exhaustive // all others need help first
		case escache.DiskUpToDate:
			return 0
		case escache.DiskConsistent:
			return 1
		default: // dev_connect says what is wrong with it, and what helps
			return 2
		}
	}
	slices.SortStableFunc(able, func(a, b string) int { return cmp.Compare(rank(a), rank(b)) })
	return able, nil
}

// EndFlush decides how to take the volume from the node that csi-controller gave it to for writing
// back. The truth is in Ceph only if this same attachment was connected, flushed and stopped: a
// replica that merely looks clean may have a peer that still writes. A replica that was promoted
// has no such peer: the peer was linked and not Primary, or is on record as outdated.
func EndFlush(v *v1alpha1.CacheVolume, flushed bool, holder Report, death Death) (Detachment, error) {
	if !v.Status.FlushAttached() {
		return Detachment{Gone: true}, nil
	}
	node := v.Status.AttachedNode
	d, err := takeFrom(v, node, holder, death)
	d.Clean = d.Clean && flushed
	return d, err
}
