package authority

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
)

var group = []string{"n1", "n2", "n3"}

// volume has its replicas on n1 and n2.
func volume(change func(*v1alpha1.CacheVolumeStatus)) *v1alpha1.CacheVolume {
	v := &v1alpha1.CacheVolume{Spec: v1alpha1.CacheVolumeSpec{Group: "g", Replicas: []string{"n1", "n2"}}}
	v.Name = "v"
	v.Status.Epoch = 7
	change(&v.Status)
	return v
}

func inCache(s *v1alpha1.CacheVolumeStatus) { s.Authority = v1alpha1.AuthorityCache }

// drained is attached to n1 and writes through for somebody.
func drained(s *v1alpha1.CacheVolumeStatus) {
	s.Authority, s.AttachedNode = v1alpha1.AuthorityCeph, "n1"
	s.WriteThrough = []v1alpha1.WriteThroughClaim{{Owner: "somebody", Epoch: 7}}
}

// flushing is a volume that csi-controller has given to the node to be written back.
func flushing(node string) func(*v1alpha1.CacheVolumeStatus) {
	return func(s *v1alpha1.CacheVolumeStatus) { inCache(s); s.AttachedNode, s.FlushEpoch = node, s.Epoch }
}

func TestAttach(t *testing.T) {
	for _, tc := range []struct {
		name    string
		status  func(*v1alpha1.CacheVolumeStatus)
		node    string
		want    Attachment
		refusal string // what the error says; empty: none
	}{
		{"never attached", func(*v1alpha1.CacheVolumeStatus) {}, "n1", Attachment{Epoch: 8}, ""},
		{"clean, partner", func(s *v1alpha1.CacheVolumeStatus) { s.Authority = v1alpha1.AuthorityCeph }, "n2", Attachment{Epoch: 8}, ""},
		{"clean, node without a replica", func(*v1alpha1.CacheVolumeStatus) {}, "n3", Attachment{Epoch: 8, Relay: true}, ""},
		{"clean, an old copy is laid anew", func(s *v1alpha1.CacheVolumeStatus) { s.Outdated = []string{"n2"} }, "n2",
			Attachment{Epoch: 8, Renew: []string{"n2"}}, ""},
		{"clean, all copies old", func(s *v1alpha1.CacheVolumeStatus) { s.Outdated = []string{"n1", "n2"} }, "n3",
			Attachment{Epoch: 8, Relay: true, Renew: []string{"n1", "n2"}}, ""},
		{"again", func(s *v1alpha1.CacheVolumeStatus) { inCache(s); s.AttachedNode = "n1" }, "n1",
			Attachment{Held: true, Epoch: 7, TakeOver: true}, ""},
		{"again, before the truth moved", func(s *v1alpha1.CacheVolumeStatus) { s.AttachedNode = "n1" }, "n1",
			Attachment{Held: true, Epoch: 7}, ""},
		{"again, drained", func(s *v1alpha1.CacheVolumeStatus) { drained(s); s.Outdated = []string{"n2"} }, "n1",
			Attachment{Held: true, Epoch: 7, Drained: true}, ""},
		{"again, a claim of an earlier attachment", func(s *v1alpha1.CacheVolumeStatus) { drained(s); s.WriteThrough[0].Epoch = 6 }, "n1",
			Attachment{Held: true, Epoch: 7}, ""},
		{"drained, its holder was fenced, node without a replica", func(s *v1alpha1.CacheVolumeStatus) { drained(s); s.AttachedNode = "" }, "n3",
			Attachment{Epoch: 8, Relay: true}, ""},
		{"drained, still attached elsewhere", drained, "n3", Attachment{}, "attached to node n1"},
		{"dirty, holder", inCache, "n1", Attachment{Epoch: 8, TakeOver: true}, ""},
		{"dirty, partner", inCache, "n2", Attachment{Epoch: 8, TakeOver: true}, ""},
		{"dirty, node without a replica", inCache, "n3", Attachment{FlushFirst: []string{"n1", "n2"}}, ""},
		{"dirty, old copy", func(s *v1alpha1.CacheVolumeStatus) { inCache(s); s.Outdated = []string{"n2"} }, "n2",
			Attachment{FlushFirst: []string{"n1"}}, ""},
		{"dirty, node without a replica beside an old copy", func(s *v1alpha1.CacheVolumeStatus) { inCache(s); s.Outdated = []string{"n1"} }, "n3",
			Attachment{FlushFirst: []string{"n2"}}, ""},
		{"being written back, node without a replica", flushing("n1"), "n3", Attachment{FlushFirst: []string{"n1"}}, ""},
		{"being written back, other copy", flushing("n1"), "n2", Attachment{FlushFirst: []string{"n1"}}, ""},
		{"being written back, the node that does it", flushing("n1"), "n1", Attachment{Epoch: 8, TakeOver: true}, ""},
		{"being written back, foreign node", flushing("n1"), "n9", Attachment{}, "n1, n2, n3"},
		{"written back and still attached", func(s *v1alpha1.CacheVolumeStatus) { flushing("n1")(s); s.Authority = v1alpha1.AuthorityCeph }, "n3",
			Attachment{FlushFirst: []string{"n1"}}, ""},
		{"attached elsewhere after it was written back", func(s *v1alpha1.CacheVolumeStatus) { flushing("n1")(s); s.Epoch++ }, "n3",
			Attachment{}, "attached to node n1 since epoch 8"},
		{"again, with a copy that is not current", func(s *v1alpha1.CacheVolumeStatus) { inCache(s); s.AttachedNode, s.Outdated = "n2", []string{"n2"} }, "n2",
			Attachment{}, "no current copy"},
		{"dirty, current copy beside an old one", func(s *v1alpha1.CacheVolumeStatus) { inCache(s); s.Outdated = []string{"n2"} }, "n1",
			Attachment{Epoch: 8, TakeOver: true}, ""},
		{"dirty, no current copy", func(s *v1alpha1.CacheVolumeStatus) { inCache(s); s.Outdated = []string{"n1", "n2"} }, "n1",
			Attachment{}, "no current replica left"},
		{"attached elsewhere", func(s *v1alpha1.CacheVolumeStatus) { s.AttachedNode = "n2" }, "n1", Attachment{}, "attached to node n2 since epoch 7"},
		{"foreign node", func(*v1alpha1.CacheVolumeStatus) {}, "n9", Attachment{}, "n1, n2, n3"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := Attach(volume(tc.status), group, tc.node)
			if tc.refusal != "" {
				if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), tc.refusal) {
					t.Errorf("got %+v, %v", got, err)
				}
				return
			}
			if err != nil || got.Held != tc.want.Held || got.Epoch != tc.want.Epoch || got.Relay != tc.want.Relay ||
				got.TakeOver != tc.want.TakeOver || got.Drained != tc.want.Drained || !slices.Equal(got.Renew, tc.want.Renew) ||
				!slices.Equal(got.FlushFirst, tc.want.FlushFirst) {
				t.Errorf("got %+v, %v, want %+v", got, err, tc.want)
			}
		})
	}
}

