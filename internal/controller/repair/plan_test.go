package repair

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/internal/redundancy"
)

var now = time.Unix(1_800_000_000, 0)

// volume is attached to n1, and its partner n2 is lost.
func volume(change func(*v1alpha1.CacheVolume)) *v1alpha1.CacheVolume {
	v := &v1alpha1.CacheVolume{Spec: v1alpha1.CacheVolumeSpec{Group: "g", Replicas: []string{"n1", "n2"}}}
	v.Name = "v"
	v.Status = v1alpha1.CacheVolumeStatus{AttachedNode: "n1", Epoch: 7, Authority: v1alpha1.AuthorityCache, Outdated: []string{"n2"}}
	change(v)
	return v
}

func begun(v *v1alpha1.CacheVolume) {
	v.Status.Repair = &v1alpha1.ReplicaRepair{Epoch: 7, Lost: "n2", Since: metav1.NewTime(now.Add(-time.Minute))}
}

func clean(v *v1alpha1.CacheVolume) {
	begun(v)
	v.Status.Authority = v1alpha1.AuthorityCeph
	v.Status.WriteThrough = []v1alpha1.WriteThroughClaim{{Owner: Owner, Epoch: 7}}
}

func replaced(v *v1alpha1.CacheVolume) {
	clean(v)
	v.Spec.Replicas, v.Status.Outdated = []string{"n1", "n3"}, []string{"n2", "n3"}
	v.Status.Repair.Substitute = "n3"
}

var group = &v1alpha1.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: "g"}, Spec: v1alpha1.NodeGroupSpec{Nodes: []string{"n1", "n2", "n3"}}}

// Gone are hosts that have not answered for long.
type Gone map[string]time.Time

// seenOf is what is seen where these hosts are gone, and the others answer.
func seenOf(v *v1alpha1.CacheVolume, gone Gone, e redundancy.Evidence) Seen {
	e.Asked = true
	e.Silent = gone[redundancy.Lost(v)]
	seen := Seen{Finding: redundancy.Of(v, group, e)}
	if since, is := gone[authority.Partner(v, v.Status.AttachedNode)]; is {
		seen.Silent = redundancy.NotSeen("n2", since)
	}
	return seen
}

