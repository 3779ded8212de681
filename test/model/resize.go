package model

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
