package authority

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
)

// Flushers returns those of the nodes with a current copy that can write it back now, the best one first. Where there is none
// the error says of each why not.
func Flushers(v *v1alpha1.CacheVolume, current []string, reports map[string]Report) ([]string, error) {
	var able, reasons []string
	because := ErrRefused
	for _, node := range current {
		r, asked := reports[node]
		switch {
		case !asked:
			reasons, because = append(reasons, node+" was not asked"), ErrUnreachable
		case r.Err != nil:
			reasons, because = append(reasons, fmt.Sprintf("%s does not answer (%v)", node, r.Err)), ErrUnreachable
		case r.Status.State == escache.StateAbsent:
			reasons = append(reasons, node+" has no replica any more")
		case r.connected():
			// What is connected and attached nowhere was fenced: its map cannot write any more.
			reasons = append(reasons, fmt.Sprintf("%s still has the device of an earlier attachment (%s) and has to be rebooted",
				node, r.Status.State))
		default:
			able = append(able, node)
		}
	}
	if len(able) == 0 {
		return nil, fmt.Errorf("volume %s may have dirty data (%d bytes when last seen) only in its cache on %s, which has to be written "+
			"back first: %s: %w", v.Name, v.Status.DirtyBytes, strings.Join(current, " and "), strings.Join(reasons, "; "), because)
	}
	rank := func(node string) int {
		switch reports[node].Status.DiskState {
		case "UpToDate":
			return 0
		case "Consistent":
			return 1
		default: // dev_connect says what is wrong with it, and what helps
			return 2
		}
	}
	slices.SortStableFunc(able, func(a, b string) int { return cmp.Compare(rank(a), rank(b)) })
	return able, nil
}

// EndFlush decides how the volume is taken from the node that csi-controller gave it to be written back. Its truth is in Ceph
// only if this very attachment was connected, flushed and stopped: a replica that looks clean may have a peer that still writes. One
// that was promoted has none: its peer was linked and no Primary, or is on record as outdated.
func EndFlush(v *v1alpha1.CacheVolume, flushed bool, holder Report, death Death) (Detachment, error) {
	if !v.Status.FlushAttached() {
		return Detachment{Gone: true}, nil
	}
	node := v.Status.AttachedNode
	d, err := takeFrom(v, node, holder, death)
	d.Clean = d.Clean && flushed
	return d, err
}
