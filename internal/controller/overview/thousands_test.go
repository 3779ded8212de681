package overview

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
)

// many are the records of 100 groups and 10,000 volumes, as a cache has them.
type many struct {
	client.Reader

	lock      sync.Mutex
	groups    []v1alpha1.NodeGroup
	volumes   []v1alpha1.CacheVolume
	snapshots []v1alpha1.CacheSnapshot
	lists     int
}

const (
	manyGroups  = 100
	manyVolumes = 10_000
)

func newMany() *many {
	m := &many{}
	for n := range manyGroups {
		g := v1alpha1.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("rack-%03d", n), ResourceVersion: "1"}}
		for h := range 3 {
			name := fmt.Sprintf("host-%03d-%d", n, h)
			g.Spec.Nodes = append(g.Spec.Nodes, name)
			one := v1alpha1.NodeGroupMember{Name: name, Ready: n != 7 || h != 2, Version: "v0.3.0", CacheCapacityBytes: 1 << 40, LastSeen: new(metav1.Now())}
			if !one.Ready {
				one.Message = "escached on node " + name + " does not answer"
			}
			g.Status.Members = append(g.Status.Members, one)
		}
		m.groups = append(m.groups, g)
	}
	for n := range manyVolumes {
		name := fmt.Sprintf("pvc-%05d", n)
		v := v1alpha1.CacheVolume{ObjectMeta: metav1.ObjectMeta{
			Name: name, ResourceVersion: "1", Annotations: map[string]string{v1alpha1.AnnotationClaim: fmt.Sprintf("team-%02d/data-%05d", n%50, n)},
		}}
		g := &m.groups[n%manyGroups]
		v.Spec = v1alpha1.CacheVolumeSpec{Group: g.Name, Replicas: []string{g.Spec.Nodes[0], g.Spec.Nodes[1+n/manyGroups%2]}, CacheBytes: 1 << 30}
		v.Status = v1alpha1.CacheVolumeStatus{
			Phase: v1alpha1.VolumeReady, Authority: v1alpha1.AuthorityCache, AttachedNode: v.Spec.Replicas[0], Epoch: 1, DirtyBytes: int64(n) << 10,
		}
		if v.Spec.Replicas[1] == "host-007-2" {
			v.Status.Outdated = v.Spec.Replicas[1:]
		}
		m.volumes = append(m.volumes, v)
		m.snapshots = append(m.snapshots, v1alpha1.CacheSnapshot{
			ObjectMeta: metav1.ObjectMeta{Name: "snap-" + name, ResourceVersion: "1"}, Spec: v1alpha1.CacheSnapshotSpec{Volume: name},
		})
	}
	return m
}

func (m *many) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	m.lock.Lock()
	defer m.lock.Unlock()
	m.lists++
	switch l := list.(type) {
	case *v1alpha1.NodeGroupList:
		l.Items = append(l.Items, m.groups...)
	case *v1alpha1.CacheVolumeList:
		l.Items = append(l.Items, m.volumes...)
	case *v1alpha1.CacheSnapshotList:
		l.Items = append(l.Items, m.snapshots...)
	}
	return nil
}

// write changes one volume, as a host that has written does.
func (m *many) write(n int, dirty int64) {
	m.lock.Lock()
	defer m.lock.Unlock()
	v := m.volumes[n].DeepCopy()
	v.ResourceVersion += "1"
	v.Status.DirtyBytes = dirty
	m.volumes[n] = *v
}

// clock stands still until it is told.
type clock struct {
	lock sync.Mutex
	at   time.Time
}

func (c *clock) now() time.Time { c.lock.Lock(); defer c.lock.Unlock(); return c.at }

func (c *clock) pass(d time.Duration) { c.lock.Lock(); defer c.lock.Unlock(); c.at = c.at.Add(d) }

var row = regexp.MustCompile(`<(tr|li) id=`)