func TestJudge(t *testing.T) {
	gone := Gone{"n2": now.Add(-time.Hour)}
	for _, tc := range []struct {
		name   string
		change func(*v1alpha1.CacheVolume)
		gone   Gone
		policy func(*Policy)
		want   Action
		lost   string
		says   string
	}{
		{"all is well", func(v *v1alpha1.CacheVolume) { v.Status.Outdated = nil }, nil, nil, Nothing, "", ""},
		{"the partner is lost, and not for long", func(*v1alpha1.CacheVolume) {}, nil, nil, Nothing, "", ""},
		{"the partner is gone", func(*v1alpha1.CacheVolume) {}, gone, nil, Begin, "n2", "node n2 has not answered since"},
		{"the partner is gone and the holder is second", func(v *v1alpha1.CacheVolume) {
			v.Spec.Replicas = []string{"n2", "n1"}
		}, gone, nil, Begin, "n2", ""},
		{"the holder has not noticed, or is frozen", func(v *v1alpha1.CacheVolume) { v.Status.Outdated = nil }, gone, nil, Wait, "n2", "frozen"},
		{"the node without a replica is gone", func(v *v1alpha1.CacheVolume) { v.Status.Outdated = nil }, Gone{"n3": now}, nil, Nothing, "", ""},
		{"the holder is gone", func(*v1alpha1.CacheVolume) {}, Gone{"n1": now}, nil, Nothing, "", ""},
		{"the holder's own copy is old", func(v *v1alpha1.CacheVolume) { v.Status.Outdated = []string{"n1", "n2"} }, gone, nil, Nothing, "", ""},
		{"both copies are old, and the partner is first", func(v *v1alpha1.CacheVolume) {
			v.Spec.Replicas, v.Status.Outdated = []string{"n2", "n1"}, []string{"n1", "n2"}
		}, gone, nil, Nothing, "", ""},
		{"a node without a copy has it", func(v *v1alpha1.CacheVolume) {
			v.Spec.Replicas, v.Status.AttachedNode = []string{"n2", "n1"}, "n3"
		}, gone, nil, Nothing, "", ""},
		{"detached", func(v *v1alpha1.CacheVolume) { v.Status.AttachedNode = "" }, gone, nil, Nothing, "", ""},
		{"being attached", func(v *v1alpha1.CacheVolume) { v.Status.Authority = v1alpha1.AuthorityCeph }, gone, nil, Nothing, "", ""},
		{"drained by somebody", func(v *v1alpha1.CacheVolume) {
			v.Status.Authority = v1alpha1.AuthorityCeph
			v.Status.WriteThrough = []v1alpha1.WriteThroughClaim{{Owner: "cacheflush/x", Epoch: 7}}
		}, gone, nil, Begin, "n2", ""},
		{"being deleted", func(v *v1alpha1.CacheVolume) { v.DeletionTimestamp = new(metav1.NewTime(now)) }, gone, nil, Nothing, "", ""},

		{"begun", begun, gone, nil, Drain, "n2", ""},
		{"begun, and no drain is wanted", begun, gone, func(p *Policy) { p.Drain = false }, Substitute, "n2", ""},
		{"begun, and Ceph takes too long", begun, gone, func(p *Policy) { p.Patience = time.Second }, Substitute, "n2", ""},
		{"drained", clean, gone, nil, Substitute, "n2", ""},
		{"the lost host is back before it was replaced", clean, nil, nil, Wait, "n2", "is back"},
		{"the lost host is back and current", func(v *v1alpha1.CacheVolume) { clean(v); v.Status.Outdated = nil }, nil, nil, Finish, "n2", ""},
		{"recorded, but the replica not yet moved", func(v *v1alpha1.CacheVolume) {
			clean(v)
			v.Status.Repair.Substitute, v.Status.Outdated = "n3", []string{"n2", "n3"}
		}, gone, nil, Substitute, "n2", ""},

		{"replaced", replaced, gone, nil, Copy, "n3", ""},
		{"replaced, and the lost host is back", replaced, nil, nil, Copy, "n3", ""},
		{"the substitute is gone, too", replaced, Gone{"n3": now}, nil, Begin, "n3", ""},
		{"copied", func(v *v1alpha1.CacheVolume) { replaced(v); v.Status.Outdated = nil }, gone, nil, Finish, "n3", ""},
		{"its claim is left", func(v *v1alpha1.CacheVolume) {
			clean(v)
			v.Status.Repair, v.Status.Outdated = nil, nil
		}, nil, nil, Finish, "n2", ""},
		{"its claim is left, and a copy is old", func(v *v1alpha1.CacheVolume) { clean(v); v.Status.Repair = nil }, nil, nil, Nothing, "", ""},

		{"detached meanwhile", func(v *v1alpha1.CacheVolume) { replaced(v); v.Status.AttachedNode = "" }, gone, nil, End, "n2", ""},
		{"attached anew", func(v *v1alpha1.CacheVolume) { replaced(v); v.Status.Epoch = 8 }, gone, nil, End, "n2", ""},
		{"taken over by the substitute", func(v *v1alpha1.CacheVolume) { replaced(v); v.Status.AttachedNode, v.Status.Epoch = "n3", 8 }, gone, nil, End, "n2", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			policy := Policy{After: time.Minute, Drain: true, Patience: time.Hour, Parallel: 2}
			if tc.policy != nil {
				tc.policy(&policy)
			}
			v := volume(tc.change)
			got := Judge(v, seenOf(v, tc.gone, redundancy.Evidence{}), policy, now)
			if got.Action != tc.want || got.Lost != tc.lost || !strings.Contains(got.Reason, tc.says) || got.Place != volumes.ElsewhereIfAway {
				t.Errorf("got %+v, want %q of %q", got, tc.want, tc.lost)
			}
			if got.Action != Nothing && got.Reason == "" {
				t.Error("no reason is told")
			}
		})
	}
}

