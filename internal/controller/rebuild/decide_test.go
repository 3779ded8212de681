package rebuild

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
)

const mib = 1 << 20

var errSilent = errors.New("connection refused")

// pool and image of every test.
var ref = volumes.ImageRef{ClusterID: "new-name", Pool: "rbd", Image: "escache-pvc-1"}

// copyOn is a standby's copy: its epoch, disk, dirty bytes (below zero: not known), and how it sees its peer.
func copyOn(node, peer string, epoch int64, disk escache.DiskState, dirty int64, link escache.LinkState, peerDisk escache.DiskState) Answer {
	s := escache.VolumeStatus{
		VolumeRef: escache.VolumeRef{Pool: ref.Pool, Image: ref.Image}, Node: node, HostID: "disks-of-" + node, ImageID: "abc",
		State: escache.StateStandby, Role: escache.RoleSecondary, Epoch: epoch, CacheBytes: 64 * mib, Port: 7800, Minor: 100, DiskState: disk,
		Peers: []escache.Peer{{Name: peer, ConnectionState: link, DiskState: peerDisk, Role: escache.RoleUnknown}},
	}
	if dirty >= 0 {
		s.DirtyBytes = &dirty
	}
	return Answer{Status: s}
}

func linked(node, peer string, epoch, dirty int64) Answer {
	return copyOn(node, peer, epoch, escache.DiskUpToDate, dirty, escache.LinkConnected, escache.DiskUpToDate)
}

// alone is a copy that does not know what became of its peer.
func alone(node, peer string, epoch int64, disk escache.DiskState) Answer {
	return copyOn(node, peer, epoch, disk, 5*mib, escache.LinkWFConnection, escache.DiskUnknown)
}

func absent(node string) Answer {
	return Answer{Status: escache.VolumeStatus{Node: node, State: escache.StateAbsent, Role: escache.RoleUnknown}}
}

func (a Answer) with(change func(*escache.VolumeStatus)) Answer {
	change(&a.Status)
	return a
}

// evidence is that of a volume that was attached to n1 in epoch 4, with clean, equal copies on n1 and n2.
func evidence(change func(*Evidence)) Evidence {
	e := Evidence{
		Image: ref, Own: "us", Group: []string{"n1", "n2", "n3"},
		Hosts: map[string]Answer{"n1": linked("n1", "n2", 4, 0), "n2": linked("n2", "n1", 4, 0), "n3": absent("n3")},
		Remains: volumes.Remains{ID: "abc", SizeBytes: 1 << 30, Kubernetes: "us", Volume: "pvc-1", Note: volumes.Note{
			Version: 1, Volume: "pvc-1", Claim: "shop/data", Epoch: 4, Authority: v1alpha1.AuthorityCache, AttachedNode: "n1",
			Spec: v1alpha1.CacheVolumeSpec{
				ClusterID: "old-name", Pool: ref.Pool, Image: ref.Image, SizeBytes: 1 << 29, CacheBytes: 64 * mib, Group: "g",
				Replicas: []string{"n2", "n1"}, Port: 7800, Minor: 100, LinkGeneration: 2,
			},
		}},
	}
	if change != nil {
		change(&e)
	}
	return e
}

// set replaces the answers of these hosts.
func set(answers ...Answer) func(*Evidence) {
	return func(e *Evidence) {
		for _, a := range answers {
			e.Hosts[a.Status.Node] = a
		}
	}
}

func silent(e *Evidence, nodes ...string) {
	for _, node := range nodes {
		e.Hosts[node] = Answer{Err: errSilent}
	}
}

// withoutCache: the volume was attached without a cache last, in epoch 7.
func withoutCache(e *Evidence) {
	n := &e.Remains.Note
	n.Epoch, n.Authority, n.AttachedNode, n.Uncached, n.Outdated = 7, v1alpha1.AuthorityCeph, "n9", true, []string{"n1", "n2"}
}

func created(e *Evidence) {
	n := &e.Remains.Note
	n.Epoch, n.Authority, n.AttachedNode = 0, "", ""
	e.Hosts = map[string]Answer{"n1": absent("n1"), "n2": absent("n2"), "n3": absent("n3")}
}

