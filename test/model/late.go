package model

import (
	"fmt"
	"time"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
)

// A map is late if it comes after its host has lost the volume by force: dev_connect was under way. Its client
// was not known then, and is not on record later. The device is there before csi-node asks whether it may be
// used, and may write back until then.

// comes: a dev_connect may be under way on the node that loses the volume.
func (m *Model) comes(plan authority.Detachment) bool {
	return m.has(Late) && plan.MayCome && m.on(FencedWithoutClient)
}

// unstaged reports whether the kubelet of a node that lives says that the volume is not in use there. It does
// so after NodeUnstage, which waits for a dev_connect.
func (m *Model) unstaged(n *host) bool {
	return !m.has(Late) || !m.on(UnstageWaits) || n.stage == stageIdle
}

// leaving: the volume is being taken from a node that lives, whose kubelet then stages it no more.
func (m *Model) leaving(s *state, h uint8) bool {
	return m.has(Late) && m.on(UnstageWaits) && s.ctl.op == opUnpublish && s.ctl.node == h && !s.ctl.given
}

// comesLater reports whether the node that loses the volume goes on record without a client: none of those
// that are about to be on record, or are already, is its own.
func (s *state) comesLater(whose [hosts + 1]set) bool {
	h := s.ctl.lost
	return s.ctl.comes && h != nobody && whose[h]|s.rec.fenced[h]&s.rec.fencedNow == 0
}

// expect puts a host on record whose map may come.
func (r *record) expect(h uint8) { r.coming, r.comingNow = r.coming.with(h), r.comingNow.with(h) }

// early reports whether a device is there that is not used yet, and may write back.
func (m *Model) early(n *host) bool {
	return m.has(Late) && n.stage == stagePromoted && !n.device && !n.plain
}

// harms reports whether what this host writes to the image may be newer there, or whether another host may
// write there too. A device that is not used yet writes what its cache has, and nobody else has used the cache
// meanwhile.
func (s *state) harms(h uint8) bool {
	if s.host[h].device {
		return true
	}
	for i := range s.host {
		if uint8(i) != h && s.host[i].device && !s.ceph.blocked.has(s.host[i].client) {
			return true
		}
	}
	return s.host[h].back < s.ceph.value
}

// late returns the clients that have the image open late, by the controller's rule.
func (m *Model) late(s *state) set {
	if !m.has(Late) || !m.on(LateFenced) || s.rec.client != 0 && !m.on(LateFencedInUse) {
		return 0
	}
	var open [hosts]set
	for i := range s.host {
		if c := s.host[i].client; c != 0 {
			open[i] = open[i].with(c)
		}
	}
	return m.real.late(s.rec, open)
}

// breaksLock reports whether the lock of a silent client can be broken. That takes 30 s, in which the
// controller fences a client that is late.
func (m *Model) breaksLock(s *state, holder uint8) bool { return !m.late(s).has(holder) }

// expires reports whether an entry of an hour may be over. In that hour the controller fences clients that are
// late.
func (m *Model) expires(s *state) bool { return m.late(s)&^s.ceph.blocked == 0 }

// fencesLate fences the clients that are late. The record is written before, and the controller may die in between.
func (m *Model) fencesLate(s *state, try func(kind, uint8, func(*state) bool)) {
	(m.late(s) &^ s.ceph.blocked).each(func(c uint8) {
		try(fenceLate, c, func(n *state) bool {
			h := n.mappedAt(c)
			n.rec.fenced[h] = n.rec.fenced[h].with(c)
			n.ceph.blocked, n.ceph.lapsed = n.ceph.blocked.with(c), n.ceph.lapsed.without(c)
			n.wrote()
			return true
		})
		if s.faults >= m.Bounds.Faults || s.rec.isFenced(c) {
			return
		}
		try(recordLate, c, func(n *state) bool {
			h := n.mappedAt(c)
			n.rec.fenced[h], n.ceph.lapsed = n.rec.fenced[h].with(c), n.ceph.lapsed.with(c)
			n.faults++
			n.wrote()
			return true
		})
	})
}

// forgets takes hosts off the record that cannot map the image late any more.
func (m *Model) forgets(s *state, try func(kind, uint8, func(*state) bool)) {
	s.rec.coming.each(func(h uint8) {
		if s.host[h].stage != stageIdle && m.on(FenceKeptWhileMapped) {
			return // this dev_connect ends within the time that an entry stays in any case
		}
		if m.on(FenceKeptWhileMapped) && !m.real.cannotCome(s.rec, h, m.report(s, h)) {
			return
		}
		try(forgetHost, h, func(n *state) bool {
			n.rec.coming, n.rec.comingNow = n.rec.coming.without(h), n.rec.comingNow.without(h)
			n.wrote()
			return true
		})
	})
}

// late asks which of the clients are to be fenced. Each host has an address of its own here.
func (r *rules) late(rec record, open [hosts]set) (found set) {
	v := rec.volume()
	at := func(h int, c uint8) string { return fmt.Sprintf("10.1.0.%d:0/%d", h, c) }
	if rec.client != 0 && rec.attached != nobody {
		v.Status.ClientAddress = at(int(rec.attached), rec.client)
	}
	v.Status.Fenced = v.Status.Fenced[:rec.coming.size()]
	known, all := map[string][]string{}, []string{}
	for h, name := range names {
		known[name] = []string{fmt.Sprintf("10.1.0.%d", h)}
		rec.fenced[h].each(func(c uint8) {
			entry := rec.entry(h, c)
			entry.Address = at(h, c)
			v.Status.Fenced = append(v.Status.Fenced, entry)
		})
		open[h].each(func(c uint8) { all = append(all, at(h, c)) })
	}
	for _, client := range authority.Late(v, all, known) {
		for h := range names {
			open[h].each(func(c uint8) {
				if at(h, c) == client.Address {
					found = found.with(c)
				}
			})
		}
	}
	return found
}

// absentee is what is on record of a host that may still map the image, and of which no client is known.
func (r *record) absentee(h uint8) v1alpha1.FencedClient {
	entry := v1alpha1.FencedClient{Node: names[h], HostID: machine, Epoch: int64(r.epoch)}
	if !r.comingNow.has(h) {
		entry.Epoch--
	}
	return entry
}

// cannotCome asks whether no map of a host can come any more.
func (r *rules) cannotCome(rec record, h uint8, of report) bool {
	v, entry := rec.volume(), rec.absentee(h)
	status, err := of.real()
	return authority.MapGone(v, entry, authority.HeardOf(v, entry, status, err), time.Now())
}

// published is a volume that is dirty on n1 and n2. NodeStage on n1 has read the record, and is about to have
// it connected. Then n1 was cut off from the control plane.
func published() state {
	s := fresh()
	s.rec.attached, s.rec.epoch, s.rec.inCache = 0, 1, true
	s.acked, s.last, s.faults = 1, 1, 1
	for i := range uint8(2) {
		n := &s.host[i]
		n.laid, n.peer, n.current, n.upToDate, n.tag, n.dirty = true, 1-i, 1, true, 1, 1
	}
	s.conn = s.conn.with(pair(0, 1))
	n1 := &s.host[0]
	n1.given, n1.stage, n1.epoch, n1.writes, n1.control = 1, stageRead, 1, true, false
	return s
}