// The holder's own disk has failed: no other copy can be made of the one that it lives from.
func TestTheCopyThatTheHolderLivesFromDoesNotLeaveItsHost(t *testing.T) {
	for _, change := range []func(*v1alpha1.CacheVolume){func(*v1alpha1.CacheVolume) {}, clean} {
		v := volume(change)
		v.Status.Outdated = []string{"n1"}
		v.Status.WriteThrough = []v1alpha1.WriteThroughClaim{{Owner: "cacheflush/e", Epoch: 7}}
		for _, policy := range []Policy{{After: time.Minute, Drain: true, Patience: time.Second}, {}} {
			seen := seenOf(v, Gone{}, redundancy.Evidence{})
			seen.Moves = "e"
			if got := Judge(v, seen, policy, now); got.Place == volumes.Moved || got.Action == Substitute {
				t.Errorf("with %+v got %+v", policy, got)
			}
		}
	}
}

func TestJudgeOfACopyThatIsToLeaveItsHost(t *testing.T) {
	counts := func(v *v1alpha1.CacheVolume) {
		v.Status.Outdated = nil
		v.Status.WriteThrough = []v1alpha1.WriteThroughClaim{{Owner: "cacheflush/e", Epoch: 7}}
	}
	drained := func(v *v1alpha1.CacheVolume) { counts(v); v.Status.Authority = v1alpha1.AuthorityCeph }
	kept := func(v *v1alpha1.CacheVolume) { clean(v); v.Status.Outdated = nil }
	moved := func(v *v1alpha1.CacheVolume) { replaced(v); v.Spec.Replicas = []string{"n1", "n3"} }
	with := func(changes ...func(*v1alpha1.CacheVolume)) func(*v1alpha1.CacheVolume) {
		return func(v *v1alpha1.CacheVolume) {
			for _, change := range changes {
				change(v)
			}
		}
	}
	asked := Seen{Moves: "e"}
	for _, tc := range []struct {
		name   string
		change func(*v1alpha1.CacheVolume)
		seen   Seen
		lost   bool
		want   Action
		place  volumes.Place
	}{
		{"nobody wants that", drained, Seen{}, false, Nothing, volumes.ElsewhereIfAway},
		{"asked", drained, asked, false, Begin, volumes.Moved},
		{"asked, and it is dirty", counts, asked, false, Begin, volumes.Moved},
		{"asked, and there is no place", drained, Seen{Moves: "e", NoPlace: "full"}, false, Stay, volumes.Moved},
		{"asked, and paused", drained, Seen{Moves: "e", Paused: "many are away"}, false, Wait, volumes.Moved},
		{"the attachment has begun and not ended", with(drained, func(v *v1alpha1.CacheVolume) { v.Status.WriteThrough = nil }), asked, false, Nothing, volumes.ElsewhereIfAway},
		{"detached", with(drained, func(v *v1alpha1.CacheVolume) { v.Status.AttachedNode = "" }), asked, false, Nothing, volumes.ElsewhereIfAway},

		{"begun, and dirty", with(begun, counts), asked, false, Drain, volumes.Moved},
		{"begun, in Ceph, and only the evacuation keeps it there", with(begun, drained), asked, false, Drain, volumes.Moved},
		{"begun, and in Ceph", kept, asked, false, Substitute, volumes.Moved},
		{"begun, and the copy catches up", with(kept, func(v *v1alpha1.CacheVolume) { v.Status.Outdated = []string{"n2"} }), asked, false, Substitute, volumes.Moved},
		{"begun, and paused", kept, Seen{Moves: "e", Paused: "many are away"}, false, Wait, volumes.Moved},
		{"begun, paused, and a repair is asked for", kept, Seen{Moves: "e", Paused: "many are away", Asked: true}, false, Substitute, volumes.Moved},
		{"begun, and called off", kept, Seen{}, false, Finish, volumes.ElsewhereIfAway},
		{"begun, and there is no place any more", kept, Seen{Moves: "e", NoPlace: "full"}, false, Finish, volumes.Moved},
		{"begun, and the copy is lost", clean, asked, true, Substitute, volumes.ElsewhereIfAway},

		{"replaced", moved, Seen{}, false, Copy, volumes.ElsewhereIfAway},
		{"replaced, and that one is to leave its host, too", moved, asked, false, Copy, volumes.ElsewhereIfAway},
		{"copied", with(moved, func(v *v1alpha1.CacheVolume) { v.Status.Outdated = nil }), asked, false, Finish, volumes.ElsewhereIfAway},
		{"attached anew", with(kept, func(v *v1alpha1.CacheVolume) { v.Status.Epoch = 8 }), asked, false, End, volumes.ElsewhereIfAway},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := volume(tc.change)
			gone := Gone{}
			if tc.lost {
				gone["n2"] = now.Add(-time.Hour)
			}
			seen := seenOf(v, gone, redundancy.Evidence{})
			seen.Moves, seen.NoPlace, seen.Paused, seen.Asked = tc.seen.Moves, tc.seen.NoPlace, tc.seen.Paused, tc.seen.Asked
			// Neither a setting nor patience may have it moved before everything is in Ceph.
			for _, policy := range []Policy{{After: time.Minute, Drain: true, Patience: time.Second}, {}} {
				if tc.lost && policy.After == 0 {
					continue
				}
				got := Judge(v, seen, policy, now)
				if got.Action != tc.want || got.Action != End && got.Place != tc.place {
					t.Errorf("with %+v got %+v", policy, got)
				}
				if got.Action != Nothing && got.Reason == "" {
					t.Error("no reason is told")
				}
			}
		})
	}
}

