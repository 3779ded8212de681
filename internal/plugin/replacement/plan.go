// Package replacement says what follows when a host of a NodeGroup is replaced by another one, and what
// speaks against it. It knows what is on record, and is pure: it asks no host and changes nothing.
package replacement

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/escache/escache-csi/api/v1alpha1"
)

// Fresh is how old the record that a host answers may be. csi-controller renews it every minute.
const Fresh = 2 * time.Minute

// Records are what a plan is made from.
type Records struct {
	Groups  []v1alpha1.NodeGroup
	Volumes []v1alpha1.CacheVolume
	// Node is the Node of the new host, and Drivers are the CSI drivers that have registered there. nil:
	// there is none.
	Node    *corev1.Node
	Drivers *storagev1.CSINode
	// Evacuated means that the old host's evacuation has not ended.
	Evacuated bool
	// Unread means that Node and Drivers may not be read.
	Unread bool
	Now    time.Time
}

// Plan says what follows when the host Old of a group is replaced by New.
type Plan struct {
	Old, New string
	// Group is the group as it is.
	Group *v1alpha1.NodeGroup
	// Done means that New is in the group, and Old in none: what is left are the Volumes.
	Done bool
	// Nodes and CordonedNodes are what the group's spec becomes.
	Nodes, CordonedNodes []string
	// OldAnswers means that the escached of Old answered lately. It is not known of a host in no group.
	OldAnswers bool
	// Evacuated means that Old's evacuation has not ended.
	Evacuated bool
	// Volumes are those of the group that have a copy on Old, and CacheBytes is the size of their caches
	// there.
	Volumes    []Volume
	CacheBytes int64
	// Notes are for people. They do not speak against it.
	Notes []string

	against []Refusal
}

// Refusal is a reason not to do it now.
type Refusal struct {
	// Where is the object that What is said of.
	Where, What string
	// Todo says what helps.
	Todo string
}

// New makes the plan. It fails if the names make no sense.
func New(from, to string, r Records) (*Plan, error) {
	if from == to {
		return nil, fmt.Errorf("%s cannot replace itself; a host that was reinstalled keeps its place: "+
			"docs/hosts/host-reinstalled.md", from)
	}
	p := &Plan{Old: from, New: to, Evacuated: r.Evacuated}
	group, target := Owner(r.Groups, from), Owner(r.Groups, to)
	switch {
	case group == nil && target == nil:
		return nil, fmt.Errorf("node %s is in no NodeGroup; kubectl escache status lists them", from)
	case group == nil:
		p.Done, p.Group = true, target
	case target != nil && target.Name == group.Name:
		return nil, fmt.Errorf("node %s is in group %s already, together with %s", to, group.Name, from)
	default:
		p.Group = group
	}
	p.Nodes = slices.Clone(p.Group.Spec.Nodes)
	if at := slices.Index(p.Nodes, from); at >= 0 {
		p.Nodes[at] = to
	}
	p.CordonedNodes = slices.DeleteFunc(slices.Clone(p.Group.Spec.CordonedNodes), func(node string) bool { return node == from })
	p.OldAnswers = Answers(p.Group, from, r.Now)
	p.addVolumes(r)
	if p.Done {
		return p, nil
	}
	p.judgeGroup(r)
	if target != nil {
		p.refuse("node "+to, fmt.Sprintf("node %s is in group %s, and a host is in one group only", to, target.Name),
			"choose another host, or take it out of that group first")
	}
	p.judgeHost(r)
	return p, nil
}

// Refusals returns all reasons not to do it now.
func (p *Plan) Refusals() []Refusal {
	all := slices.Clone(p.against)
	for _, v := range p.Volumes {
		if v.Refused {
			all = append(all, Refusal{"volume " + v.Name, v.Is, v.Then})
		}
	}
	return all
}

func (p *Plan) refuse(where, what, todo string) {
	p.against = append(p.against, Refusal{where, what, todo})
}

func (p *Plan) notef(format string, args ...any) {
	p.Notes = append(p.Notes, fmt.Sprintf(format, args...))
}