// A cache gets another size with both its copies, and only while nothing in them is needed.
func TestACacheIsResizedOnlyFromCeph(t *testing.T) {
	for _, tc := range []struct {
		name   string
		status func(*v1alpha1.CacheVolumeStatus)
		node   string
		want   Attachment
	}{
		{"clean", func(s *v1alpha1.CacheVolumeStatus) { s.Authority = v1alpha1.AuthorityCeph }, "n1", Attachment{Epoch: 8, Relay: true}},
		{"clean, an old copy", func(s *v1alpha1.CacheVolumeStatus) { s.Outdated = []string{"n2"} }, "n1",
			Attachment{Epoch: 8, Relay: true, Renew: []string{"n2"}}},
		{"again, before the truth moved", func(s *v1alpha1.CacheVolumeStatus) { s.AttachedNode = "n1" }, "n1",
			Attachment{Held: true, Epoch: 7, Relay: true}},
		{"again, in use", func(s *v1alpha1.CacheVolumeStatus) { inCache(s); s.AttachedNode = "n1" }, "n1",
			Attachment{Held: true, Epoch: 7, TakeOver: true}},
		{"again, drained", drained, "n1", Attachment{Held: true, Epoch: 7, Drained: true}},
		{"dirty", inCache, "n1", Attachment{Epoch: 8, TakeOver: true}},
		{"dirty, node without a replica", inCache, "n3", Attachment{FlushFirst: []string{"n1", "n2"}}},
	} {
		v := volume(tc.status)
		v.Spec.CacheBytes, v.Spec.WantedCacheBytes = 1<<30, 2<<30
		got, err := Attach(v, group, tc.node)
		if err != nil || len(tc.want.FlushFirst) == 0 && !reflect.DeepEqual(got, tc.want) || !slices.Equal(got.FlushFirst, tc.want.FlushFirst) {
			t.Errorf("%s: %+v, %v, want %+v", tc.name, got, err, tc.want)
		}
		if unfilled := Unfilled(v, got, tc.node); got.Relay && unfilled != nil {
			t.Errorf("%s: all copies are new, and %v is to be filled", tc.name, unfilled)
		}
	}
}

