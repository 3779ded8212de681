package status

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/plugin/paging"
	"github.com/escache/escache-csi/internal/plugin/plugintest"
	"github.com/escache/escache-csi/internal/plugin/state"
	"github.com/escache/escache-csi/internal/records/choice"
)

// bigCluster is an API server with 100 groups of three hosts and 10,000 volumes. It serves lists in
// pages, as JSON, and refuses to send thousands of objects at once.
type bigCluster struct {
	lists map[string][]json.RawMessage // by path
	lock  sync.Mutex
	whole []string // lists that somebody wanted whole
}

const (
	bigGroups  = 100
	bigVolumes = 10_000
)

func newBigCluster(tb testing.TB, now time.Time) *bigCluster {
	tb.Helper()
	c := &bigCluster{lists: map[string][]json.RawMessage{}}
	add := func(path string, o any) {
		text, err := json.Marshal(o)
		if err != nil {
			tb.Fatal(err)
		}
		c.lists[path] = append(c.lists[path], text)
	}
	host := func(group, n int) string { return fmt.Sprintf("host-%03d-%d", group, n) }
	for n := range bigGroups {
		g := &v1alpha1.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("rack-%03d", n)}}
		for h := range 3 {
			m := v1alpha1.NodeGroupMember{
				Name: host(n, h), Ready: n != 7 || h != 2, Version: "v0.3.0", CacheCapacityBytes: 1 << 42, CacheAllocatedBytes: 1 << 41,
				Volumes: 66, Primaries: 33, LastSeen: new(metav1.NewTime(now)),
			}
			if !m.Ready {
				m.Message = "escached on node " + m.Name + " does not answer: connection refused"
			}
			g.Spec.Nodes, g.Status.Members = append(g.Spec.Nodes, m.Name), append(g.Status.Members, m)
		}
		add("/apis/escache.io/v1alpha1/nodegroups", g)
	}
	for n := range bigVolumes {
		v := bigVolume(n, now, host)
		add("/apis/escache.io/v1alpha1/cachevolumes", v)
		pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: v.Name, ManagedFields: v.ManagedFields}}
		pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: v1alpha1.DriverName, VolumeHandle: v.Name}
		pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: fmt.Sprintf("team-%02d", n%50), Name: fmt.Sprintf("data-%05d", n)}
		pv.Status.Phase = corev1.VolumeBound
		add("/api/v1/persistentvolumes", pv)
	}
	for n := range 300 {
		add("/apis/events.k8s.io/v1/events", &eventsv1.Event{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team-00", Name: fmt.Sprintf("e-%d", n)}, Type: corev1.EventTypeWarning,
			Regarding: corev1.ObjectReference{Kind: "Pod", Namespace: "team-00", Name: fmt.Sprintf("p-%d", n)}, Reason: "FailedMount",
			Note: fmt.Sprintf(`MountVolume.MountDevice failed for volume "pvc-%05d" : it is busy`, n), EventTime: metav1.NewMicroTime(now),
		})
	}
	return c
}

// bigVolume is as large as one that kubectl get shows. Those of group 7 whose second copy is on its
// third host have one copy.
func bigVolume(n int, now time.Time, host func(group, n int) string) *v1alpha1.CacheVolume {
	group := n % bigGroups
	turn := n / bigGroups
	v := &v1alpha1.CacheVolume{ObjectMeta: metav1.ObjectMeta{
		Name: fmt.Sprintf("pvc-%05d", n), UID: "0a1b2c3d-0a1b-0a1b-0a1b-0a1b2c3d4e5f", CreationTimestamp: metav1.NewTime(now.Add(-time.Hour)),
		Finalizers: []string{"escache.io/volume"}, ManagedFields: []metav1.ManagedFieldsEntry{{
			Manager: "csi-controller", Operation: "Update", FieldsV1: metav1.NewFieldsV1(`{"f:spec":{` + strings.Repeat(`"f:field":{},`, 60) + `"f:x":{}}}`),
		}},
	}}
	v.Spec = v1alpha1.CacheVolumeSpec{
		ClusterID: "ceph", Pool: "fast", Image: "escache-" + v.Name, Group: fmt.Sprintf("rack-%03d", group), SizeBytes: 100 << 30, CacheBytes: 10 << 30,
		Replicas: []string{host(group, turn%3), host(group, (turn+1)%3)}, Port: int32(7800 + turn), Minor: int32(100 + turn),
	}
	v.Status = v1alpha1.CacheVolumeStatus{
		Phase: v1alpha1.VolumeReady, Authority: v1alpha1.AuthorityCache, AttachedNode: v.Spec.Replicas[0], Epoch: 3, DirtyBytes: int64(n) << 20,
	}
	for _, kind := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionRedundant, v1alpha1.ConditionSynced, v1alpha1.ConditionHealthy} {
		c := metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: "NoError", Message: "all is well"}
		if kind == v1alpha1.ConditionRedundant && group == 7 && turn%3 == 1 {
			v.Status.Outdated = v.Spec.Replicas[1:]
			c.Status, c.Reason, c.Message = metav1.ConditionFalse, v1alpha1.ReasonPeerLost, "the replica on "+v.Spec.Replicas[1]+" does not answer"
		}
		v.Status.Conditions = append(v.Status.Conditions, c)
	}
	return v
}