// TestTenThousandVolumesMakeASmallPage counts bytes and rows, which what the first paint takes depends on.
func TestTenThousandVolumesMakeASmallPage(t *testing.T) {
	m := newMany()
	s := start(t, m, time.Now)
	for address, want := range map[string]struct{ volumes, rows, bytes int }{
		"/":                     {100, 320, 200 << 10}, // 50 of them have one copy, and come first
		"/?problems=1":          {50, 120, 90 << 10},
		"/?group=rack-003":      {100, 120, 120 << 10},
		"/?page=100":            {100, 320, 160 << 10},
		"/?page=9999&sort=name": {100, 320, 160 << 10}, // the last one
		"/?text=pvc-0123":       {10, 120, 60 << 10},
		"/?namespace=team-49":   {100, 320, 160 << 10},
	} {
		code, body, _ := get(t, s.URL+address, "viewer")
		volumes, rows := strings.Count(body, `<tr id="volumes-pvc-`), len(row.FindAllString(body, -1))
		if code != 200 || volumes != want.volumes || rows > want.rows || len(body) > want.bytes {
			t.Errorf("%s: %d, %d volumes, %d rows, %d bytes; want %+v", address, code, volumes, rows, len(body), want)
		}
	}
	_, body, _ := get(t, s.URL+"/", "viewer")
	for _, word := range []string{
		"10000 volumes, 10000 attached", "50 with one copy", "299 hosts that are ready are left out", "volumes 1 to 100 of 10000", "?page=2",
		"50 volumes, PeerOutdated (pvc-00107, ", "host host-007-2", "10000 snapshots; the newest are", "40 more groups",
	} {
		if !strings.Contains(body, word) {
			t.Errorf("no %q in\n%s", word, body)
		}
	}
	if first := strings.Index(body, "volumes-pvc-"); !strings.HasPrefix(body[first:], "volumes-pvc-00107") {
		t.Errorf("the first volume is not one with a problem: %s", body[first:first+20])
	}
	if _, body, _ = get(t, s.URL+"/?group=rack-999", "viewer"); !strings.Contains(body, "there is no NodeGroup rack-999") {
		t.Error("a group that is not there looks like one in which nothing is wrong")
	}
	if code, body, _ := get(t, s.URL+"/?colour=red", "viewer"); code != http.StatusBadRequest || !strings.Contains(body, "colour") {
		t.Errorf("%d: %s", code, body)
	}
}

func TestOneChangeIsOneRowOfNews(t *testing.T) {
	m, c := newMany(), &clock{at: time.Now()}
	b := newBoards(testConfig(m, nil))
	b.Now = c.now
	s := New(testConfig(m, nil))
	at := func(q query) parts {
		t.Helper()
		now, err := b.latest(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_, p, err := s.parts(now, q)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	first, _ := parse(nil)
	here, elsewhere := at(first), query{Page: 3}
	there := at(elsewhere)
	if n := here.since(here); !n.empty() {
		t.Errorf("news without a change: %v", n)
	}
	m.write(107, 5<<30) // on the first page, and all of it is on one host
	c.pass(fresh)
	n := at(first).since(here)
	text, _ := json.Marshal(n)
	_, told := n.Parts["volumes-pvc-00107"]
	if !told || len(n.Parts) > 3 || len(n.Lists) > 0 || len(text) > 6<<10 {
		t.Errorf("%d bytes, lists %v: %s", len(text), n.Lists, text)
	}
	n = at(elsewhere).since(there)
	if text, _ = json.Marshal(n); len(text) > 6<<10 {
		t.Errorf("of a volume on another page: %s", text)
	}
	c.pass(fresh)
	if id := at(first).ID; id != at(elsewhere).ID || id == here.ID {
		t.Error("nothing has changed since, and it is another board")
	}
}

func TestManyWhoLookShareOneReading(t *testing.T) {
	m := newMany()
	c := &clock{at: time.Now()}
	b := newBoards(testConfig(m, nil))
	b.Now = c.now
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			if _, err := b.latest(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if m.lists != 4 {
		t.Errorf("%d lists of four kinds", m.lists)
	}
	before, _ := b.latest(t.Context())
	c.pass(renewed) // no record has changed, but the hosts have not been seen for longer
	after, err := b.latest(t.Context())
	if err != nil || after == before {
		t.Errorf("the troubles are not looked at again: %v", err)
	}
	c.pass(time.Hour)
	if b.Leader = func(context.Context) (string, error) { return "", context.DeadlineExceeded }; true {
		after, err = b.latest(t.Context())
	}
	if err != nil || !strings.Contains(after.leader, "not known") || after.Troubles[0].Reason != "NoController" {
		t.Errorf("%v, %+v", err, after)
	}
}
