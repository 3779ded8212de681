package repair

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/internal/redundancy"
)

// Owner is the repair's name among a volume's claims of write-through.
const Owner = authority.RepairClaim

// Action names the next step of a volume's repair.
type Action string

// Actions, in the order in which a repair goes through them.
const (
	Nothing    Action = ""           // and there is no repair on record
	Wait       Action = "Waiting"    // for what the reason says
	Begin      Action = "Beginning"  // put the repair on record
	Drain      Action = "Draining"   // have it write through, and wait until it is clean
	Substitute Action = "Replacing"  // give the lost replica's place to another node, or to the same one again
	Copy       Action = "Copying"    // have the holder copy
	Finish     Action = "Finishing"  // both copies are current: end the write-through
	Flush      Action = "Flushing"   // no pod has it: a host with a current copy writes it back
	End        Action = "Superseded" // the attachment it was for is over: take the repair off the record

	// Stay: an evacuation wants the copy on another host, and there is none. The volume writes through for it.
	Stay Action = v1alpha1.ReasonNoOtherHost
)

// Policy says when and how repairs are made.
type Policy struct {
	// After is how long a host must be gone, or a copy without a link, before the copy is replaced. 0:
	// only what somebody asks for is repaired. A write-back that was begun is finished in any case.
	After time.Duration
	// Drain makes the volume write through while it has one copy.
	Drain bool
	// Patience is how long a drain may delay the replacement.
	Patience time.Duration
	// Parallel is how many volumes are copied at once.
	Parallel int
}

// Seen is what was found out about a volume.
type Seen struct {
	redundancy.Finding

	// Silent says that the partner's host has been gone for long, although the record still counts its
	// copy. Empty: it has not.
	Silent string
	// Stuck says why nobody can write the volume back that no pod has. Empty: somebody may be able to.
	Stuck string
	// Paused says why nothing is replaced in the volume's group now. Empty: nothing speaks against it.
	Paused string
	// Instead says why another host is to get the copy that is being made. Empty: nothing speaks against its host, or
	// no other can take it.
	Instead string
	// Asked means that somebody wants the volume repaired now.
	Asked bool
	// Moves names the CacheFlush that drains the volume and wants the partner's copy on another host, and NoPlace
	// says why no host can take that. Both may be empty.
	Moves, NoPlace string
}

// Step describes what to do next for a volume.
type Step struct {
	Action Action
	// Holder has the volume. Lost is the node whose replica is replaced.
	Holder, Lost string
	// Place is where the new copy may be created.
	Place volumes.Place
	// Reason says why this is done, or what it waits for. It is for people.
	Reason string
}

// Judge decides by one volume's record and by what was seen of its copies. It is pure. Every step
// reads the record again before it changes anything.
func Judge(v *v1alpha1.CacheVolume, seen Seen, policy Policy, now time.Time) Step {
	s, repair := &v.Status, v.Status.Repair
	holder := s.AttachedNode
	partner := authority.Partner(v, holder)
	working, onPeer := works(v, partner)
	if repair != nil && (!working || repair.Epoch != s.Epoch) {
		return Step{Action: End, Holder: holder, Lost: repair.Lost,
			Reason: "the attachment it was for is over; the next attachment creates replicas where it can"}
	}
	if v.WithoutPod() {
		return withoutPod(v, seen, policy)
	}
	if !working || !v.DeletionTimestamp.IsZero() {
		return Step{}
	}
	step := Step{Holder: holder, Lost: partner, Place: placeFor(seen.Reason), Reason: seen.Message}
	if onPeer {
		step.Lost = holder
	}
	lost := seen.Proven && seen.Lost == step.Lost && (policy.After > 0 || seen.Asked)
	switch {
	case !lost && moves(v, &step, seen):
		step.Action = move(v, &step, seen)
	case repair == nil:
		step.Action = first(v, &step, lost, seen)
	case onPeer:
		step.Action = withoutDisk(v, &step, policy)
	default:
		step.Action = next(v, &step, lost, seen, policy, now)
	}
	if step.Action == Nothing {
		return Step{}
	}
	return step
}

// works reports whether the node that has the volume works on a current copy, and whether on its partner's.
func works(v *v1alpha1.CacheVolume, partner string) (working, onPeer bool) {
	s := &v.Status
	attached := !s.FlushAttached() && v.Spec.HasReplica(s.AttachedNode)
	own := !s.IsOutdated(s.AttachedNode)
	onPeer = attached && !own && !s.IsOutdated(partner)
	return attached && own || onPeer, onPeer
}