// What is lost otherwise than by a silent host: which way the repair goes, and where the copy may be laid.
func TestJudgeOfOtherLosses(t *testing.T) {
	disk := redundancy.Evidence{Loss: authority.DiskLost}
	empty := redundancy.Evidence{Loss: authority.OtherMachine}
	onPeer := func(v *v1alpha1.CacheVolume) { v.Status.Outdated = []string{"n1"} }
	begunFor := func(lost string, change func(*v1alpha1.CacheVolume)) func(*v1alpha1.CacheVolume) {
		return func(v *v1alpha1.CacheVolume) { change(v); begun(v); v.Status.Repair.Lost = lost }
	}
	inCeph := func(v *v1alpha1.CacheVolume) { onPeer(v); clean(v); v.Status.Repair.Lost = "n1" }
	renewed := func(v *v1alpha1.CacheVolume) { clean(v); v.Status.Repair.Substitute = "n2" }
	left := func(v *v1alpha1.CacheVolume) { v.Spec.Replicas[1], v.Status.Outdated = "n9", []string{"n9"} }
	asked, paused := func(s *Seen) { s.Asked = true }, func(s *Seen) { s.Paused = "two hosts are away" }
	off := func(p *Policy) { p.After = 0 }
	for _, tc := range []struct {
		name   string
		change func(*v1alpha1.CacheVolume)
		e      redundancy.Evidence
		seen   func(*Seen)
		policy func(*Policy)
		want   Action
		lost   string
		place  volumes.Place
	}{
		{"the partner's disk", func(*v1alpha1.CacheVolume) {}, disk, nil, nil, Begin, "n2", volumes.Elsewhere},
		{"the partner's disk, drained", clean, disk, nil, nil, Substitute, "n2", volumes.Elsewhere},
		{"the partner's disk, and the record does not say so yet", func(v *v1alpha1.CacheVolume) { v.Status.Outdated = nil }, disk, nil, nil, Nothing, "", 0},
		{"only the record speaks of the disk", func(v *v1alpha1.CacheVolume) {
			v.Status.Conditions = []metav1.Condition{{
				Type: v1alpha1.ConditionRedundant, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonPeerDiskLost, Message: "m",
			}}
		}, redundancy.Evidence{}, nil, nil, Nothing, "", 0},
		{"the partner came back empty", clean, empty, nil, nil, Substitute, "n2", volumes.Same},
		{"its copy is being laid anew", renewed, empty, nil, nil, Copy, "n2", volumes.Same},
		{"its new copy's disk fails", renewed, disk, nil, nil, Begin, "n2", volumes.Elsewhere},
		{"the replica is gone", clean, redundancy.Evidence{Loss: authority.ReplicaGone}, nil, nil, Substitute, "n2", volumes.Same},
		{"no link for long", clean, redundancy.Evidence{Away: true}, nil, nil, Substitute, "n2", volumes.Elsewhere},
		{"the partner has left the group", left, redundancy.Evidence{}, nil, nil, Begin, "n9", volumes.Elsewhere},
		{"it has left, and is current", func(v *v1alpha1.CacheVolume) { left(v); v.Status.Outdated = nil }, redundancy.Evidence{}, nil, nil, Nothing, "", 0},
		{"the substitute's disk", replaced, disk, nil, nil, Begin, "n3", volumes.Elsewhere},
		{"the substitute's link stays down", replaced, redundancy.Evidence{Away: true}, nil, nil, Begin, "n3", volumes.Elsewhere},
		{"the substitute has nothing yet", replaced, redundancy.Evidence{Loss: authority.ReplicaGone}, nil, nil, Copy, "n3", volumes.Same},

		{"the holder's disk", onPeer, redundancy.Evidence{}, nil, nil, Begin, "n1", 0},
		{"the holder's disk, being drained", begunFor("n1", onPeer), redundancy.Evidence{}, nil, nil, Drain, "n1", 0},
		{"the holder's disk, and Ceph is slow", begunFor("n1", onPeer), redundancy.Evidence{}, nil, func(p *Policy) { p.Patience = time.Second }, Drain, "n1", 0},
		{"the holder's disk, drained", inCeph, redundancy.Evidence{}, nil, nil, Wait, "n1", 0},
		{"the holder's disk, and no drain is wanted", begunFor("n1", onPeer), redundancy.Evidence{}, nil, func(p *Policy) { p.Drain = false }, Wait, "n1", 0},
		{"the holder's disk, while the partner's copy was being replaced", begunFor("n2", onPeer), redundancy.Evidence{}, nil, nil, Begin, "n1", 0},
		{"the holder's disk is back", func(v *v1alpha1.CacheVolume) { inCeph(v); v.Status.Outdated = nil }, redundancy.Evidence{}, nil, nil, Finish, "n2", 0},

		{"the holder's disk, and its copy was to go elsewhere", func(v *v1alpha1.CacheVolume) {
			inCeph(v)
			v.Status.Repair.Substitute = "n3"
		}, redundancy.Evidence{}, nil, nil, Begin, "n1", 0},
		{"the holder's disk is back, and the partner's is lost", func(v *v1alpha1.CacheVolume) {
			inCeph(v)
			v.Status.Outdated = []string{"n2"}
		}, disk, nil, nil, Begin, "n2", volumes.Elsewhere},
		{"what was seen is of a copy that has been replaced since", func(*v1alpha1.CacheVolume) {}, disk, func(s *Seen) { s.Lost = "n9" }, nil, Nothing, "", 0},
		{"a silent host whose copy is on record as outdated", func(*v1alpha1.CacheVolume) {}, redundancy.Evidence{}, func(s *Seen) {
			s.Silent = "node n2 has not answered"
		}, nil, Nothing, "", 0},

		{"off", clean, disk, nil, off, Wait, "n2", volumes.Elsewhere},
		{"off, and nothing begun", func(*v1alpha1.CacheVolume) {}, disk, nil, off, Nothing, "", 0},
		{"off, and asked for", func(*v1alpha1.CacheVolume) {}, disk, asked, off, Begin, "n2", volumes.Elsewhere},
		{"paused, it still begins and drains", func(*v1alpha1.CacheVolume) {}, disk, paused, nil, Begin, "n2", volumes.Elsewhere},
		{"paused, and drained", clean, disk, paused, nil, Wait, "n2", volumes.Elsewhere},
		{"paused, and asked for", clean, disk, func(s *Seen) { asked(s); paused(s) }, nil, Substitute, "n2", volumes.Elsewhere},
		{"paused, what has begun goes on", replaced, redundancy.Evidence{}, paused, nil, Copy, "n3", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			policy := Policy{After: time.Minute, Drain: true, Patience: time.Hour, Parallel: 2}
			if tc.policy != nil {
				tc.policy(&policy)
			}
			v := volume(tc.change)
			seen := seenOf(v, nil, tc.e)
			if tc.seen != nil {
				tc.seen(&seen)
			}
			got := Judge(v, seen, policy, now)
			if got.Action != tc.want || got.Lost != tc.lost || got.Place != tc.place && (got.Action == Begin || got.Action == Substitute) {
				t.Errorf("got %+v, want %q of %q", got, tc.want, tc.lost)
			}
			if got.Action != Nothing && got.Reason == "" {
				t.Error("no reason is told")
			}
		})
	}
}

