package trouble_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/records/remedy"
	"github.com/escache/escache-csi/internal/records/trouble"
)

var now = time.Date(2027, 3, 1, 12, 0, 0, 0, time.UTC)

func before(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(-d)) }

func reasons(all []trouble.Trouble) []string {
	var out []string
	for _, t := range all {
		out = append(out, t.Reason)
	}
	slices.Sort(out)
	return out
}

func TestWhatIsWrongWithAVolume(t *testing.T) {
	condition := func(kind, reason string, status metav1.ConditionStatus, since time.Duration) func(*v1alpha1.CacheVolume) {
		return func(v *v1alpha1.CacheVolume) {
			v.Status.Conditions = append(v.Status.Conditions, metav1.Condition{
				Type: kind, Reason: reason, Status: status, Message: "why", LastTransitionTime: before(since),
			})
		}
	}
	detached := func(v *v1alpha1.CacheVolume) { v.Status.AttachedNode = "" }
	for name, c := range map[string]struct {
		change []func(*v1alpha1.CacheVolume)
		want   []string
	}{
		"nothing":      {},
		"its cache":    {[]func(*v1alpha1.CacheVolume){condition("Healthy", "CacheError", "False", 0)}, []string{"CacheError"}},
		"a copy, once": {[]func(*v1alpha1.CacheVolume){condition("Redundant", "PeerLost", "False", 0), outdated}, []string{"PeerLost"}},
		"left dirty":   {[]func(*v1alpha1.CacheVolume){detached}, []string{"LeftDirty"}},
		"left dirty, one host away": {[]func(*v1alpha1.CacheVolume){detached, condition("Redundant", "HostSilent", "False", time.Hour)},
			[]string{"HostSilent", "LeftDirty"}},
		"left dirty, one copy old": {[]func(*v1alpha1.CacheVolume){detached, outdated}, []string{"LeftDirty", "PeerOutdated"}},
		"an old record":            {[]func(*v1alpha1.CacheVolume){detached, condition("RecordBehindDisks", "LaterAttachmentSeen", "True", 0)}, []string{"LaterAttachmentSeen"}},
		"a release that is refused": {[]func(*v1alpha1.CacheVolume){
			detached, func(v *v1alpha1.CacheVolume) { v.Spec.Release = true }, condition("Released", "Refused", "False", 0),
		}, []string{"Refused"}},
		"a change that is refused":         {[]func(*v1alpha1.CacheVolume){condition("Modified", "Refused", "False", 0)}, []string{"Refused"}},
		"a change that has just begun":     {[]func(*v1alpha1.CacheVolume){condition("Modified", "Pending", "False", time.Second)}, nil},
		"a change that does not come":      {[]func(*v1alpha1.CacheVolume){condition("Modified", "Pending", "False", time.Hour)}, []string{"Pending"}},
		"a change that is there":           {[]func(*v1alpha1.CacheVolume){condition("Modified", "Applied", "True", time.Hour)}, nil},
		"a cache that has no room to grow": {[]func(*v1alpha1.CacheVolume){larger, condition("CacheResized", "NoRoom", "False", 0)}, []string{"NoRoom"}},
		"a cache that waits to grow":       {[]func(*v1alpha1.CacheVolume){larger, condition("CacheResized", "Attached", "False", 0)}, nil},
		"a cache that no longer is to":     {[]func(*v1alpha1.CacheVolume){condition("CacheResized", "NoRoom", "False", 0)}, nil},
		"its deletion lasts":               {[]func(*v1alpha1.CacheVolume){func(v *v1alpha1.CacheVolume) { v.DeletionTimestamp = new(before(time.Hour)) }}, []string{"InDeletion"}},
	} {
		v := &v1alpha1.CacheVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-1"}, Spec: v1alpha1.CacheVolumeSpec{Replicas: []string{"n1", "n2"}}}
		v.Status.Phase, v.Status.AttachedNode, v.Status.Authority = v1alpha1.VolumeReady, "n1", v1alpha1.AuthorityCache
		for _, change := range c.change {
			change(v)
		}
		all := trouble.OfVolume(v, nil, remedy.Escached{}, now)
		if !slices.Equal(reasons(all), c.want) {
			t.Errorf("%s: %q, want %q", name, reasons(all), c.want)
		}
		for _, one := range all {
			if one.Kind != trouble.Volume || one.Name != "pvc-1" || one.What == "" || one.Todo == "see the message" || one.Several == "" {
				t.Errorf("%s: %+v", name, one)
			}
			if strings.Contains(one.Todo, "discard-cache") && name == "an old record" {
				t.Errorf("%s: %s", name, one.Todo)
			}
		}
	}
}

