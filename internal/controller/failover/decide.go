package failover

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/escache/escache-csi/api/escache"
)

// Policy says when a node is tainted.
type Policy struct {
	// After is how long the proof must hold without a break.
	After time.Duration
}

// Links counts the replication links to a node that the other members of its group report.
type Links struct {
	// Down and Up are how many links each state has.
	Down, Up int
	// By lists the members that report links which are up.
	By []string
}

// Member is a node of a group as it is seen now.
type Member struct {
	Name, Group string
	// NotReady is what Kubernetes says. Silent means that its escached does not answer.
	NotReady, Silent bool
	// Links are the links to it. They count only if it is NotReady and Silent.
	Links Links
	// ProvenSince is since when the proof has held without a break. It is zero if the proof does
	// not hold now.
	ProvenSince time.Time
	// OutOfService means that it has the taint, and Ours that this controller has set it.
	OutOfService, Ours bool
	// Volumes is how many volumes are attached to it on record.
	Volumes int
}

func (m Member) suspect() bool { return m.NotReady || m.Silent }

// Proof reports whether the node is dead according to every source that can be asked now.
func (m Member) Proof() bool {
	return m.NotReady && m.Silent && m.Links.Up == 0 && m.Links.Down > 0
}

// Decision says what to do now.
type Decision struct {
	// Taint is the one node to taint, or empty, and Reason says why.
	Taint, Reason string
	// Release lists the nodes whose own taint is removed.
	Release []string
	// StandDown says, for each node that looks dead, why it is not tainted. It leaves out nodes
	// whose time is not up.
	StandDown map[string]string
}

// Decide applies the rules. It is pure.
func Decide(members []Member, policy Policy, now time.Time) Decision {
	d := Decision{StandDown: map[string]string{}}
	var suspects, outOfService []string
	for _, m := range members {
		if m.suspect() {
			suspects = append(suspects, m.Name)
		}
		if m.OutOfService {
			outOfService = append(outOfService, m.Name)
		}
		if m.OutOfService && m.Ours && !m.suspect() && m.Volumes == 0 {
			d.Release = append(d.Release, m.Name)
		}
	}
	slices.Sort(outOfService)
	proven := slices.DeleteFunc(slices.Clone(members), func(m Member) bool { return m.OutOfService || !m.NotReady || !m.Silent })
	slices.SortFunc(proven, func(a, b Member) int {
		if order := a.ProvenSince.Compare(b.ProvenSince); order != 0 {
			return order
		}
		return strings.Compare(a.Name, b.Name)
	})
	for _, m := range proven {
		held := now.Sub(m.ProvenSince)
		reason := standDown(m, members, suspects, outOfService, d.Taint)
		switch {
		case reason != "":
			d.StandDown[m.Name] = reason
		case m.ProvenSince.IsZero() || held < policy.After:
		default:
			d.Taint = m.Name
			d.Reason = fmt.Sprintf("for %s node %s has not been Ready, its escached has not answered, and all %d replication links to it "+
				"that the rest of group %s reports have been down", held.Round(time.Second), m.Name, m.Links.Down, m.Group)
		}
	}
	return d
}

// standDown returns why a node that is not Ready and does not answer is not tainted. It returns ""
// if nothing speaks against the taint.
func standDown(m Member, members []Member, suspects, outOfService []string, tainting string) string {
	if 2*len(suspects) >= len(members) {
		return fmt.Sprintf("%d of %d nodes look dead (%s); probably the controller is cut off", len(suspects), len(members),
			strings.Join(suspects, ", "))
	}
	for _, other := range members {
		if other.Group == m.Group && other.Name != m.Name && other.suspect() {
			return fmt.Sprintf("node %s of the same group %s looks dead too, or is not Ready", other.Name, m.Group)
		}
	}
	switch {
	case len(outOfService) > 0:
		return fmt.Sprintf("node %s is out of service already, and nodes are tainted one at a time", strings.Join(outOfService, ", "))
	case tainting != "":
		return fmt.Sprintf("node %s is tainted now, and nodes are tainted one at a time", tainting)
	case m.Links.Up > 0:
		return fmt.Sprintf("it lives, but the controller and Kubernetes do not reach it: replication links to it are up on %s",
			strings.Join(m.Links.By, " and "))
	case m.Links.Down == 0:
		return "no other node of its group has a replication link to it, so nobody confirms that it is dead"
	}
	return ""
}

// LinksTo adds to sum what one member's status says of its links to a node. The question is whether
// the node lives, not whether the replicas exchange data (Peer.Linked): a handshake that is under
// way says that it does, and a link that was given up (StandAlone) says nothing.
func LinksTo(node, by string, volumes []escache.VolumeStatus, sum *Links) {
	for _, v := range volumes {
		for _, p := range v.Peers {
			if p.Name != node {
				continue
			}
			switch p.ConnectionState { //nolint:exhaustive // in all others the node has answered
			case escache.LinkStandAlone, escache.LinkDisconnecting, "":
			case escache.LinkWFConnection, "Connecting", escache.LinkUnconnected, escache.LinkNetworkFailure, escache.LinkBrokenPipe,
				escache.LinkTimeout, escache.LinkTearDown:
				sum.Down++
			default:
				sum.Up++
				if !slices.Contains(sum.By, by) {
					sum.By = append(sum.By, by)
				}
			}
		}
	}
}