// TestRecordsThatAreProven has all cases in which a record is made.
func TestRecordsThatAreProven(t *testing.T) {
	type want struct {
		authority v1alpha1.Authority
		epoch     int64
		replicas  string // "" is "n1 n2"
		outdated  string
		remark    string
	}
	const inCeph, inCache = v1alpha1.AuthorityCeph, v1alpha1.AuthorityCache
	for name, tc := range map[string]struct {
		change func(*Evidence)
		want   want
	}{
		"clean on both":                   {nil, want{authority: inCeph, epoch: 5}},
		"dirty on both, equal":            {set(linked("n1", "n2", 4, 5*mib), linked("n2", "n1", 4, 5*mib)), want{authority: inCache, epoch: 5}},
		"how much is dirty nobody knows":  {set(linked("n1", "n2", 4, 0), linked("n2", "n1", 4, -1)), want{authority: inCache, epoch: 5}},
		"a host knows a later attachment": {set(linked("n1", "n2", 6, 0), linked("n2", "n1", 4, 0)), want{authority: inCeph, epoch: 7}},
		"a copy of a former size was left behind": {
			set(alone("n3", "n1", 3, escache.DiskUpToDate).with(func(s *escache.VolumeStatus) { s.CacheBytes = 32 * mib })),
			want{authority: inCeph, epoch: 5, remark: "n3 has an older copy, which is not used and stays"},
		},
		"one goes on without the other": {
			set(copyOn("n1", "n2", 4, escache.DiskUpToDate, mib, escache.LinkWFConnection, escache.DiskOutdated), alone("n2", "n1", 4, escache.DiskConsistent)),
			want{authority: inCache, epoch: 5, outdated: "n2"},
		},
		"taken over by n2, while n1 was away": {
			set(alone("n1", "n2", 4, escache.DiskConsistent), copyOn("n2", "n1", 5, escache.DiskUpToDate, mib, escache.LinkWFConnection, escache.DiskOutdated)),
			want{authority: inCache, epoch: 6, replicas: "n2 n1", outdated: "n1"},
		},
		"the other one has lost its disk": {
			set(copyOn("n1", "n2", 4, escache.DiskUpToDate, 0, escache.LinkWFConnection, escache.DiskOutdated), absent("n2")),
			want{authority: inCache, epoch: 5, outdated: "n2"},
		},
		"the other one calls itself outdated": {
			set(alone("n1", "n2", 4, escache.DiskConsistent), alone("n2", "n1", 4, escache.DiskOutdated)),
			want{authority: inCache, epoch: 5, outdated: "n2"},
		},
		"the other one is being filled": {
			set(copyOn("n1", "n2", 4, escache.DiskUpToDate, mib, escache.LinkSyncSource, escache.DiskInconsistent),
				copyOn("n2", "n1", 4, escache.DiskInconsistent, -1, escache.LinkSyncTarget, escache.DiskUpToDate)),
			want{authority: inCache, epoch: 5, outdated: "n2"},
		},
		"an attachment without a cache made dirty copies old": {
			func(e *Evidence) {
				withoutCache(e)
				set(alone("n1", "n2", 4, escache.DiskConsistent))(e)
				silent(e, "n2")
			},
			want{authority: inCeph, epoch: 8, replicas: "n2 n1", outdated: "n1 n2", remark: "n2 does not answer"},
		},
		"the pair has moved since, and the old one has answered": {
			func(e *Evidence) {
				e.Hosts = map[string]Answer{"n1": linked("n1", "n3", 4, mib), "n3": linked("n3", "n1", 4, mib), "n2": alone("n2", "n1", 3, escache.DiskConsistent)}
			},
			want{authority: inCache, epoch: 5, replicas: "n1 n3", remark: "n2 has an older copy, which is not used and stays"},
		},
		"a host still names its former peer": {
			set(linked("n1", "n2", 4, mib), linked("n2", "n3", 4, mib), linked("n3", "n2", 4, mib)),
			want{authority: inCache, epoch: 5, replicas: "n2 n3", remark: "n1 has an older copy"},
		},
		"never attached": {created, want{authority: inCeph, epoch: 1, replicas: "n2 n1"}},
		"never attached, and its hosts are silent": {func(e *Evidence) { created(e); silent(e, "n1", "n2") }, want{authority: inCeph, epoch: 1, replicas: "n2 n1", remark: "n1 does not answer"}},
		"attached once, which the image did not take": {
			func(e *Evidence) { created(e); set(linked("n1", "n2", 1, mib), linked("n2", "n1", 1, mib))(e) }, want{authority: inCache, epoch: 2},
		},
		"rebuilt before, and not attached since": {
			func(e *Evidence) {
				seen := int64(4)
				e.Remains.Note.Epoch, e.Remains.Note.Seen = 5, &seen
			}, want{authority: inCeph, epoch: 6},
		},
		"of a cluster that is gone":  {func(e *Evidence) { e.Remains.Kubernetes, e.From = "them", "them" }, want{authority: inCeph, epoch: 5}},
		"a host elsewhere is silent": {func(e *Evidence) { silent(e, "n3") }, want{authority: inCeph, epoch: 5}},
		"n1 counts by decision": {
			func(e *Evidence) {
				set(alone("n1", "n2", 4, escache.DiskConsistent))(e)
				silent(e, "n2")
				e.UseCopy = "n1"
			},
			want{authority: inCache, epoch: 5, outdated: "n2", remark: "by your decision"},
		},
		"the silent one counts by decision": {
			func(e *Evidence) {
				set(alone("n1", "n2", 4, escache.DiskConsistent))(e)
				silent(e, "n2")
				e.UseCopy = "n2"
			},
			want{authority: inCache, epoch: 5, replicas: "n2 n1", outdated: "n1", remark: "by your decision"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := Decide(evidence(tc.change))
			if d.Outcome != v1alpha1.RebuildProposed || d.Record == nil {
				t.Fatalf("%s: %s", d.Outcome, d.Message)
			}
			v := d.Record
			if tc.want.replicas == "" {
				tc.want.replicas = "n1 n2"
			}
			if v.Status.Phase != v1alpha1.VolumeReady || v.Status.Authority != tc.want.authority || v.Status.Epoch != tc.want.epoch ||
				strings.Join(v.Status.Outdated, " ") != tc.want.outdated || v.Status.AttachedNode != "" || v.Status.ImageID != "abc" {
				t.Errorf("status %+v", v.Status)
			}
			if v.Name != "pvc-1" || v.Spec.ClusterID != "new-name" || v.Spec.SizeBytes != 1<<30 || strings.Join(v.Spec.Replicas, " ") != tc.want.replicas ||
				!v.Spec.Adoption.Rebuilt || v.Spec.LinkGeneration != 2 || v.Annotations[v1alpha1.AnnotationClaim] != "shop/data" {
				t.Errorf("record %+v %v", v.Spec, v.Annotations)
			}
			if !strings.Contains(d.Message, tc.want.remark) || (tc.want.remark == "") != (d.Message == "") {
				t.Errorf("remark %q", d.Message)
			}
			for _, h := range v.Status.Hosts {
				if h.HostID != "disks-of-"+h.Node || !v.Spec.HasReplica(h.Node) {
					t.Errorf("hosts %+v", v.Status.Hosts)
				}
			}
		})
	}
}