// No pod has these volumes, and they are dirty.
func TestJudgeOfAVolumeWithoutAPod(t *testing.T) {
	left := func(v *v1alpha1.CacheVolume) { v.Status.Phase, v.Status.AttachedNode = v1alpha1.VolumeReady, "" }
	whole := func(v *v1alpha1.CacheVolume) { left(v); v.Status.Outdated = nil }
	flushing := func(v *v1alpha1.CacheVolume) {
		whole(v)
		v.Status.AttachedNode, v.Status.FlushEpoch = "n1", v.Status.Epoch
	}
	but := func(change func(*v1alpha1.CacheVolume), more func(*v1alpha1.CacheVolume)) func(*v1alpha1.CacheVolume) {
		return func(v *v1alpha1.CacheVolume) { change(v); more(v) }
	}
	asked := redundancy.Evidence{Asked: true}
	of := func(e redundancy.Evidence) redundancy.Evidence { e.Asked, e.Node = true, "n2"; return e }
	long, late := of(redundancy.Evidence{Silent: now.Add(-time.Hour)}), of(redundancy.Evidence{Silent: now, Lately: true})
	off := func(p *Policy) { p.After = 0 }
	wants, paused := func(s *Seen) { s.Asked = true }, func(s *Seen) { s.Paused = "two hosts are away" }
	stuck := func(s *Seen) { s.Stuck = "nobody answers" }
	for _, tc := range []struct {
		name   string
		change func(*v1alpha1.CacheVolume)
		e      redundancy.Evidence
		seen   func(*Seen)
		policy func(*Policy)
		want   Action
		says   string
	}{
		{"both copies are there", whole, asked, nil, nil, Nothing, ""},
		{"one is old", left, asked, nil, nil, Flush, "nobody fills it"},
		{"a host is silent", whole, long, nil, nil, Flush, "node n2 has not answered since"},
		{"a host is silent, and not for long", whole, late, nil, nil, Nothing, ""},
		{"a disk has failed", whole, of(redundancy.Evidence{Loss: authority.DiskLost}), nil, nil, Flush, "the disk of the copy on n2"},
		{"a host came back empty", whole, of(redundancy.Evidence{Loss: authority.OtherMachine}), nil, nil, Flush, "other disks"},
		{"nobody can do it", left, asked, stuck, nil, Wait, "nobody answers"},
		{"no copy is current", but(left, func(v *v1alpha1.CacheVolume) { v.Status.Outdated = []string{"n1", "n2"} }), asked, nil, nil, Nothing, ""},
		{"all is in Ceph", but(left, func(v *v1alpha1.CacheVolume) { v.Status.Authority = v1alpha1.AuthorityCeph }), asked, nil, nil, Nothing, ""},
		{"it is being written back", flushing, asked, nil, nil, Flush, "node n1 writes it back"},
		{"it is, and its host is silent: that is how it is taken from there", flushing, long, stuck, nil, Flush, "node n1 writes it back"},
		{"a repair is on record", but(left, begun), asked, nil, nil, End, "the attachment it was for is over"},
		{"a repair is on record, and it is being written back", but(flushing, begun), asked, nil, nil, End, "the attachment it was for is over"},

		{"off", left, asked, nil, off, Nothing, ""},
		{"off, and begun", flushing, asked, nil, off, Flush, "node n1 writes it back"},
		{"off, and asked for", left, asked, wants, off, Flush, ""},
		{"asked for, and both copies are there", whole, asked, wants, nil, Nothing, ""},
		{"a pause holds up what replaces a copy, and this does not", left, asked, paused, nil, Flush, ""},
		{"drains are off, and this slows nobody down", left, asked, nil, func(p *Policy) { p.Drain = false }, Flush, ""},

		{"being made", but(left, func(v *v1alpha1.CacheVolume) { v.Status.Phase = "" }), asked, nil, nil, Nothing, ""},
		{"nobody knows which copy counts", but(left, func(v *v1alpha1.CacheVolume) { v.Status.Phase = v1alpha1.VolumeConflict }), asked, nil, nil, Nothing, ""},
		{"being deleted", but(left, func(v *v1alpha1.CacheVolume) { v.DeletionTimestamp = new(metav1.NewTime(now)) }), asked, nil, nil, Nothing, ""},
		{"being released", but(left, func(v *v1alpha1.CacheVolume) { v.Spec.Release = true }), asked, nil, nil, Nothing, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			policy := Policy{After: time.Minute, Drain: true, Patience: time.Hour, Parallel: 2}
			if tc.policy != nil {
				tc.policy(&policy)
			}
			v := volume(tc.change)
			seen := Seen{Finding: redundancy.Of(v, group, tc.e)}
			if tc.seen != nil {
				tc.seen(&seen)
			}
			got := Judge(v, seen, policy, now)
			if got.Action != tc.want || !strings.Contains(got.Reason, tc.says) || (got.Reason == "") != (tc.want == Nothing) {
				t.Errorf("got %+v, want %q", got, tc.want)
			}
		})
	}
}

