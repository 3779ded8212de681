package repair

import (
	"fmt"
	"slices"
	"time"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/controller/volumes"
)

// forbearance is how long a host may fail to create a copy before another host is chosen. Nothing is lost with the
// change, because the host has nothing of the copy. It is longer than a restart of escached takes.
const forbearance = 2 * time.Minute

// inability is a host that answers, and says each time that it cannot create a volume's copy, or that it must not.
type inability struct {
	node  string
	since time.Time
	tried time.Time // the last time
	// refused says that its last answer was a refusal. That may be about data which the record does not know, so no
	// other host is chosen.
	refused bool
}

// tried notes how a step towards a volume's copy ended.
func (r *Repairer) tried(volume string, err error) {
	node, refused := volumes.Failed(err)
	r.mu.Lock()
	defer r.mu.Unlock()
	switch is := r.unable[volume]; {
	case err == nil:
		delete(r.unable, volume)
	case node == "": // it says nothing about a host
	case node == is.node:
		r.unable[volume] = inability{node, is.since, r.Now(), refused}
	default:
		r.unable[volume] = inability{node, r.Now(), r.Now(), refused}
	}
}

// cannot reports whether one of these hosts has failed for long to do its part in a volume's copy.
func (r *Repairer) cannot(volume string, nodes ...string) (is inability, cannot bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	is = r.unable[volume]
	return is, slices.Contains(nodes, is.node) && is.tried.Sub(is.since) >= forbearance
}

// leave reports whether another host may get the copy that is meant for this one.
func (i inability) leave(node string) bool { return i.node == node && !i.refused }

// instead says why another host is to get the copy that is being made, if one can take it. Empty: the host goes
// on trying.
func (r *Repairer) instead(v *v1alpha1.CacheVolume) string {
	partner := authority.Partner(v, v.Status.AttachedNode)
	is, cannot := r.cannot(v.Name, partner)
	if !cannot || !is.leave(partner) {
		return ""
	}
	if _, err := r.Volumes.Substitutes(v, partner, volumes.Elsewhere); err != nil {
		return ""
	}
	return fmt.Sprintf("node %s answers, and has not been able to create the copy since %s", partner, is.since.UTC().Format(time.RFC3339))
}