// TestRecordsThatAreNotProven has all cases in which none is made that can be attached.
func TestRecordsThatAreNotProven(t *testing.T) {
	const waits, refused, conflict = v1alpha1.RebuildWaits, v1alpha1.RebuildRefused, v1alpha1.RebuildConflict
	inUse := func(s *escache.VolumeStatus) {
		s.State, s.Role, s.Device, s.ClientAddress = escache.StateConnected, escache.RolePrimary, "/dev/x", "10.0.0.1:0/7"
	}
	for name, tc := range map[string]struct {
		change  func(*Evidence)
		outcome v1alpha1.RebuildOutcome
		says    string
	}{
		"a host is silent":         {func(e *Evidence) { silent(e, "n2") }, waits, "node n2 does not answer (connection refused)"},
		"both hosts are silent":    {func(e *Evidence) { silent(e, "n1", "n2") }, waits, "--use-copy NODE"},
		"a host was not asked":     {func(e *Evidence) { delete(e.Hosts, "n2") }, waits, "nobody has asked node n2"},
		"the newer host is silent": {func(e *Evidence) { set(alone("n1", "n3", 6, escache.DiskUpToDate))(e); silent(e, "n3") }, waits, "node n3"},
		"drained when it was noted": {
			func(e *Evidence) {
				e.Remains.Note.Authority = v1alpha1.AuthorityCeph
				set(absent("n2"))(e)
				silent(e, "n1")
			}, waits, "node n1 does not answer",
		},
		"another machine answers": {set(linked("n1", "n2", 4, 0).with(func(s *escache.VolumeStatus) { s.Node = "n1" }), absent("n2").with(func(s *escache.VolumeStatus) { s.State = "" })), waits, "has no state"},
		"n1 has the device":       {set(linked("n1", "n2", 4, 0).with(inUse)), waits, "node n1 still has the device"},
		"an old host has the map": {set(absent("n3").with(func(s *escache.VolumeStatus) { s.State, s.ClientAddress = escache.StateError, "10.0.0.3:0/1" })), waits, "node n3 still has the device"},
		"the peer has the device": {set(linked("n2", "n1", 4, 0).with(func(s *escache.VolumeStatus) { s.Peers[0].Role = escache.RolePrimary })), waits, "node n1 has the device"},
		"a client has the image":  {func(e *Evidence) { e.Remains.Clients = []string{"client.4 at 10.0.0.9 has it open"} }, waits, "client.4 at 10.0.0.9"},
		"a client holds the lock, and has it open": {func(e *Evidence) {
			e.Remains.Clients, e.Remains.Left = []string{"client.4 at 10.0.0.9 has it open"}, []string{"10.0.0.8:0/1"}
		}, waits, "client.4 at 10.0.0.9"},
		"its group is missing": {func(e *Evidence) { e.Group = nil }, waits, "no NodeGroup g"},
		"its host left the group": {func(e *Evidence) {
			e.Group = []string{"n1", "n3"}
			set(linked("n1", "n2", 4, 1), linked("n2", "n1", 4, 1))(e)
		}, waits, "n2 has a copy, and is not in NodeGroup g"},
		"use-copy does not unlock one in use": {func(e *Evidence) { set(linked("n1", "n2", 4, 0).with(inUse))(e); e.UseCopy = "n2" }, waits, "n1 still has the device"},

		"both stand alone":     {set(alone("n1", "n2", 4, escache.DiskUpToDate), alone("n2", "n1", 4, escache.DiskUpToDate)), conflict, "n1: epoch 4, standby UpToDate, 5Mi dirty"},
		"both came back alone": {set(alone("n1", "n2", 4, escache.DiskConsistent), alone("n2", "n1", 4, escache.DiskConsistent)), conflict, "attached to n1"},
		"each calls the other outdated": {
			set(copyOn("n1", "n2", 4, escache.DiskUpToDate, 1, escache.LinkStandAlone, escache.DiskOutdated), copyOn("n2", "n1", 4, escache.DiskUpToDate, 1, escache.LinkStandAlone, escache.DiskOutdated)),
			conflict, "sees n1 as StandAlone Outdated",
		},
		"the one that went on alone has an older epoch": {
			set(copyOn("n1", "n2", 4, escache.DiskUpToDate, mib, escache.LinkWFConnection, escache.DiskOutdated), alone("n2", "n1", 5, escache.DiskConsistent)),
			conflict, "n2: epoch 5",
		},
		"no host has what the image saw":   {func(e *Evidence) { e.Remains.Note.Epoch = 6 }, conflict, "the image: epoch 6"},
		"all copies are gone":              {set(absent("n1"), absent("n2")), conflict, "n1: no copy"},
		"one came back alone, one is gone": {set(alone("n1", "n2", 4, escache.DiskConsistent), absent("n2")), conflict, "n2: no copy"},
		"DRBD does not run it": {
			set(alone("n1", "n2", 4, "").with(func(s *escache.VolumeStatus) {
				s.State, s.Error = escache.StateError, &escache.Fault{Detail: "DRBD does not run the replica"}
			}), alone("n2", "n1", 4, escache.DiskConsistent)),
			conflict, "DRBD does not run the replica",
		},
		"only one end says that they are linked": {set(alone("n2", "n1", 4, escache.DiskUpToDate)), conflict, "sees n1 as WFConnection"},
		"two pairs": {
			func(e *Evidence) {
				set(linked("n3", "n4", 4, mib), linked("n4", "n3", 4, mib))(e)
			}, conflict, "n4: epoch 4",
		},
		"the image says that Ceph has all, and a host is dirty": {
			func(e *Evidence) {
				created(e)
				e.Remains.Note.Epoch = 4
				set(alone("n1", "n2", 4, escache.DiskConsistent))(e)
			}, conflict, "5Mi dirty",
		},

		"no image":                             {func(e *Evidence) { e.Remains = volumes.Remains{} }, refused, "no such image"},
		"a node's image of a read-only volume": {func(e *Evidence) { e.Remains.Note.ReadOnly = true }, refused, "data are in a snapshot"},
		"in the trash":                         {func(e *Evidence) { e.Remains = volumes.Remains{Unreadable: errSilent} }, refused, "connection refused"},
		"no mark":                              {func(e *Evidence) { e.Remains.Kubernetes = "" }, refused, "no mark"},
		"deleted":                              {func(e *Evidence) { e.Remains.Deleted = "2026-01-01" }, refused, "deleted at 2026-01-01"},
		"unreadable":                           {func(e *Evidence) { e.Remains.Unreadable = errSilent }, refused, "connection refused"},
		"no note":                              {func(e *Evidence) { e.Remains.Note = volumes.Note{} }, refused, "escache.io/record"},
		"a note with one host":                 {func(e *Evidence) { e.Remains.Note.Spec.Replicas = []string{"n1"} }, refused, "escache.io/record"},
		"a copy by rbd cp":                     {func(e *Evidence) { e.Remains.Note.Spec.Image = "escache-pvc-0" }, refused, "rbd/escache-pvc-0"},
		"of a living cluster":                  {func(e *Evidence) { e.Remains.Kubernetes = "them" }, refused, "--from-kubernetes-cluster them"},
		"of a third cluster":                   {func(e *Evidence) { e.Remains.Kubernetes, e.From = "them", "others" }, refused, "--from-kubernetes-cluster them"},
		"shrunk":                               {func(e *Evidence) { e.Remains.SizeBytes = 1 << 28 }, refused, "shrunk"},
		"its port is taken":                    {func(e *Evidence) { e.SlotTaken = "pvc-9" }, refused, "volume pvc-9 of group g"},
		"another image":                        {set(linked("n1", "n2", 4, 0).with(func(s *escache.VolumeStatus) { s.ImageID = "xyz" })), refused, "image id xyz"},
		"another cache":                        {set(linked("n1", "n2", 4, 0).with(func(s *escache.VolumeStatus) { s.Port = 7900 })), refused, "port 7900"},
		"the choice is none of its hosts": {func(e *Evidence) {
			set(alone("n1", "n2", 4, escache.DiskConsistent))(e)
			silent(e, "n2")
			e.UseCopy = "n3"
		}, refused, "no copy on node n3"},
		"the choice is proven to be wrong": {
			func(e *Evidence) {
				set(copyOn("n1", "n2", 4, escache.DiskUpToDate, mib, escache.LinkWFConnection, escache.DiskOutdated), alone("n2", "n1", 4, escache.DiskConsistent))(e)
				e.UseCopy = "n2"
			}, refused, "node n1 is proven to be current",
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := Decide(evidence(tc.change))
			if d.Outcome != tc.outcome || !strings.Contains(d.Message, tc.says) {
				t.Fatalf("%s: %s", d.Outcome, d.Message)
			}
			if (d.Record != nil) != (tc.outcome == conflict) {
				t.Fatalf("record %+v", d.Record)
			}
			if d.Record != nil && (d.Record.Status.Phase != v1alpha1.VolumeConflict || d.Record.Status.Authority != v1alpha1.AuthorityCache) {
				t.Errorf("it could be attached: %+v", d.Record.Status)
			}
		})
	}
}