func (c *bigCluster) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	kinds := map[string]map[string]string{
		"/api/v1": {"persistentvolumes": "PersistentVolume", "pods": "Pod"}, "/apis/apps/v1": {"deployments": "Deployment", "daemonsets": "DaemonSet"},
		"/apis/events.k8s.io/v1": {"events": "Event"}, "/apis/escache.io/v1alpha1": {
			"nodegroups": "NodeGroup", "cachevolumes": "CacheVolume", "cacheflushes": "CacheFlush", "cachesnapshots": "CacheSnapshot",
		},
	}
	if group, rest, ok := strings.Cut(r.URL.Path, "/namespaces/"); ok && strings.HasSuffix(rest, "/events") { // all are in one
		r.URL.Path = group + "/events"
		if rest != "team-00/events" {
			r.URL.Path = group + "/none"
			kinds[group]["none"] = "Event"
		}
	}
	at := strings.LastIndex(r.URL.Path, "/")
	switch {
	case r.URL.Path == "/api":
		c.answer(w, &metav1.APIVersions{Versions: []string{"v1"}})
	case r.URL.Path == "/apis":
		groups := &metav1.APIGroupList{}
		for path := range maps.Keys(kinds) {
			if parts := strings.Split(path, "/"); len(parts) == 4 {
				version := metav1.GroupVersionForDiscovery{GroupVersion: parts[2] + "/" + parts[3], Version: parts[3]}
				groups.Groups = append(groups.Groups, metav1.APIGroup{
					Name: parts[2], Versions: []metav1.GroupVersionForDiscovery{version}, PreferredVersion: version,
				})
			}
		}
		c.answer(w, groups)
	case kinds[r.URL.Path] != nil:
		list := &metav1.APIResourceList{GroupVersion: strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, "/apis/"), "/api/")}
		for name, kind := range kinds[r.URL.Path] {
			list.APIResources = append(list.APIResources, metav1.APIResource{Name: name, Kind: kind, Namespaced: name == "pods" || name == "events"})
		}
		c.answer(w, list)
	case strings.Contains(r.URL.Path, "/pods/"):
		c.answer(w, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: r.URL.Path[at+1:]}})
	case kinds[r.URL.Path[:at]][r.URL.Path[at+1:]] != "":
		c.page(w, r)
	default:
		http.NotFound(w, r)
	}
}

// page writes a page of a list.
func (c *bigCluster) page(w http.ResponseWriter, r *http.Request) {
	all := c.lists[r.URL.Path]
	if field := r.URL.Query().Get("fieldSelector"); field != "" && field != "reason=FailedMount" {
		all = nil
	}
	limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
	first, _ := strconv.Atoi(r.URL.Query().Get("continue"))
	if limit == 0 || limit > paging.Size {
		c.lock.Lock()
		c.whole = append(c.whole, r.URL.String())
		c.lock.Unlock()
		limit = len(all)
	}
	end := min(first+limit, len(all))
	next := ""
	if end < len(all) {
		next = strconv.Itoa(end)
	}
	_, _ = fmt.Fprintf(w, `{"metadata":{"resourceVersion":"1","continue":%q},"items":[`, next)
	for n, item := range all[first:end] {
		if n > 0 {
			_, _ = io.WriteString(w, ",")
		}
		_, _ = w.Write(item)
	}
	_, _ = io.WriteString(w, "]}")
}

func (c *bigCluster) answer(w http.ResponseWriter, o any) { _ = json.NewEncoder(w).Encode(o) }

// status runs kubectl escache status against the cluster.
func (c *bigCluster) status(tb testing.TB, url string, args ...string) string {
	tb.Helper()
	var out strings.Builder
	user := plugintest.Console(&out, time.Now)
	command := Command(user)
	user.Config.AddFlags(command.PersistentFlags())
	command.SetArgs(append([]string{"--server", url}, args...))
	if err := command.ExecuteContext(tb.Context()); err != nil {
		tb.Fatalf("status %q: %v", args, err)
	}
	return out.String()
}

func bigClient(tb testing.TB, url string) paging.Client {
	tb.Helper()
	c, _ := plugintest.Output()
	c.Config.APIServer = &url
	api, err := c.Connect()
	if err != nil {
		tb.Fatal(err)
	}
	return api.(paging.Client)
}