func TestTheNextStepOfAVolumeThatNoPodHas(t *testing.T) {
	v := &v1alpha1.CacheVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-1"}, Spec: v1alpha1.CacheVolumeSpec{Replicas: []string{"n1", "n2"}}}
	v.Status.Phase, v.Status.Authority, v.Status.Epoch = v1alpha1.VolumeReady, v1alpha1.AuthorityCache, 3
	if got := trouble.NextStep(v); !strings.HasPrefix(got, "kubectl escache flush --volume=pvc-1 --wait: n1 or n2 writes it back") {
		t.Error(got)
	}
	v.Status.AttachedNode, v.Status.FlushEpoch = "n2", 3
	if got := trouble.NextStep(v); got != "wait: node n2 writes it back, and no pod has it" {
		t.Error(got)
	}
}

// All is in Ceph, so csi-node does not say why the second copy is old. Its host may be gone for good.
func TestWhoMayWaitForADeadHostIsToldOfTheRepair(t *testing.T) {
	v := &v1alpha1.CacheVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-1"}, Spec: v1alpha1.CacheVolumeSpec{Replicas: []string{"n1", "n2"}}}
	v.Status.Phase, v.Status.AttachedNode, v.Status.Authority = v1alpha1.VolumeReady, "n1", v1alpha1.AuthorityCeph
	outdated(v)
	all := trouble.OfVolume(v, nil, remedy.Escached{}, now)
	if len(all) != 1 || all[0].Reason != v1alpha1.ReasonPeerOutdated || !strings.Contains(all[0].Todo, "kubectl escache repair pvc-1") {
		t.Errorf("%+v", all)
	}
}

func larger(v *v1alpha1.CacheVolume) { v.Spec.CacheBytes, v.Spec.WantedCacheBytes = 1<<30, 5<<30 }

func outdated(v *v1alpha1.CacheVolume) { v.Status.Outdated = []string{"n2"} }

func TestAHostsCertificateThatEndsSoonIsTold(t *testing.T) {
	for says, end := range map[string]time.Time{
		"the certificate of its escached ends in 13d (":    now.Add(13*24*time.Hour + time.Hour),
		"the certificate of its escached ended 2d1h ago (": now.Add(-49 * time.Hour),
		"": now.Add(15 * 24 * time.Hour),
	} {
		g := &v1alpha1.NodeGroup{Status: v1alpha1.NodeGroupStatus{Members: []v1alpha1.NodeGroupMember{
			{Name: "n1", Ready: true, CertificateEnd: &metav1.Time{Time: end}}, {Name: "n2", Ready: true},
		}}}
		all := trouble.OfGroup(g, remedy.Escached{}, now)
		if says == "" && len(all) > 0 || says != "" && (len(all) != 1 || all[0].Kind != trouble.Host || all[0].Name != "n1" ||
			!strings.HasPrefix(all[0].What, says) || !strings.Contains(all[0].Todo, "csi-node on n1")) {
			t.Errorf("want %q, got %+v", says, all)
		}
	}
}

func TestWhatIsWrongWithAGroupAndItsHosts(t *testing.T) {
	g := &v1alpha1.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: "rack1"}, Spec: v1alpha1.NodeGroupSpec{Nodes: []string{"n1", "n2", "n3"}}}
	g.Spec.CordonedNodes = []string{"n2"}
	g.Status.Members = []v1alpha1.NodeGroupMember{{Name: "n1", Message: "it belongs to rack0"}, {Name: "n2", Message: "cordoned"}, {Name: "n3", Ready: true}}
	set := func(kind, reason, message string, status metav1.ConditionStatus) {
		g.Status.Conditions = append(g.Status.Conditions, metav1.Condition{Type: kind, Reason: reason, Message: message, Status: status})
	}
	set(v1alpha1.GroupDegraded, "ClaimedByAnotherGroup", "it belongs to rack0", "True")
	set(v1alpha1.GroupReady, "TooFewMembers", "1 of 3", "False")
	set(v1alpha1.GroupRedundant, "NothingToRepair", "", "True")
	all := trouble.OfGroup(g, remedy.Escached{}, now)
	if want := []string{"ClaimedByAnotherGroup", "TooFewMembers"}; !slices.Equal(reasons(all), want) {
		t.Errorf("%q, want %q", reasons(all), want)
	}
	if all[0].Kind != trouble.Host || all[0].Name != "n1" || !strings.Contains(all[0].Todo, "take n1 out") {
		t.Errorf("%+v", all[0])
	}
	g.Status.Conditions[0].Message = "it belongs to rack0; another thing" // the reason may be the other's
	if all = trouble.OfGroup(g, remedy.Escached{}, now); all[0].Reason != remedy.NotReady {
		t.Errorf("%+v", all[0])
	}
	g.Status.Conditions[1].Reason = "Cordoned"
	g.Status.StaleReplicas = make([]v1alpha1.StaleReplica, 2)
	if want := []string{"NotReady", "StaleReplicas"}; !slices.Equal(reasons(trouble.OfGroup(g, remedy.Escached{}, now)), want) {
		t.Errorf("%q, want %q: somebody wants it cordoned", reasons(trouble.OfGroup(g, remedy.Escached{}, now)), want)
	}
}

