package soakplan

import (
	"reflect"
	"testing"
)

func TestASeedGivesTheSameRoundsAndAnotherOneGivesOthers(t *testing.T) {
	same, other := 0, 0
	for n := 1; n <= 100; n++ {
		a, b := Plan{Seed: 7, Hosts: 3, Volumes: 4}.Round(n), Plan{Seed: 7, Hosts: 3, Volumes: 4}.Round(n)
		if reflect.DeepEqual(a, b) {
			same++
		}
		if !reflect.DeepEqual(a, (Plan{Seed: 8, Hosts: 3, Volumes: 4}).Round(n)) {
			other++
		}
	}
	if same != 100 || other < 95 {
		t.Errorf("%d rounds are the same, %d differ under another seed", same, other)
	}
}

func TestEveryRoundCanBeDoneAndEveryKindIsDrawn(t *testing.T) {
	kinds, forced, moves := map[Kind]int{}, 0, 0
	for seed := range uint64(20) {
		for n := 1; n <= 100; n++ {
			r := Plan{Seed: seed, Hosts: 3, Volumes: 4}.Round(n)
			if len(r.Faults) == 0 || len(r.Faults) > mostFaults {
				t.Fatalf("%d faults: %s", len(r.Faults), r)
			}
			lost := map[int]bool{}
			for i, f := range r.Faults {
				kinds[f.Kind]++
				if f.Kind == PowerLoss || f.Kind == Freeze || f.Kind == DiskLoss {
					lost[f.Host] = true
				}
				if f.Forced {
					forced++
				}
				if f.At < 0 || f.At > latest || f.For != 0 && (f.For < shortest || f.For > longest) || i > 0 && f.At < r.Faults[i-1].At {
					t.Errorf("times: %s", r)
				}
				between := f.Kind == CutLink || f.Kind == CutOneWay || f.Kind == SlowLink
				if f.Host < 0 || f.Host > 2 || between && (f.Peer == f.Host || f.Peer < 0 || f.Peer > 2) {
					t.Errorf("hosts: %s", r)
				}
				if (f.Service != "") != (f.Kind == Kill || f.Kind == Stop) {
					t.Errorf("service: %s", r)
				}
			}
			if len(lost) > 1 {
				t.Errorf("two hosts are lost: %s", r)
			}
			moves += len(r.Moves)
		}
	}
	for _, kind := range []Kind{
		PowerLoss, Freeze, DiskLoss, CutLink, CutOneWay, SlowLink, CutCeph, CutAPI, StallCeph, StopAPI, KillDriver, Kill, Stop, Clock,
	} {
		if kinds[kind] < 50 {
			t.Errorf("%s was drawn %d times in 2000 rounds", kind, kinds[kind])
		}
	}
	if forced == 0 || moves == 0 {
		t.Errorf("%d hosts given up, %d moves", forced, moves)
	}
	t.Logf("%v, %d forced, %d moves", kinds, forced, moves)
}
