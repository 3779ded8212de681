//go:build e2e

package chaosdriver

import (
	"fmt"

	"github.com/escache/escache-csi/test/labtest"
)

// Clocks say nothing about who may write.
func clockRows() []row {
	return []row{
		{when: "clock", what: "of the heir an hour ahead during a take-over", run: heirAhead},
		{when: "clock", what: "of the holder an hour ahead, and back, during snapshots", run: clockInHold},
	}
}

func (s *scene) setClock(h *labtest.Host, seconds int) {
	s.Helper()
	h.Shell(s, fmt.Sprintf(`date -s "@$(($(date +%%s) + %d))" >/dev/null`, seconds))
}

func heirAhead(s *scene) {
	s.write()
	heir := s.partner()
	s.fault()
	s.setClock(heir, 3600)
	s.powerOff(s.holder)
	s.loses()
	s.takes(heir)
	s.setClock(heir, -3600)
	s.goesOn()
	s.whole()
	s.finish()
}

func clockInHold(s *scene) {
	s.write()
	for i, step := range []int{3600, -3600} {
		acked := s.writer.Acks()
		snapshot := s.snapshot(i)
		s.setClock(s.holder, step)
		s.ready(snapshot)
		s.fault()
		s.goesOn()
		s.hasAll(snapshot, acked)
	}
	s.whole()
	s.finish()
}