func TestAdmitFlushes(t *testing.T) {
	for _, tc := range []struct {
		name          string
		begun, others []string
		parallel      int
		waits         []string
	}{
		{"none", nil, nil, 2, nil},
		{"as many as may", nil, []string{"a", "b", "c"}, 2, []string{"c"}},
		{"what has begun goes on", []string{"x"}, []string{"a", "b"}, 2, []string{"b"}},
		{"however many have begun, one more may", []string{"x", "y", "z"}, []string{"a", "b"}, 2, []string{"b"}},
		{"there is room for all", []string{"x"}, []string{"a", "b"}, 4, nil},
	} {
		if got := slices.Sorted(maps.Keys(AdmitFlushes(tc.begun, tc.others, tc.parallel))); !slices.Equal(got, tc.waits) {
			t.Errorf("%s: %q wait, want %q", tc.name, got, tc.waits)
		}
	}
}

func TestPause(t *testing.T) {
	for _, tc := range []struct {
		members, away int
		want          bool
	}{{3, 1, false}, {3, 2, true}, {3, 3, true}, {6, 1, false}, {6, 2, true}, {7, 2, false}, {7, 3, true}, {16, 5, false}, {16, 6, true}} {
		names := make([]string, tc.members)
		if got := Pause("g", names, names[:tc.away]); (got != "") != tc.want {
			t.Errorf("%d of %d are away: %q", tc.away, tc.members, got)
		}
	}
}

