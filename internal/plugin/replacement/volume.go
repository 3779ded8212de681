package replacement

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/redundancy"
)

// Volume is a volume with a copy on the host that goes. Both texts are for people.
type Volume struct {
	Name string
	// Is says in what state the volume is.
	Is string
	// Then says what becomes of it, or what somebody has to do.
	Then string
	// Refused means that the host must not go before that is done.
	Refused bool
}

// judge decides by the record of one volume. The change of the group drops no copy. But the host is to be
// switched off afterwards, and it cannot be evacuated any more once it is in no group. So it has to stay
// while it has data that neither Ceph nor another host within reach has.
func (p *Plan) judge(v *v1alpha1.CacheVolume, now time.Time) Volume {
	refuse := func(is, then string) Volume { return Volume{v.Name, is, then, true} }
	partner := authority.Partner(v, p.Old)
	forPod := v.Status.AttachedNode != "" && !v.Status.FlushAttached()
	switch {
	case p.Done:
		return p.fate(v)
	case meta.IsStatusConditionTrue(v.Status.Conditions, v1alpha1.ConditionRecordBehindDisks):
		return refuse("a host has data that its record does not know", "bring the record up to date first: docs/restore-etcd.md")
	case v.Status.Phase == v1alpha1.VolumeConflict:
		return refuse("nothing proves which of its copies counts", "decide that first: kubectl escache adopt --all says how")
	case redundancy.NeedsNoCopy(v):
		return p.fate(v)
	case !slices.Contains(p.Nodes, partner):
		then := "restart its pod: it gets both copies in the group; then repeat this"
		if !forPod {
			then = flush(v) + "; then repeat this"
		}
		return refuse(fmt.Sprintf("its other copy is on %s, which is not in the group either", partner), then)
	}
	switch current := p.unreachable(v, now); {
	case len(authority.Current(v)) == 0 && !drained(v):
		return refuse("no copy is current", fmt.Sprintf(
			"kubectl escache discard-cache %s --dry-run says what accepting the loss means", v.Name))
	case len(current) > 0:
		return refuse(lost(current), fmt.Sprintf("bring %s back; if the data is lost for good: kubectl escache discard-cache %s --dry-run",
			strings.Join(current, " or "), v.Name))
	case forPod && v.Status.AttachedNode == p.Old:
		return p.attachedThere(v, refuse)
	case forPod:
		return p.attachedElsewhere(v, now, refuse)
	default:
		return p.detached(v, now, refuse)
	}
}

// unreachable returns the hosts with a current copy if somebody needs the one on the old host, and none
// of them answers. That counts also while a pod has the volume: nobody knows whether its host is alive.
func (p *Plan) unreachable(v *v1alpha1.CacheVolume, now time.Time) []string {
	current := authority.Current(v)
	if drained(v) || v.Status.IsOutdated(p.Old) || slices.ContainsFunc(current, func(node string) bool { return p.answers(node, now) }) {
		return nil
	}
	return current
}

func (p *Plan) answers(node string, now time.Time) bool {
	if node == p.Old {
		return p.OldAnswers
	}
	return Answers(p.Group, node, now)
}

// lost says of the hosts that they are needed and do not answer.
func lost(current []string) string {
	if len(current) == 1 {
		return current[0] + ", which has the only current copy, does not answer"
	}
	return strings.Join(current, " and ") + ", which have the current copies, do not answer"
}

func (p *Plan) attachedThere(v *v1alpha1.CacheVolume, refuse func(is, then string) Volume) Volume {
	switch {
	case !p.OldAnswers:
		return Volume{Name: v.Name, Is: "attached there", Then: fmt.Sprintf("if %s is dead, tell Kubernetes: its pod then starts on "+
			"a host of the group (docs/hosts/host-died.md)", p.Old)}
	case drained(v):
		return Volume{Name: v.Name, Is: "attached there, drained", Then: "restart its pod, and it runs on a host of the group; kubectl " +
			"drain " + p.Old + " does that"}
	default:
		return refuse("attached there, and not drained", "kubectl escache evacuate "+p.Old+" --wait; a host in no group cannot be "+
			"evacuated any more")
	}
}

func (p *Plan) attachedElsewhere(v *v1alpha1.CacheVolume, now time.Time, refuse func(is, then string) Volume) Volume {
	at := v.Status.AttachedNode
	onlyThere := v.Status.IsOutdated(at) && !v.Status.IsOutdated(p.Old)
	switch {
	case !p.answers(at, now) && !drained(v) && !v.Status.IsOutdated(p.Old):
		return refuse(fmt.Sprintf("attached to %s, which does not answer: only %s has a current copy that can be reached", at, p.Old),
			fmt.Sprintf("bring %s back, or have its pod start on another host (docs/hosts/host-died.md)", at))
	case onlyThere && drained(v):
		return Volume{Name: v.Name, Is: "the only copy there, drained", Then: "restart its pod on another host, and it gets two " +
			"copies in the group"}
	case onlyThere:
		return refuse(fmt.Sprintf("attached to %s, which has lost its copy: only %s has a current one", at, p.Old),
			fmt.Sprintf("kubectl escache flush --volume=%s --drain --wait, and restart its pod on another host", v.Name))
	default:
		return p.fate(v)
	}
}

func (p *Plan) detached(v *v1alpha1.CacheVolume, now time.Time, refuse func(is, then string) Volume) Volume {
	others := slices.DeleteFunc(authority.Current(v), func(node string) bool { return node == p.Old })
	reachable := slices.ContainsFunc(others, func(node string) bool { return p.answers(node, now) })
	switch {
	case v.Status.AttachedNode != "":
		return Volume{v.Name, "being written back on " + v.Status.AttachedNode,
			"wait until it is: kubectl escache explain --volume " + v.Name, !reachable && !v.Status.IsOutdated(p.Old)}
	case v.Status.IsOutdated(p.Old):
		return Volume{Name: v.Name, Is: "detached, dirty, and not current there", Then: flush(v) + "; the copy there is not needed"}
	case reachable:
		return Volume{Name: v.Name, Is: "detached, dirty", Then: flush(v) + "; " + strings.Join(others, " and ") + " has its data, too"}
	case len(others) > 0:
		return refuse(fmt.Sprintf("detached, dirty, and only %s has a current copy that can be reached", p.Old), flush(v))
	default:
		return refuse(fmt.Sprintf("detached, dirty, and only %s has a current copy", p.Old), flush(v))
	}
}

// flush is the command that has a volume written back that no node has.
func flush(v *v1alpha1.CacheVolume) string {
	return "kubectl escache flush --volume=" + v.Name + " --wait writes it back, without a pod"
}

// fate is what becomes of a volume with a copy on a host that has left the group.
func (p *Plan) fate(v *v1alpha1.CacheVolume) Volume {
	f := redundancy.FateOf(v, p.Old)
	return Volume{Name: v.Name, Is: f.Is, Then: f.Then}
}

// drained reports whether everything is in Ceph and stays there: an attachment that has just begun
// writes back soon.
func drained(v *v1alpha1.CacheVolume) bool {
	return authority.InCeph(v) && (v.Status.AttachedNode == "" || len(authority.Claims(v)) > 0)
}
