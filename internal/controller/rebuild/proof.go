package rebuild

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
)

// pair are the two hosts of a volume, and what is proven of their copies.
type pair struct {
	// nodes are the hosts, first one whose copy is current.
	nodes     []string
	outdated  []string
	authority v1alpha1.Authority
	// chosen: a person has decided, and nothing is proven.
	chosen bool
}

// proven returns the pair whose copies count, or nil if nothing proves it.
func (w *witnesses) proven() *pair {
	if p := w.inCeph(); p != nil {
		return p
	}
	if slices.ContainsFunc(w.expected, func(node string) bool { return w.silent[node] != nil || !w.asked(node) }) {
		return nil // only a person's decision gets here
	}
	found := map[string]*pair{}
	for _, node := range slices.Sorted(maps.Keys(w.copies)) {
		if p := w.pairOf(node); p != nil {
			nodes := slices.Sorted(slices.Values(p.nodes))
			if _, twice := found[strings.Join(nodes, " ")]; !twice {
				found[strings.Join(nodes, " ")] = p
			}
		}
	}
	if len(found) != 1 {
		return nil
	}
	for _, p := range found {
		p.authority = w.authorityOf(p)
		return p
	}
	return nil
}

func (w *witnesses) asked(node string) bool {
	_, asked := w.Hosts[node]
	return asked
}

// inCeph returns the volume's pair if the image says that the truth is in Ceph, and no host that answers
// says anything else.
func (w *witnesses) inCeph() *pair {
	if !w.note.InCeph() {
		return nil
	}
	for _, s := range w.copies {
		if w.note.Uncached && s.Epoch < w.last {
			continue // that attachment without a cache has made it old, whatever it has
		}
		if s.Epoch > w.last || s.DirtyBytes == nil || *s.DirtyBytes > 0 {
			return nil
		}
	}
	p := &pair{nodes: w.note.Spec.Replicas, authority: v1alpha1.AuthorityCeph}
	p.outdated = slices.DeleteFunc(slices.Clone(w.note.Outdated), func(node string) bool { return !slices.Contains(p.nodes, node) })
	return p
}

// pairOf returns a node and its peer if the node's copy is proven to be current. It must be of the newest
// attachment that anybody knows.
func (w *witnesses) pairOf(node string) *pair {
	own := w.copies[node]
	if len(own.Peers) != 1 || own.Peers[0].Name == "" || own.State != escache.StateStandby {
		return nil
	}
	peer := own.Peers[0].Name
	other, there := w.copies[peer]
	if there && (len(other.Peers) != 1 || other.Peers[0].Name != node) {
		return nil // they are not a pair any more
	}
	switch {
	case there && equal(own, other):
		if max(own.Epoch, other.Epoch) < w.seen {
			return nil
		}
		return &pair{nodes: []string{node, peer}}
	case own.Epoch < w.seen, there && beats(other, own):
		return nil
	case beats(own, other):
		return &pair{nodes: []string{node, peer}, outdated: []string{peer}}
	}
	return nil
}

// equal reports whether two copies are linked, and both ends say that both are current.
func equal(a, b escache.VolumeStatus) bool {
	current := func(s escache.VolumeStatus) bool {
		p := s.Peers[0]
		return s.State == escache.StateStandby && s.DiskState == escache.DiskUpToDate && p.ConnectionState == escache.LinkConnected &&
			p.DiskState == escache.DiskUpToDate
	}
	return current(a) && current(b)
}

// beats reports whether a is current and b, which may be missing, is not. DRBD knows a peer as outdated only
// if it went on without it, with the arbiter's leave, or is filling it. And a copy that DRBD itself
// calls outdated or half filled has a peer that was current then, and cannot have become outdated
// since: for that the other one would have been filled first.
func beats(a, b escache.VolumeStatus) bool {
	if a.State != escache.StateStandby || len(a.Peers) != 1 {
		return false
	}
	if a.DiskState == escache.DiskUpToDate && lesser(a.Peers[0].DiskState) {
		return true
	}
	return lesser(b.DiskState) && (a.DiskState == escache.DiskUpToDate || a.DiskState == escache.DiskConsistent)
}

func lesser(s escache.DiskState) bool {
	return s == escache.DiskOutdated || s == escache.DiskInconsistent
}

// authorityOf returns Ceph if both hosts of a pair have answered that they have nothing dirty.
func (w *witnesses) authorityOf(p *pair) v1alpha1.Authority {
	for _, node := range p.nodes {
		if s, there := w.copies[node]; !there || s.DirtyBytes == nil || *s.DirtyBytes > 0 {
			return v1alpha1.AuthorityCache
		}
	}
	return v1alpha1.AuthorityCeph
}

// chosen returns the pair of the node that a person has chosen, or nil if the volume never had a copy there.
func (w *witnesses) chosen() *pair {
	node := w.UseCopy
	peer := ""
	if own, there := w.copies[node]; there && len(own.Peers) == 1 {
		peer = own.Peers[0].Name
	}
	if at := slices.Index(w.note.Spec.Replicas, node); peer == "" && at >= 0 {
		peer = w.note.Spec.Replicas[1-at]
	}
	for _, other := range slices.Sorted(maps.Keys(w.copies)) {
		if peers := w.copies[other].Peers; peer == "" && len(peers) == 1 && peers[0].Name == node {
			peer = other
		}
	}
	if peer == "" || peer == node {
		return nil
	}
	return &pair{nodes: []string{node, peer}, outdated: []string{peer}, authority: v1alpha1.AuthorityCache, chosen: true}
}

// wrongChoice returns what is wrong with a person's choice, "" if it leads to this pair.
func (w *witnesses) wrongChoice(p *pair) string {
	switch {
	case p == nil:
		return fmt.Sprintf("the volume has no copy on node %s (%s)", w.UseCopy, w.says())
	case p.authority == v1alpha1.AuthorityCache && (!slices.Contains(p.nodes, w.UseCopy) || slices.Contains(p.outdated, w.UseCopy)):
		return fmt.Sprintf("the copy on node %s is proven to be current, and that on %s is not: leave --use-copy out (%s)",
			p.nodes[0], w.UseCopy, w.says())
	}
	return ""
}

// outside returns which hosts with the truth are not in the volume's group.
func (w *witnesses) outside(p *pair) string {
	if p.authority == v1alpha1.AuthorityCeph {
		return ""
	}
	for _, node := range p.nodes {
		if !slices.Contains(w.Group, node) {
			return fmt.Sprintf("node %s has a copy, and is not in NodeGroup %s: add it (%s)", node, w.note.Spec.Group, w.says())
		}
	}
	return ""
}

// remarks is what a person should know of a record that can be made.
func (w *witnesses) remarks(p *pair) string {
	var out []string
	if p.chosen {
		out = append(out, fmt.Sprintf("the copy of %s counts by your decision (%s)", p.nodes[0], w.says()))
	}
	for _, node := range slices.Sorted(maps.Keys(w.copies)) {
		if !slices.Contains(p.nodes, node) {
			out = append(out, fmt.Sprintf("node %s has an older copy, which is not used and stays (%s)", node, words(w.copies[node])))
		}
	}
	for _, node := range slices.Sorted(maps.Keys(w.silent)) {
		if slices.Contains(p.nodes, node) && !p.chosen {
			out = append(out, fmt.Sprintf("node %s does not answer; by the image's metadata it has nothing that is needed", node))
		}
	}
	for _, client := range w.Remains.Left {
		out = append(out, fmt.Sprintf("Ceph client %s holds the image's lock and does not have it open: it is fenced", client))
	}
	return strings.Join(out, "; ")
}