func TestWithTheNodesOwnCopyAllAreCreatedAgain(t *testing.T) {
	v := volume(func(*v1alpha1.CacheVolumeStatus) {})
	for _, tc := range []struct{ given, want []string }{
		{nil, nil}, {[]string{"n2"}, []string{"n2"}}, {[]string{"n1"}, []string{"n1", "n2"}}, {[]string{"n2", "n1"}, []string{"n1", "n2"}},
	} {
		if got := Renewed(v, "n1", tc.given); !slices.Equal(got, tc.want) {
			t.Errorf("%v: %v, want %v", tc.given, got, tc.want)
		}
	}
}

func TestACopyThatIsLaidAnewBesideAKeptOneIsOutdatedUntilThatFillsIt(t *testing.T) {
	for _, tc := range []struct {
		name     string
		replicas []string // after the attachment's replicas were laid
		renew    []string
		want     []string
	}{
		{"nothing was laid anew", []string{"n1", "n2"}, nil, nil},
		{"the partner's", []string{"n1", "n2"}, []string{"n2"}, []string{"n2"}},
		{"both: they are equal", []string{"n1", "n2"}, []string{"n1", "n2"}, nil},
		{"the node's own: then all are", []string{"n1", "n2"}, []string{"n1"}, nil},
		{"another host stands in, so all are new", []string{"n1", "n3"}, []string{"n2"}, nil},
	} {
		v := volume(func(*v1alpha1.CacheVolumeStatus) {})
		v.Spec.Replicas = tc.replicas
		if got := Unfilled(v, Attachment{Renew: tc.renew}, "n1"); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}

func standby(dirty *int64) answer {
	return answer{Status: escache.VolumeStatus{
		State: escache.StateStandby, Role: escache.RoleSecondary, DiskState: "UpToDate", DirtyBytes: dirty,
	}}
}

func holding(state escache.State) answer {
	return answer{Status: escache.VolumeStatus{State: state, Role: escache.RolePrimary, ClientAddress: "10.0.0.1:0/1"}}
}

// connecting is a standby on which a dev_connect has not ended.
func connecting() answer {
	a := standby(nil)
	a.Status.Connecting = true
	return a
}

// under is a clean standby whose linked peer is Primary.
func under(peer string) answer {
	a := standby(new(int64(0)))
	a.Status.Peers = []escache.Peer{{Name: peer, ConnectionState: escache.LinkConnected, Role: escache.RolePrimary}}
	return a
}

func TestDetach(t *testing.T) {
	silent, dead := answer{Err: errors.New("no route")}, Death{Reason: "tainted"}
	held := func(s *v1alpha1.CacheVolumeStatus) { inCache(s); s.AttachedNode = "n1" }
	outdated, absent := standby(new(int64(0))), answer{Status: escache.VolumeStatus{State: escache.StateAbsent}}
	outdated.Status.DiskState = "Outdated"
	neverUsed, halfFilled := standby(new(int64(0))), standby(nil)
	neverUsed.Status.DiskState, halfFilled.Status.DiskState = escache.DiskInconsistent, escache.DiskInconsistent
	for _, tc := range []struct {
		name   string
		status func(*v1alpha1.CacheVolumeStatus)
		holder answer
		death  Death
		want   Detachment
		err    error
	}{
		{"not attached", inCache, silent, Death{}, Detachment{Gone: true}, nil},
		{"attached elsewhere", func(s *v1alpha1.CacheVolumeStatus) { s.AttachedNode = "n2" }, silent, Death{}, Detachment{Gone: true}, nil},
		{"being written back", flushing("n1"), standby(new(int64(0))), dead, Detachment{Gone: true}, nil},
		{"orderly and clean", held, standby(new(int64(0))), Death{}, Detachment{Clean: true}, nil},
		{"clean, and its linked peer is Primary", held, under("n2"), Death{}, Detachment{}, nil},
		{"no device on a node given up, where dev_connect may run", held, standby(new(int64(0))), dead, Detachment{Clean: true, MayCome: true}, nil},
		{"orderly and dirty", held, standby(new(int64(1))), Death{}, Detachment{}, nil},
		{"orderly, dirtiness not known", held, standby(nil), Death{}, Detachment{}, nil},
		{"orderly, and never connected since its replica was created", held, neverUsed, Death{}, Detachment{Clean: true}, nil},
		{"never connected, on a node given up", held, neverUsed, dead, Detachment{MayCome: true}, nil},
		{"never connected, and not current by the record", func(s *v1alpha1.CacheVolumeStatus) { held(s); s.Outdated = []string{"n1"} },
			neverUsed, Death{}, Detachment{}, nil},
		{"orderly, and half filled", held, halfFilled, Death{}, Detachment{}, nil},
		{"orderly, copy not current by DRBD", held, outdated, Death{}, Detachment{}, nil},
		{"orderly, copy not current by the record", func(s *v1alpha1.CacheVolumeStatus) { held(s); s.Outdated = []string{"n1"} },
			standby(new(int64(0))), Death{}, Detachment{}, nil},
		{"orderly and clean, but an earlier holder that was fenced may write to both copies", func(s *v1alpha1.CacheVolumeStatus) {
			held(s)
			s.Fenced = []v1alpha1.FencedClient{{Node: "n2", Address: "a"}}
		}, standby(new(int64(0))), Death{}, Detachment{}, nil},
		{"orderly and clean, but somebody was fenced of whom nobody knows where it is", func(s *v1alpha1.CacheVolumeStatus) {
			held(s)
			s.Fenced = []v1alpha1.FencedClient{{Address: "a"}}
		}, standby(new(int64(0))), Death{}, Detachment{}, nil},
		{"orderly and clean after a take-over", func(s *v1alpha1.CacheVolumeStatus) {
			held(s)
			s.Fenced, s.Outdated = []v1alpha1.FencedClient{{Node: "n2", Address: "a"}}, []string{"n2"}
		}, standby(new(int64(0))), Death{}, Detachment{Clean: true}, nil},
		// The answer may come from another machine of the same name, or from a host that has lost
		// the disk under a device that it still has. Until 0.1 it counted as proof that the device
		// is gone.
		{"replica lost", held, absent, Death{}, Detachment{Fence: true}, nil},
		{"replica lost, on a node given up", held, absent, dead, Detachment{Fence: true}, nil},
		{"replica lost while drained", func(s *v1alpha1.CacheVolumeStatus) { held(s); s.Authority = v1alpha1.AuthorityCeph }, absent, Death{},
			Detachment{Fence: true}, nil},
		{"never laid", func(s *v1alpha1.CacheVolumeStatus) { s.AttachedNode = "n1" },
			absent, Death{}, Detachment{Fence: true}, nil},
		{"still connected", held, holding(escache.StateConnected), Death{}, Detachment{}, ErrRefused},
		{"still flushing", held, holding(escache.StateFlushing), Death{}, Detachment{}, ErrRefused},
		{"in error with its device", held, holding(escache.StateError), Death{}, Detachment{}, ErrRefused},
		{"standby that is still primary", held, holding(escache.StateStandby), Death{}, Detachment{}, ErrRefused},
		{"still being connected", held, connecting(), Death{}, Detachment{}, ErrRefused},
		{"being connected on a node given up", held, connecting(), dead, Detachment{Fence: true, MayCome: true}, nil},
		{"connected on a node given up", held, holding(escache.StateConnected), dead, Detachment{Fence: true, MayCome: true}, nil},
		{"silent on a node that lives", held, silent, Death{}, Detachment{}, ErrUnreachable},
		{"silent on a node given up", held, silent, dead, Detachment{Fence: true, MayCome: true}, nil},
		{"another machine answers", func(s *v1alpha1.CacheVolumeStatus) { held(s); s.SetHostID("n1", "its own") },
			standby(new(int64(0))), Death{}, Detachment{Fence: true, MayCome: true}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := volume(tc.status)
			got, err := Detach(v, "n1", tc.holder.heard(v, "n1"), tc.death)
			if !errors.Is(err, tc.err) || (tc.err == nil) != (err == nil) {
				t.Fatalf("got %v", err)
			}
			if got.Fence != (got.Reason != "") {
				t.Errorf("a fence without a reason: %+v", got)
			}
			if got.Reason = ""; got != tc.want {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
		})
	}
}

func TestSettled(t *testing.T) {
	silent := answer{Err: errors.New("no route")}
	old := func(s *v1alpha1.CacheVolumeStatus) { inCache(s); s.Outdated = []string{"n2"} }
	for _, tc := range []struct {
		name    string
		status  func(*v1alpha1.CacheVolumeStatus)
		reports map[string]answer
		want    bool
	}{
		{"both clean", inCache, map[string]answer{"n1": standby(new(int64(0))), "n2": standby(new(int64(0)))}, true},
		{"one clean, the other cannot tell", inCache, map[string]answer{"n1": standby(new(int64(0))), "n2": standby(nil)}, true},
		{"nobody can tell", inCache, map[string]answer{"n1": standby(nil), "n2": standby(nil)}, false},
		{"dirty", inCache, map[string]answer{"n1": standby(new(int64(1))), "n2": standby(new(int64(1)))}, false},
		{"one silent", inCache, map[string]answer{"n1": standby(new(int64(0))), "n2": silent}, false},
		{"one has no replica any more", inCache,
			map[string]answer{"n1": standby(new(int64(0))), "n2": {Status: escache.VolumeStatus{State: escache.StateAbsent}}}, false},
		{"the outdated one has no replica any more", old,
			map[string]answer{"n1": standby(new(int64(0))), "n2": {Status: escache.VolumeStatus{State: escache.StateAbsent}}}, true},
		{"one not asked", inCache, map[string]answer{"n1": standby(new(int64(0)))}, false},
		{"the silent one is outdated", old, map[string]answer{"n1": standby(new(int64(0))), "n2": silent}, true},
		{"the outdated one still has the device", old, map[string]answer{"n1": standby(new(int64(0))), "n2": holding(escache.StateConnected)}, false},
		{"only the outdated one is clean", old, map[string]answer{"n1": standby(new(int64(1))), "n2": standby(new(int64(0)))}, false},
		{"one still has the device", inCache, map[string]answer{"n1": standby(new(int64(0))), "n2": holding(escache.StateConnected)}, false},
		{"one is being connected", inCache, map[string]answer{"n1": standby(new(int64(0))), "n2": connecting()}, false},
		{"the outdated one is silent, and writes through the link: its own disk has failed", old,
			map[string]answer{"n1": under("n2"), "n2": silent}, false},
		{"the other is a standby too, but of another's word Primary", inCache,
			map[string]answer{"n1": under("n2"), "n2": standby(new(int64(0)))}, false},
		{"attached", func(s *v1alpha1.CacheVolumeStatus) { inCache(s); s.AttachedNode = "n1" },
			map[string]answer{"n1": standby(new(int64(0))), "n2": standby(new(int64(0)))}, false},
		{"in Ceph already", func(*v1alpha1.CacheVolumeStatus) {}, nil, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := volume(tc.status)
			if got := Settled(v, heardOf(v, tc.reports)); got != tc.want {
				t.Errorf("got %v", got)
			}
		})
	}
}

