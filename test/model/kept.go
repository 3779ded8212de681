package model

import (
	"time"

	"github.com/escache/escache-csi/internal/authority"
)

// lapses reports whether the controller's next look fences a client again. It comes before the client writes
// once more, and before an entry of an hour is over.
func (m *Model) lapses(s *state, c uint8) bool {
	return m.on(FencesKept) && s.ceph.lapsed.has(c) && s.rec.isFenced(c) &&
		m.real.lapses(lapsedQuestion{s.rec, c, s.ceph.blocked.has(c), s.ceph.brief.has(c)})
}

// keepsFenced is that look.
func (m *Model) keepsFenced(s *state, try func(kind, uint8, func(*state) bool)) {
	s.ceph.lapsed.each(func(c uint8) {
		if !m.lapses(s, c) {
			return
		}
		try(fenceAgain, c, func(n *state) bool {
			earlier := n.rec.earlier.without(c)
			if n.ceph.blocked.has(c) {
				earlier = earlier.with(c)
			}
			if earlier != n.rec.earlier {
				n.rec.earlier = earlier
				n.wrote()
			}
			n.ceph.blocked, n.ceph.brief, n.ceph.lapsed = n.ceph.blocked.with(c), n.ceph.brief.without(c), n.ceph.lapsed.without(c)
			return true
		})
	})
}

// lapsedQuestion is what is on record of a fenced client, and on the blocklist.
type lapsedQuestion struct {
	rec           record
	client        uint8
	listed, brief bool
}

// lapses asks whether a client that is on record as fenced has to be fenced again.
func (r *rules) lapses(q lapsedQuestion) bool {
	answer, known := r.again[q]
	if !known {
		v, now := q.rec.volume(), time.Unix(0, 0)
		for _, client := range v.Status.Fenced {
			if client.Address != address(q.client) {
				continue
			}
			var until *time.Time
			if q.listed {
				until = new(now.Add(authority.FenceSeconds * time.Second))
			}
			if q.brief {
				until = new(now.Add(time.Hour))
			}
			answer = authority.Lapsed(v, client, until, now)
		}
		r.again[q] = answer
	}
	return answer
}
