package repair

import (
	"fmt"
	"time"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
)

// Owner is the repair's name among a volume's claims to write-through.
const Owner = "repair"

// Action names the next step of a volume's repair.
type Action string

// Actions, in the order in which a repair goes through them.
const (
	Nothing    Action = ""           // and there is no repair on record
	Wait       Action = "Waiting"    // for what the reason says
	Begin      Action = "Beginning"  // put the repair on record
	Drain      Action = "Draining"   // have it write through, and wait until it is clean
	Substitute Action = "Replacing"  // give the lost replica's place to the third node
	Copy       Action = "Copying"    // have the holder copy
	Finish     Action = "Finishing"  // both copies are current: end the write-through
	End        Action = "Superseded" // the attachment it was for is over: take the repair off the record
)

// Policy says when and how repairs are made.
type Policy struct {
	// After is how long a host must be gone before its replicas are replaced.
	After time.Duration
	// Drain makes the volume write through while it has one copy.
	Drain bool
	// Patience is how long a drain may delay the replacement.
	Patience time.Duration
	// Parallel is how many volumes are copied at once.
	Parallel int
}

// Gone holds the nodes that do not answer and have not for longer than Policy.After, and when each
// was last seen.
type Gone map[string]time.Time

// Step describes what to do next for a volume.
type Step struct {
	Action Action
	// Holder has the volume. Lost is the node whose replica is replaced.
	Holder, Lost string
	// Reason says why this is done, or what it waits for. It is for people.
	Reason string
}

// Judge decides by one volume's record. It is pure. Every step reads the record again before it
// changes anything.
func Judge(v *v1alpha1.CacheVolume, gone Gone, policy Policy, now time.Time) Step {
	s, repair := &v.Status, v.Status.Repair
	holder := s.AttachedNode
	current := holder != "" && !s.FlushAttached() && v.Spec.HasReplica(holder) && !s.IsOutdated(holder)
	if repair != nil && (!current || repair.Epoch != s.Epoch) {
		return Step{End, holder, repair.Lost, "the attachment it was for is over; the next attach lays replicas where it can"}
	}
	if !current || !v.DeletionTimestamp.IsZero() {
		return Step{}
	}
	partner := authority.Partner(v, holder)
	since, isGone := gone[partner]
	if repair == nil {
		return first(v, holder, partner, since, isGone)
	}
	step := Step{Holder: holder, Lost: partner}
	switch {
	case !s.IsOutdated(partner):
		step.Action, step.Reason = Finish, "the copy on "+partner+" is current"
	case isGone && partner != repair.Lost:
		// The substitute is gone too, or the lost one is back as a replica of its own. The repair
		// begins again for this one.
		step.Action, step.Reason = Begin, notSeen(partner, since)
	case partner != repair.Lost:
		step.Action, step.Reason = Copy, holder+" copies to "+partner
	case !isGone:
		step.Action, step.Reason = Wait, "the host of "+partner+" is back: it resynchronises, and nothing is replaced"
	case policy.Drain && !authority.InCeph(v) && now.Sub(repair.Since.Time) < policy.Patience:
		step.Action, step.Reason = Drain, "what only "+holder+" has goes to Ceph"
	default:
		step.Action, step.Reason = Substitute, notSeen(partner, since)
	}
	return step
}

// first judges a volume without a repair on record.
func first(v *v1alpha1.CacheVolume, holder, partner string, since time.Time, isGone bool) Step {
	switch {
	case !isGone:
		return Step{}
	case authority.InCeph(v) && len(authority.Claims(v)) == 0:
		return Step{} // its attachment has begun and not ended
	case !v.Status.IsOutdated(partner):
		return Step{Wait, holder, partner, fmt.Sprintf("%s; %s has not put it on record as outdated, so it has written nothing since, "+
			"or is frozen", notSeen(partner, since), holder)}
	default:
		return Step{Begin, holder, partner, notSeen(partner, since)}
	}
}

func notSeen(node string, since time.Time) string {
	return fmt.Sprintf("node %s has not answered since %s", node, since.UTC().Format(time.RFC3339))
}

// Candidate is a volume that needs a copy.
type Candidate struct {
	Name    string
	Holder  string
	Third   string // the node that gets the copy
	Copying bool   // it has begun
	Since   time.Time
}

// Admit chooses the candidates that may copy: all that have begun, and of the others the oldest
// first, so that there are no more than parallel, and no more than one on a node. For the others
// the answer says what they wait for.
func Admit(candidates []Candidate, parallel int) (admitted map[string]bool, waiting map[string]string) {
	admitted, waiting = map[string]bool{}, map[string]string{}
	busy := map[string]string{}
	take := func(c Candidate) {
		admitted[c.Name] = true
		busy[c.Holder], busy[c.Third] = c.Name, c.Name
	}
	for _, c := range candidates {
		if c.Copying {
			take(c)
		}
	}
	for _, c := range candidates {
		if c.Copying {
			continue
		}
		switch {
		case len(admitted) >= parallel:
			waiting[c.Name] = fmt.Sprintf("%d volumes are copied already", len(admitted))
		case busy[c.Holder] != "":
			waiting[c.Name] = fmt.Sprintf("node %s is copying volume %s", c.Holder, busy[c.Holder])
		case busy[c.Third] != "":
			waiting[c.Name] = fmt.Sprintf("node %s is copying volume %s", c.Third, busy[c.Third])
		default:
			take(c)
		}
	}
	return admitted, waiting
}