// withoutPod judges a dirty volume that no pod has. Nobody fills its second copy, and nobody writes to it. So
// what only one host has goes to Ceph, and the next attachment creates two copies. That is not held up by a
// pause, as a drain is not: it replaces nothing.
func withoutPod(v *v1alpha1.CacheVolume, seen Seen, policy Policy) Step {
	step := Step{Action: Flush, Holder: v.Status.AttachedNode, Lost: seen.Lost, Reason: seen.Message}
	begun := v.Status.FlushAttached()
	switch {
	case v.Status.Phase != v1alpha1.VolumeReady || !v.DeletionTimestamp.IsZero() || v.BeingReleased():
		return Step{} // who makes, deletes or releases it, writes it back
	case begun:
		// Also one that somebody else has begun, and that nobody waits for any more. It replaces nothing, and
		// nobody else ends it: so it does not matter whether repairs are on.
		step.Reason = fmt.Sprintf("node %s writes it back, and no pod has it", step.Holder)
	case policy.After == 0 && !seen.Asked:
		return Step{}
	case !seen.Proven || len(authority.Current(v)) == 0:
		return Step{}
	case seen.Stuck != "":
		step.Action = Wait
		step.Reason += "; " + seen.Stuck
	}
	return step
}

// placeFor says where a copy may be created that replaces one which was lost for this reason.
func placeFor(reason string) volumes.Place {
	switch reason {
	case v1alpha1.ReasonHostReinstalled, v1alpha1.ReasonReplicaMissing:
		return volumes.Same
	case v1alpha1.ReasonPeerDiskLost, v1alpha1.ReasonHostLeft, v1alpha1.ReasonCopyStaysAway:
		return volumes.Elsewhere
	default:
		return volumes.ElsewhereIfAway
	}
}

// first judges a volume without a repair on record.
func first(v *v1alpha1.CacheVolume, step *Step, lost bool, seen Seen) Action {
	switch {
	case authority.InCeph(v) && len(authority.Claims(v)) == 0:
		return Nothing // its attachment has begun and not ended
	case lost:
		return Begin
	case seen.Silent != "" && seen.Whole():
		step.Reason = fmt.Sprintf("%s; %s has not put it on record as outdated, so it has written nothing since, or is frozen",
			seen.Silent, step.Holder)
		return Wait
	case slices.Contains(authority.Claims(v), Owner) && authority.MayEnd(v, Owner) == nil:
		step.Reason = "the repair is over, and the volume still writes through for it"
		return Finish
	default:
		return Nothing
	}
}

// moves reports whether a copy is to leave its host that is not lost: it counts, or may be catching up. One
// that is being made is made first.
func moves(v *v1alpha1.CacheVolume, step *Step, seen Seen) bool {
	repair, partner := v.Status.Repair, authority.Partner(v, step.Holder)
	return seen.Moves != "" && step.Lost == partner && len(authority.Claims(v)) > 0 &&
		(repair == nil || repair.Lost == partner && repair.Substitute != partner)
}

// move judges a volume whose second copy is to leave its host. It writes through from before that copy stops
// counting until the new one counts. There is no hurry, so nothing is replaced before everything is in Ceph.
func move(v *v1alpha1.CacheVolume, step *Step, seen Seen) Action {
	begun := v.Status.Repair != nil
	step.Place = volumes.Moved
	step.Reason = fmt.Sprintf("the copy on %s goes to another host, as CacheFlush %s wants", step.Lost, seen.Moves)
	switch {
	case seen.NoPlace != "" && begun && !v.Status.IsOutdated(step.Lost):
		return Finish // called off: that copy counts still
	case seen.NoPlace != "" && !begun:
		step.Reason = fmt.Sprintf("no other host of the group can take the copy on %s: %s", step.Lost, seen.NoPlace)
		return Stay
	case seen.Paused != "" && !seen.Asked:
		step.Reason = seen.Paused
		return Wait
	case !begun:
		return Begin
	case !authority.InCeph(v) || !slices.Contains(authority.Claims(v), Owner):
		return Drain
	default:
		return Substitute
	}
}

// withoutDisk judges a repair of a volume whose holder has lost its own disk. Its only copy is the
// partner's, of which the holder cannot make another. So it writes through until it is attached again.
func withoutDisk(v *v1alpha1.CacheVolume, step *Step, policy Policy) Action {
	switch {
	case v.Status.Repair.Lost != step.Lost || v.Status.Repair.Substitute != "":
		return Begin
	case policy.Drain && !authority.InCeph(v):
		return Drain
	default:
		step.Reason += "; restart its pod on another host: the next attachment creates two copies"
		return Wait
	}
}

