package blockdev

import "testing"

func TestParseStat(t *testing.T) {
	p, ok := parseStat("  12 3 456 7 100 3 999 50 4 1 2 0 0 0 0 9 9\n")
	if !ok || p.Completed != 112 || p.InFlight != 4 {
		t.Errorf("%+v %v", p, ok)
	}
	if _, ok := parseStat("x"); ok {
		t.Error("garbage was read")
	}
}
