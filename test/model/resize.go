package model

import "github.com/escache/escache-csi/internal/authority"

// resizesAnyway is what an attachment did that gives a cache its size also while it may be dirty.
func (m *Model) resizesAnyway(s *state, plan authority.Attachment) bool {
	return s.rec.wants && plan.TakeOver && !plan.Held && !m.on(ResizedOnlyFromCeph)
}

// resize is a part of the write that says where replicas are about to be laid.
func (r *record) resize() {
	if r.wants {
		r.size, r.wants = 1-r.size, false
	}
}

// sized breaks a promise if a host uses, or the record counts, a copy of another size than is on record. A
// former holder that is fenced is not asked.
func (s *state) sized() {
	for h := range uint8(hosts) {
		n := &s.host[h]
		if !n.laid || n.size == s.rec.size || !s.rec.replicas.has(h) {
			continue
		}
		counted := s.rec.inCache && !s.rec.outdated.has(h)
		if counted || s.rec.attached == h && s.usable(h) {
			s.breaks(2, whyOtherSize)
		}
	}
}