// next judges a repair of a volume whose holder has a current copy.
func next(v *v1alpha1.CacheVolume, step *Step, lost bool, seen Seen, policy Policy, now time.Time) Action {
	repair, partner := v.Status.Repair, step.Lost
	filling := repair.Substitute == partner
	switch {
	case !v.Status.IsOutdated(partner):
		step.Reason = "the copy on " + partner + " is current"
		return Finish
	case lost && (filling && step.Place != volumes.Same || !filling && partner != repair.Lost):
		// The new copy is lost too. The repair begins again for this one. A host that has nothing of the
		// new copy has not created it yet: that is the next step.
		return Begin
	case filling && seen.Instead != "" && (seen.Paused == "" || seen.Asked):
		step.Reason, step.Place = seen.Instead, volumes.Elsewhere
		return Substitute
	case filling:
		step.Reason = step.Holder + " copies to " + partner
		return Copy
	case !lost:
		step.Reason = "the host of " + partner + " is back: it resynchronises, and nothing is replaced"
		return Wait
	case policy.Drain && !authority.InCeph(v) && now.Sub(repair.Since.Time) < policy.Patience:
		step.Reason = "what only " + step.Holder + " has goes to Ceph: " + seen.Message
		return Drain
	case seen.Paused != "" && !seen.Asked:
		step.Reason = seen.Paused
		return Wait
	default:
		return Substitute
	}
}

// Pause returns why nothing is replaced in a group while these hosts do not answer. It returns "" if it
// is the trouble of single hosts. One host is never more than that.
func Pause(group string, members, away []string) string {
	if len(away) < 2 || 3*len(away) < len(members) {
		return ""
	}
	return fmt.Sprintf("%d of the %d hosts of group %s do not answer (%s): that is more than the loss of a host, and no copy is replaced "+
		"until there are fewer", len(away), len(members), group, strings.Join(away, ", "))
}

// Candidate is a volume that needs a copy.
type Candidate struct {
	Name   string
	Holder string
	// Able are the nodes that can get the copy, the best first. One that has begun has one.
	Able    []string
	Copying bool // it has begun
	Since   time.Time
	// Failed is when the host on record last failed to create the copy, if it has failed for long and no other can
	// take it. Such candidates come last, those that were tried longest ago first.
	Failed time.Time
}

// Admit chooses the candidates that may copy, and where to. Those that have begun go on. Of the others
// the first come first, as long as there are no more than parallel, and no more than one on a node. For the others
// the answer says what they wait for.
func Admit(candidates []Candidate, parallel int) (admitted, waiting map[string]string) {
	admitted, waiting = map[string]string{}, map[string]string{}
	busy := map[string]string{}
	take := func(c Candidate, to string) {
		admitted[c.Name] = to
		busy[c.Holder], busy[to] = c.Name, c.Name
	}
	for _, c := range candidates {
		if c.Copying {
			take(c, c.Able[0])
		}
	}
	for _, c := range candidates {
		if c.Copying {
			continue
		}
		idle := slices.IndexFunc(c.Able, func(node string) bool { return busy[node] == "" })
		switch {
		case len(admitted) >= parallel:
			waiting[c.Name] = fmt.Sprintf("%d volumes are copied already", len(admitted))
		case busy[c.Holder] != "":
			waiting[c.Name] = copying(busy, c.Holder)
		case idle < 0:
			waiting[c.Name] = copying(busy, c.Able...)
		default:
			take(c, c.Able[idle])
		}
	}
	return admitted, waiting
}

func copying(busy map[string]string, nodes ...string) string {
	var parts []string
	for _, node := range nodes {
		parts = append(parts, fmt.Sprintf("node %s is copying volume %s", node, busy[node]))
	}
	return strings.Join(parts, ", ")
}

// AdmitFlushes chooses which volumes without a pod may be written back now. Those that have begun go on. Of
// the others the first come first, as long as there are no more than parallel; one always may, because what has
// begun may be stuck. For the others the answer says what they wait for.
func AdmitFlushes(begun, others []string, parallel int) (waiting map[string]string) {
	waiting = map[string]string{}
	free := max(parallel-len(begun), 1)
	for _, name := range others[min(free, len(others)):] {
		waiting[name] = fmt.Sprintf("%d volumes are written back already", len(begun)+free)
	}
	return waiting
}