func TestAdmit(t *testing.T) {
	c := func(name, holder string, able ...string) Candidate {
		return Candidate{Name: name, Holder: holder, Able: able}
	}
	begun := func(c Candidate) Candidate {
		c.Copying = true
		return c
	}
	for _, tc := range []struct {
		name       string
		candidates []Candidate
		parallel   int
		want       map[string]string
		waits      string // what one of the others is told
	}{
		{"one", []Candidate{c("a", "n1", "n3")}, 2, map[string]string{"a": "n3"}, ""},
		{"one at a time on a holder", []Candidate{c("a", "n1", "n3", "n4"), c("b", "n1", "n3", "n4")}, 2, map[string]string{"a": "n3"},
			"node n1 is copying volume a"},
		{"one at a time on a substitute", []Candidate{c("a", "n1", "n3"), c("b", "n2", "n3")}, 2, map[string]string{"a": "n3"},
			"node n3 is copying volume a"},
		{"a substitute of one is no holder of another", []Candidate{c("a", "n1", "n3"), c("b", "n3", "n1")}, 2, map[string]string{"a": "n3"},
			"node n3 is copying volume a"},
		{"the best that is idle", []Candidate{c("a", "n1", "n3", "n4"), c("b", "n2", "n3", "n1", "n4", "n5")}, 2,
			map[string]string{"a": "n3", "b": "n4"}, ""},
		{"none that is able is idle", []Candidate{c("a", "n1", "n3"), c("b", "n2", "n4"), c("c", "n5", "n4", "n3")}, 3,
			map[string]string{"a": "n3", "b": "n4"}, "node n4 is copying volume b, node n3 is copying volume a"},
		{"two groups", []Candidate{c("a", "n1", "n3"), c("b", "m1", "m3"), c("c", "k1", "k3")}, 2, map[string]string{"a": "n3", "b": "m3"},
			"2 volumes are copied already"},
		{"what has begun goes on", []Candidate{c("a", "n1", "n3"), begun(c("b", "n1", "n3"))}, 1, map[string]string{"b": "n3"},
			"1 volumes are copied already"},
		{"what has begun goes on, however many", []Candidate{begun(c("a", "n1", "n3")), begun(c("b", "n1", "n3"))}, 1,
			map[string]string{"a": "n3", "b": "n3"}, ""},
		{"what has begun keeps its host from others", []Candidate{c("a", "n1", "n3", "n4"), begun(c("b", "n2", "n3"))}, 2,
			map[string]string{"a": "n4", "b": "n3"}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			admitted, waiting := Admit(tc.candidates, tc.parallel)
			if !maps.Equal(admitted, tc.want) {
				t.Errorf("got %v, want %v", admitted, tc.want)
			}
			if len(admitted)+len(waiting) != len(tc.candidates) {
				t.Errorf("%d wait, and nothing is said to some: %v", len(tc.candidates)-len(admitted), waiting)
			}
			if told := slices.Collect(maps.Values(waiting)); tc.waits != "" && !slices.Contains(told, tc.waits) {
				t.Errorf("want %q among %q", tc.waits, told)
			}
		})
	}
}