func TestWhatIsWrongWithTheDriver(t *testing.T) {
	member := func(name, version string, seen time.Duration, ready bool) v1alpha1.NodeGroupMember {
		return v1alpha1.NodeGroupMember{Name: name, Version: version, LastSeen: new(before(seen)), Ready: ready}
	}
	for name, c := range map[string]struct {
		members []v1alpha1.NodeGroupMember
		want    []string
	}{
		"nothing":                   {[]v1alpha1.NodeGroupMember{member("n1", "v1", time.Minute, true), member("n2", "v1", time.Hour, true)}, nil},
		"nobody writes the records": {[]v1alpha1.NodeGroupMember{member("n1", "v1", 5*time.Minute, true), member("n2", "v1", time.Second, false)}, []string{"NoController"}},
		"an upgrade stopped":        {[]v1alpha1.NodeGroupMember{member("n1", "v1", 0, true), member("n2", "v2", 0, true)}, []string{"VersionsDiffer"}},
		"a host that is down is old": {
			[]v1alpha1.NodeGroupMember{member("n1", "v2", 0, true), member("n2", "v1", time.Hour, false)}, nil,
		},
		"no host yet": {nil, nil},
	} {
		g := v1alpha1.NodeGroup{}
		g.Status.Members = c.members
		if got := reasons(trouble.OfDriver([]v1alpha1.NodeGroup{g}, remedy.Escached{}, now)); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestVersions(t *testing.T) {
	for want, hosts := range map[string]map[string][]string{
		"v2 on 4 hosts, v1 on n5": {"v1": {"n5"}, "v2": {"n1", "n2", "n3", "n4"}},
		"v2 on 5 hosts":           {"v2": {"n1", "n2", "n3", "n4", "n5"}},
		"v2 on n1":                {"v2": {"n1"}},
		"v2 on 6 hosts, v1 on m1, m2, m3 and 1 more, v0 on m5, m6, m7": {"v2": {"a", "b", "c", "d", "e", "f"}, "v1": {"m4", "m1", "m2", "m3"}, "v0": {"m5", "m6", "m7"}},
	} {
		if got := trouble.Versions(hosts); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestTheSameTroubleOfManyIsOneLine(t *testing.T) {
	var all []trouble.Trouble
	for n := range 1204 {
		name := fmt.Sprintf("pvc-%04d", n)
		all = append(all, trouble.At(trouble.Volume, name, "", remedy.LeftDirty, name+" is dirty", remedy.Place{Volume: name, Host: "n1"}, remedy.Escached{}))
	}
	all = append(all, trouble.At(trouble.Host, "n3", "", remedy.NotReady, "down", remedy.Place{Host: "n3"}, remedy.Escached{}))
	for _, name := range []string{"c", "b", "a"} {
		all = append(all, trouble.At(trouble.Volume, name, "", "LaterAttachmentSeen", "old", remedy.Place{Volume: name}, remedy.Escached{}))
	}
	slices.Reverse(all)
	lines := trouble.Lines(all)
	var where []string
	for _, l := range lines {
		where = append(where, l.Where)
	}
	want := []string{"volume a", "volume b", "volume c", "1204 volumes, LeftDirty (pvc-0000, pvc-0001, pvc-0002 and 1201 more)", "host n3"}
	if !slices.Equal(where, want) {
		t.Fatalf("%q, want %q", where, want)
	}
	if many := lines[3]; many.Troubles != 1204 || many.What != "for example, pvc-0000 is dirty" || !strings.Contains(many.Todo, "discard-cache VOLUME") {
		t.Errorf("%+v", many)
	}
	flush := &v1alpha1.CacheFlush{ObjectMeta: metav1.ObjectMeta{Name: "f"}}
	for n := range 9 {
		flush.Status.Volumes = append(flush.Status.Volumes, v1alpha1.FlushedVolume{Name: fmt.Sprint(n), Phase: v1alpha1.FlushFailed, Message: "down"})
	}
	if lines := trouble.Lines(trouble.OfFlush(flush, remedy.Escached{})); len(lines) != 1 || lines[0].Where != "1 flush, VolumesFailed (f)" {
		t.Errorf("%+v", lines)
	}
}

func TestCount(t *testing.T) {
	for want, got := range map[string]string{
		"1 host": trouble.Count(1, "host"), "2 hosts": trouble.Count(2, "host"), "0 flushes": trouble.Count(0, "flush"),
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