func TestStatusOfTenThousandVolumes(t *testing.T) {
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	cluster := newBigCluster(t, time.Now())
	server := httptest.NewServer(cluster)
	t.Cleanup(server.Close)
	text := cluster.status(t, server.URL)
	all := strings.Split(text, "\n")
	if len(all) > 150 || all[0] != "What is wrong, and what to do:" {
		t.Errorf("%d lines, the first %q", len(all), all[0])
	}
	for _, part := range []string{
		"300 volumes, PodWaits (pvc-00000, pvc-00001, pvc-00002 and 297 more)", "33 volumes, PeerLost (", "host host-007-2: escached on node",
		"Volumes:  10000, 10000 attached, ", "33 with one copy", "Hosts:    300 in 100 groups, 299 ready, 50% of 1.2Pi cache", "Versions: escached v0.3.0 on 300 hosts",
		"… 299 hosts that are Ready are left out\n  --all shows all", "… 9668 volumes without a problem are left out; 232 more",
	} {
		if !strings.Contains(text, part) {
			t.Errorf("it does not say %q:\n%s", part, text)
		}
	}
	if got := strings.Count(cluster.status(t, server.URL, "-o", "name", "-n=team-07"), "cachevolume."); got != 200 {
		t.Errorf("%d volumes of a namespace by name", got)
	}
	s, err := state.Read(t.Context(), bigClient(t, server.URL), "", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		flags options
		rows  int
	}{
		"all":             {options{all: true}, bigVolumes},
		"a group":         {options{filter: choice.Filter{Groups: []string{"rack-007"}}}, 100},
		"two groups":      {options{filter: choice.Filter{Groups: []string{"rack-007", "rack-008"}}}, 200},
		"a host":          {options{filter: choice.Filter{Nodes: []string{"host-007-2"}}}, 66},
		"a namespace":     {options{filter: choice.Filter{Namespace: "team-07"}}, 200},
		"problems":        {options{filter: choice.Filter{Problems: true}}, 332},
		"a group's":       {options{filter: choice.Filter{Problems: true, Groups: []string{"rack-007"}}}, 35},
		"a host's":        {options{filter: choice.Filter{Problems: true, Nodes: []string{"host-007-2"}}}, 34},
		"all that fit":    {options{filter: choice.Filter{Namespace: "team-07", Groups: []string{"rack-007"}}}, 100},
		"nothing that is": {options{filter: choice.Filter{Namespace: "team-08", Groups: []string{"rack-007"}}}, 0},
	} {
		if got := strings.Count(shown(t, s, c.flags), "\npvc-"); got != c.rows {
			t.Errorf("%s: %d volumes, want %d", name, got, c.rows)
		}
	}
	dirtiest := shown(t, s, options{sortBy: "dirty"})
	if _, table, _ := strings.Cut(dirtiest, "\nVOLUME "); strings.Count(table, "\npvc-") != maxVolumes || !strings.Contains(table, "HEALTHY\npvc-09999 ") ||
		!strings.Contains(table, "… 9900 more\n  --all") {
		t.Errorf("by what is dirty:\n%s", table)
	}
	if len(cluster.whole) > 0 {
		t.Errorf("whole lists were read: %q", cluster.whole)
	}
}

// BenchmarkStatusOfTenThousandVolumes prints how long status takes and how much memory it needs at
// most, beside that of the API server, which is in the same process.
func BenchmarkStatusOfTenThousandVolumes(b *testing.B) {
	b.Setenv("KUBECONFIG", filepath.Join(b.TempDir(), "none"))
	cluster := newBigCluster(b, time.Now())
	server := httptest.NewServer(cluster)
	b.Cleanup(server.Close)
	for _, args := range [][]string{nil, {"--all"}, {"--problems"}, {"--group=rack-007"}, {"-o=json"}} {
		b.Run("status "+strings.Join(args, " "), func(b *testing.B) {
			b.ReportAllocs()
			var out int
			peak := heapPeak(func() {
				for b.Loop() {
					out = len(cluster.status(b, server.URL, args...))
				}
			})
			b.ReportMetric(float64(peak)/(1<<20), "peak-MiB")
			b.ReportMetric(float64(out)/(1<<10), "output-KiB")
		})
	}
}

// BenchmarkReading compares lists in pages with whole lists.
func BenchmarkReading(b *testing.B) {
	b.Setenv("KUBECONFIG", filepath.Join(b.TempDir(), "none"))
	server := httptest.NewServer(newBigCluster(b, time.Now()))
	b.Cleanup(server.Close)
	paged := bigClient(b, server.URL)
	for name, read := range map[string]func() error{
		"pages": func() error {
			_, err := state.Read(b.Context(), paged, "", time.Now())
			return err
		},
		"whole": func() error {
			return errors.Join(
				paged.WithWatch.List(b.Context(), &v1alpha1.CacheVolumeList{}), paged.WithWatch.List(b.Context(), &corev1.PersistentVolumeList{}),
			)
		},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.ReportMetric(float64(heapPeak(func() {
				for b.Loop() {
					if err := read(); err != nil {
						b.Fatal(err)
					}
				}
			}))/(1<<20), "peak-MiB")
		})
	}
}

// heapPeak returns by how many bytes the heap grew at most while do ran.
func heapPeak(do func()) uint64 {
	runtime.GC()
	var before runtime.MemStats
	runtime.ReadMemStats(&before)
	var peak atomic.Uint64
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
				var is runtime.MemStats
				runtime.ReadMemStats(&is)
				peak.Store(max(peak.Load(), is.HeapAlloc))
			}
		}
	}()
	do()
	close(stop)
	<-stopped
	return peak.Load() - min(before.HeapAlloc, peak.Load())
}