// TestNoLaterEpochThanTheRecords: whatever the hosts say, the record is above it.
func TestNoLaterEpochThanTheRecords(t *testing.T) {
	for epoch := range int64(9) {
		d := Decide(evidence(set(linked("n1", "n2", epoch, 1), linked("n2", "n1", 3, 1), alone("n3", "n1", epoch/2, escache.DiskConsistent))))
		if d.Record == nil || d.Record.Status.Epoch <= max(epoch, 4) {
			t.Errorf("host %d, image 4: %+v %s", epoch, d.Record, d.Message)
		}
	}
}

// TestAVolumeInUseIsNeverFormatted: its filesystem may have been in a cache that is gone.
func TestAVolumeInUseIsNeverFormatted(t *testing.T) {
	adopted := func(format bool) func(*Evidence) {
		return func(e *Evidence) {
			created(e)
			e.Remains.Note.Spec.Adoption = &v1alpha1.Adoption{Request: "r", FormatIfBlank: format}
		}
	}
	for name, tc := range map[string]struct {
		change func(*Evidence)
		format bool
	}{
		"used": {nil, false}, "created": {created, true}, "adopted": {adopted(false), false}, "adopted to be formatted": {adopted(true), true},
		"adopted to be formatted, and used": {func(e *Evidence) { e.Remains.Note.Spec.Adoption = &v1alpha1.Adoption{FormatIfBlank: true} }, false},
	} {
		if got := Decide(evidence(tc.change)).Record.Spec.Adoption.FormatIfBlank; got != tc.format {
			t.Errorf("%s: formatted %t", name, got)
		}
	}
}

func TestExpectedHostsAreNamedOnce(t *testing.T) {
	w := survey(evidence(set(linked("n1", "n3", 4, 0))))
	if !slices.Equal(w.expected, []string{"n1", "n2", "n3"}) {
		t.Errorf("expected %v", w.expected)
	}
}