func TestJudgeOfAHostThatCannotCreateTheCopy(t *testing.T) {
	policy := Policy{After: time.Minute, Drain: true, Patience: time.Hour, Parallel: 2}
	for _, tc := range []struct {
		name   string
		change func(*v1alpha1.CacheVolume)
		seen   func(*Seen)
		want   Action
	}{
		{"another can take it", replaced, func(*Seen) {}, Substitute},
		{"repair is paused", replaced, func(s *Seen) { s.Paused = "a rack is away" }, Copy},
		{"repair is paused, and somebody asks", replaced, func(s *Seen) { s.Paused, s.Asked = "a rack is away", true }, Substitute},
		{"the copy is current after all", func(v *v1alpha1.CacheVolume) { replaced(v); v.Status.Outdated = nil }, func(*Seen) {}, Finish},
	} {
		v := volume(tc.change)
		seen := seenOf(v, nil, redundancy.Evidence{})
		seen.Instead = "n3 cannot"
		tc.seen(&seen)
		got := Judge(v, seen, policy, now)
		if got.Action != tc.want || got.Lost != "n3" || tc.want == Substitute && (got.Place != volumes.Elsewhere || got.Reason != seen.Instead) {
			t.Errorf("%s: got %+v, want %s", tc.name, got, tc.want)
		}
	}
}