func TestClientsToFence(t *testing.T) {
	v := volume(func(s *v1alpha1.CacheVolumeStatus) {
		s.ClientAddress = "a"
		s.Fenced = []v1alpha1.FencedClient{{Address: "old"}}
	})
	if got := Clients(v, []string{"b", "a", "old"}); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("got %v", got)
	}
	if got := Clients(volume(func(*v1alpha1.CacheVolumeStatus) {}), nil); len(got) != 0 {
		t.Errorf("nobody has it, and %v is fenced", got)
	}
}

func TestConfirmed(t *testing.T) {
	takeOver := Attachment{TakeOver: true, Epoch: 8}
	silent, later := answer{Err: errors.New("no route")}, standby(nil)
	later.Status.Epoch = 8
	absent := answer{Status: escache.VolumeStatus{State: escache.StateAbsent}}
	alone := func(s *v1alpha1.CacheVolumeStatus) { inCache(s); s.Outdated = []string{"n2"} }
	for _, tc := range []struct {
		name   string
		status func(*v1alpha1.CacheVolumeStatus)
		plan   Attachment
		own    answer
		other  answer
		want   Attachment
		err    error
	}{
		{"it has it", inCache, takeOver, standby(nil), silent, takeOver, nil},
		{"silent", inCache, takeOver, silent, standby(nil), Attachment{}, ErrUnreachable},
		{"lost, and the other is current", inCache, takeOver, absent, standby(nil), Attachment{FlushFirst: []string{"n2"}}, nil},
		{"lost, and nobody else has it", alone, takeOver, absent, standby(nil), Attachment{}, ErrRefused},
		{"the truth is in Ceph", func(*v1alpha1.CacheVolumeStatus) {}, Attachment{Epoch: 8}, absent, absent, Attachment{Epoch: 8}, nil},
		{"the record was set back", inCache, takeOver, later, standby(nil), Attachment{}, ErrRecordBehind},
		{"the record was set back, the other host says", inCache, takeOver, standby(nil), later, Attachment{}, ErrRecordBehind},
		{"the record was set back to where the truth was in Ceph", func(*v1alpha1.CacheVolumeStatus) {}, Attachment{Epoch: 8},
			absent, later, Attachment{}, ErrRecordBehind},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := volume(tc.status)
			got, err := Confirmed(v, "n1", tc.plan, map[string]Report{"n1": tc.own.heard(v, "n1"), "n2": tc.other.heard(v, "n2")})
			if !errors.Is(err, tc.err) || (tc.err == nil) != (err == nil) {
				t.Fatalf("got %v", err)
			}
			if !reflect.DeepEqual(got, tc.want) {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
		})
	}
}
