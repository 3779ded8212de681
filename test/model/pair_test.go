package model

import "testing"

func TestAPairIsNumberedOnce(t *testing.T) {
	seen := map[uint8]bool{}
	for a := range uint8(hosts) {
		for b := range uint8(hosts) {
			if a == b {
				continue
			}
			p := pair(a, b)
			if low, high := hostsOf(p); low != min(a, b) || high != max(a, b) {
				t.Errorf("hosts %d and %d are pair %d, which is %d and %d", a, b, p, low, high)
			}
			seen[p] = true
		}
	}
	if len(seen) != pairs || seen[pairs] {
		t.Errorf("%d pairs, want %d: %v", len(seen), pairs, seen)
	}
}

func TestOnlyTheFirstOfTheUntouchedHostsIsTried(t *testing.T) {
	for what, tc := range map[string]struct {
		touch func(s *state)
		tried bool // n4 is
	}{
		"nobody has touched n3 and n4": {func(*state) {}, false},
		"n3 has a replica":             {func(s *state) { s.rec.replicas = set(0).with(0).with(2); s.lay(2, 0, 1) }, true},
		"n3 is to have one":            {func(s *state) { s.ctl = controller{op: opRepair, node: 0, lost: 1, move: set(0).with(0).with(2)} }, true},
		"n3 is on record as outdated":  {func(s *state) { s.rec.outdated = set(0).with(2) }, true},
		"n3 has had the volume":        {func(s *state) { s.host[2].given = 1 }, true},
		"a link of n4 is cut":          {func(s *state) { s.cut = s.cut.with(pair(0, 3)) }, true},
		"n3 has a client on record":    {func(s *state) { s.rec.fenced[2] = set(0).with(1) }, true},
		"a map of n3 may come":         {func(s *state) { s.rec.coming = set(0).with(2) }, true},
		"a backup names n3":            {func(s *state) { s.saved = s.rec; s.saved.attached = 2 }, true},
	} {
		t.Run(what, func(t *testing.T) {
			s := begun()
			tc.touch(&s)
			if got := !s.likeAnother(3); got != tc.tried {
				t.Errorf("n4 is tried: %v", got)
			}
			if s.likeAnother(0) || s.likeAnother(1) || s.likeAnother(2) {
				t.Error("a host before it is left out")
			}
		})
	}
}