func (p *Plan) addVolumes(r Records) {
	foreign := 0
	for i := range r.Volumes {
		v := &r.Volumes[i]
		switch {
		case !v.Spec.HasReplica(p.Old):
		case v.Spec.Group != p.Group.Name:
			foreign++
		default:
			p.Volumes = append(p.Volumes, p.judge(v, r.Now))
			p.CacheBytes += v.Spec.CacheBytes
		}
	}
	slices.SortFunc(p.Volumes, func(a, b Volume) int { return strings.Compare(a.Name, b.Name) })
	switch {
	case foreign == 1:
		p.notef("1 volume of another group has a copy on %s, too: kubectl escache status says what follows", p.Old)
	case foreign > 1:
		p.notef("%d volumes of other groups have a copy on %s, too: kubectl escache status says what follows", foreign, p.Old)
	}
}

// judgeGroup looks at the group itself and at the hosts that stay.
func (p *Plan) judgeGroup(r Records) {
	where := "group " + p.Group.Name
	if !p.Group.DeletionTimestamp.IsZero() {
		p.refuse(where, where+" is being deleted", "no host of it can be replaced any more")
	}
	var silent []string
	for _, node := range p.Group.Spec.Nodes {
		if node != p.Old && !Answers(p.Group, node, r.Now) {
			silent = append(silent, node)
		}
	}
	switch {
	case len(silent) == len(p.Group.Spec.Nodes)-1 && !p.OldAnswers:
		p.refuse(where, fmt.Sprintf("no host of the group is on record as answering in the last %s: they are all down, or no "+
			"csi-controller looks", Fresh), "bring csi-controller or the hosts back first: kubectl escache status")
	case len(silent) > 0:
		p.notef("%s %s not answer: kubectl escache status says why", strings.Join(silent, " and "), does(silent))
	}
}

// judgeHost looks at the new host, as far as Kubernetes knows it.
func (p *Plan) judgeHost(r Records) {
	where := "node " + p.New
	switch {
	case r.Unread:
		p.notef("node %s cannot be read: you may not. Whether it is Ready, and csi-node runs there, is not known", p.New)
		return
	case r.Node == nil:
		p.refuse(where, "Kubernetes has no node "+p.New, "check the spelling, or let the host join first")
		return
	case !ready(r.Node):
		p.refuse(where, where+" is not Ready", "kubectl describe node "+p.New+" says why")
	case r.Node.Spec.Unschedulable:
		p.notef("no pod can start on node %s until kubectl uncordon %s", p.New, p.New)
	}
	limit, registered := driverOf(r.Drivers)
	switch {
	case !registered:
		p.refuse(where, "csi-node has not registered on "+p.New, fmt.Sprintf("give the node the label of the hosts (kubectl label node %s "+
			"escache.io/host=true, unless node.nodeSelector in your Helm values is another one), and wait until its pods run", p.New))
	case !limit:
		p.notef("escached on %s has not told csi-node how many volumes it takes: kubectl escache status says after the change whether it "+
			"answers", p.New)
	}
}

func ready(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// driverOf reports whether csi-node has registered, and whether it knew escached's limit then.
func driverOf(drivers *storagev1.CSINode) (limit, registered bool) {
	if drivers == nil {
		return false, false
	}
	at := slices.IndexFunc(drivers.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == v1alpha1.DriverName })
	if at < 0 {
		return false, false
	}
	return drivers.Spec.Drivers[at].Allocatable != nil, true
}

// Owner returns the group that a node belongs to, the oldest one that names it; nil if none does.
func Owner(groups []v1alpha1.NodeGroup, node string) *v1alpha1.NodeGroup {
	var owner *v1alpha1.NodeGroup
	for i := range groups {
		g := &groups[i]
		if !slices.Contains(g.Spec.Nodes, node) {
			continue
		}
		older := owner == nil || g.CreationTimestamp.Before(&owner.CreationTimestamp) ||
			g.CreationTimestamp.Equal(&owner.CreationTimestamp) && g.Name < owner.Name
		if older {
			owner = g
		}
	}
	return owner
}

// Answers reports whether a member of a group is on record as answering. A host that is cordoned is never
// ready, but may answer. One that is not ready for another reason counts as silent.
func Answers(g *v1alpha1.NodeGroup, node string, now time.Time) bool {
	at := slices.IndexFunc(g.Status.Members, func(m v1alpha1.NodeGroupMember) bool { return m.Name == node })
	if at < 0 {
		return false
	}
	m := g.Status.Members[at]
	usable := m.Ready || slices.Contains(g.Spec.CordonedNodes, node)
	return usable && m.LastSeen != nil && now.Sub(m.LastSeen.Time) < Fresh
}

func does(nodes []string) string {
	if len(nodes) == 1 {
		return "does"
	}
	return "do"
}
