package model

import (
	"slices"

	"github.com/escache/escache-csi/internal/authority"
)

// missing looks which replicas are missing beside one that is kept, and adds them to those that are laid
// anew. They are on record as outdated before that. If the node's own is missing, both are laid anew. So
// are those that are replaced together.
func (m *Model) missing(s *state) (found, ok bool) {
	c := &s.ctl
	if c.over || c.move != 0 || s.rec.epoch == 1 || !m.on(MissingOutdated) {
		return false, true
	}
	renew := c.renew
	s.rec.replicas.each(func(h uint8) {
		if s.reaches(h) && !s.host[h].laid {
			renew = renew.with(h)
		}
	})
	if m.on(RenewedTogether) {
		renew = m.real.renewed(s.rec.replicas, renew, c.node)
	}
	if renew == c.renew {
		return false, true
	}
	c.renew = renew
	unknown := renew &^ s.rec.outdated
	if unknown == 0 || renew == s.rec.replicas {
		return true, true
	}
	return true, m.swap(s, func(r *record) { r.outdated |= unknown })
}

// dropsOne is the removal of one of a volume's copies, with which the controller dies. More were to be
// removed.
func (m *Model) dropsOne(s *state, try func(kind, uint8, func(*state) bool)) {
	if !m.has(Crashes) || s.faults >= m.Bounds.Faults {
		return
	}
	s.rec.replicas.each(func(h uint8) {
		if !s.reaches(h) || !s.host[h].laid {
			return
		}
		try(controllerDrops, h, func(n *state) bool {
			dropped := m.drop(n, h, n.rec.given())
			n.faults, n.ctl = n.faults+1, controller{}
			return dropped
		})
	})
}

// halfRemoved is a clean volume that nobody has, and that has one of its two copies left.
func halfRemoved() state {
	s := fresh()
	s.rec.epoch, s.acked, s.last, s.ceph.value = 1, 1, 1, 1
	n1 := &s.host[0]
	n1.laid, n1.peer, n1.current, n1.upToDate, n1.tag = true, 1, 1, true, 1
	return s
}

// halfOutdated is such a volume that has an old copy beside the current one.
func halfOutdated() state {
	s := halfRemoved()
	s.rec.outdated = set(0).with(1)
	n1, n2 := &s.host[0], &s.host[1]
	n1.current, n1.bitmap = 2, 1
	n2.laid, n2.peer, n2.current, n2.tag = true, 0, 1, 1
	return s
}

// renewed asks which replicas are laid anew if these have to be.
func (r *rules) renewed(replicas, renew set, node uint8) (answer set) {
	rec := record{replicas: replicas, attached: nobody}
	var list []string
	renew.each(func(h uint8) { list = append(list, names[h]) })
	for _, name := range authority.Renewed(rec.volume(), names[node], list) {
		answer = answer.with(uint8(slices.Index(names[:], name)))
	}
	return answer
}

// unfilled asks which copies do not count yet after some were laid again.
func (r *rules) unfilled(replicas, renewed set, node uint8) set {
	q := anewQuestion{replicas, renewed, node}
	answer, known := r.anew[q]
	if !known {
		rec, plan := record{replicas: replicas, attached: nobody}, authority.Attachment{}
		renewed.each(func(h uint8) { plan.Renew = append(plan.Renew, names[h]) })
		for _, name := range authority.Unfilled(rec.volume(), plan, names[node]) {
			answer = answer.with(uint8(slices.Index(names[:], name)))
		}
		r.anew[q] = answer
	}
	return answer
}
