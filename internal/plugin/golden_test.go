package plugin

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/plugin/failure"
	"github.com/escache/escache-csi/internal/plugin/plugintest"
	"github.com/escache/escache-csi/internal/preflight"
)

func sample() *state {
	seen := metav1.NewTime(plugintest.Noon.Add(-3 * time.Second))
	connectable, none := int64(3<<40), int64(0)
	group := v1alpha1.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: "rack1"}}
	group.Spec = v1alpha1.NodeGroupSpec{Nodes: []string{"n1", "n2", "n3"}, CordonedNodes: []string{"n1"}}
	group.Status.Members = []v1alpha1.NodeGroupMember{
		{Name: "n1", CacheCapacityBytes: 1 << 40, CacheAllocatedBytes: 1 << 38, Volumes: 9, Primaries: 4, ConnectableBytes: &none, LastSeen: &seen},
		{Name: "n2", Ready: true, CacheCapacityBytes: 1 << 40, CacheAllocatedBytes: 1 << 39, DirtyBytes: 3 << 30, Volumes: 12, Primaries: 5,
			ConnectedBytes: 1 << 38, ConnectableBytes: &connectable, LastSeen: &seen, CertificateEnd: &metav1.Time{Time: plugintest.Noon.AddDate(0, 0, 6)}},
		{Name: "n3", Message: "escached on node n3 does not answer: connection refused", CacheCapacityBytes: 1 << 40},
	}
	busy := v1alpha1.CacheVolume{ObjectMeta: metav1.ObjectMeta{
		Name: "pvc-busy", Annotations: map[string]string{v1alpha1.AnnotationClaim: "shop/data-app-0"}, CreationTimestamp: metav1.NewTime(plugintest.Noon.Add(-time.Hour)),
	}}
	busy.Spec = v1alpha1.CacheVolumeSpec{
		ClusterID: "ceph", Pool: "fast", Image: "escache-pvc-busy", Group: "rack1", Replicas: []string{"n2", "n3"}, SizeBytes: 10 << 30,
		CacheBytes: 1 << 30, CacheMode: v1alpha1.CacheModeWriteback,
	}
	busy.Status = v1alpha1.CacheVolumeStatus{
		Phase: v1alpha1.VolumeReady, Authority: v1alpha1.AuthorityCache, AttachedNode: "n2", Epoch: 4, Outdated: []string{"n3"}, DirtyBytes: 3 << 30,
		Conditions: []metav1.Condition{
			{Type: "Redundant", Status: "False", Reason: "PeerLost", Message: "n2 goes on without the replica on n3"},
			{Type: "Healthy", Status: "True", Reason: "NoError"},
		},
		Resync: &v1alpha1.VolumeResync{
			Node: "n3", Percent: 31, LeftBytes: 700 << 20, BytesPerSecond: 56 << 20, RemainingSeconds: 12, Seen: metav1.NewTime(plugintest.Noon.Add(-8 * time.Second)),
		},
	}
	lost := *busy.DeepCopy()
	lost.Name, lost.Annotations, lost.Spec.CacheEngine = "pvc-lost", nil, v1alpha1.CacheEngineLog
	lost.Status = v1alpha1.CacheVolumeStatus{Phase: v1alpha1.VolumeReady, Authority: v1alpha1.AuthorityCache, Epoch: 2, DirtyBytes: 5 << 20}
	flush := v1alpha1.CacheFlush{ObjectMeta: metav1.ObjectMeta{Name: "evacuate-n1"}, Spec: v1alpha1.CacheFlushSpec{Node: "n1", Mode: "Drain"}}
	flush.Status = v1alpha1.CacheFlushStatus{
		Phase: v1alpha1.FlushRunning, Percent: 40, TotalBytes: 10 << 30, LeftBytes: 6 << 30,
		Summary: v1alpha1.CacheFlushSummary{Left: "6Gi", Volumes: "1/3", Rate: "200Mi/s", Remaining: "31s"},
		Volumes: []v1alpha1.FlushedVolume{
			{Name: "pvc-a", Claim: "shop/a", Phase: v1alpha1.FlushDrained, TotalBytes: 1 << 30},
			{Name: "pvc-b", Claim: "shop/b", Phase: v1alpha1.FlushRunning, TotalBytes: 4 << 30, LeftBytes: 1 << 30},
			{Name: "pvc-c", Phase: v1alpha1.FlushPending, TotalBytes: 5 << 30, LeftBytes: 5 << 30, Message: "escached on n1: busy"},
		},
	}
	return &state{
		ends:   []preflight.End{{Of: "csi-controller", At: plugintest.Noon.AddDate(0, 0, 9)}, {Of: "escache hosts", At: plugintest.Noon.AddDate(9, 0, 0)}},
		groups: []v1alpha1.NodeGroup{group}, volumes: []v1alpha1.CacheVolume{busy, lost}, flushes: []v1alpha1.CacheFlush{flush},
	}
}

// shown is what status shows of a state.
func shown(t *testing.T, s *state, f statusFlags) string {
	t.Helper()
	v, err := s.view(f, plugintest.Noon)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := v.print(&out, f.output, 0); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestStatusOutputs(t *testing.T) {
	for _, output := range []string{"table", "wide", "name", "json", "yaml"} {
		plugintest.Golden(t, "status."+output, shown(t, sample(), statusFlags{output: output}))
	}
	plugintest.Golden(t, "status.empty", shown(t, &state{}, statusFlags{}))
}

func TestStatusFitsEightyColumns(t *testing.T) {
	v, err := sample().view(statusFlags{}, plugintest.Noon)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := v.print(&out, "", 80); err != nil {
		t.Fatal(err)
	}
	for line := range strings.SplitSeq(out.String(), "\n") {
		if n := len([]rune(line)); n > 80 {
			t.Errorf("%d characters: %s", n, line)
		}
	}
}

func TestProgressOnATerminalAndElsewhere(t *testing.T) {
	f := &sample().flushes[0]
	plugintest.Golden(t, "progress.bars", strings.Join(bars(f, maxBars), "\n")+"\n")
	c, out := plugintest.Output()
	p := newProgress(c)
	p.show(f)
	p.show(f) // no change, no line
	f.Status.Phase = v1alpha1.FlushDrained
	p.show(f)
	plugintest.Golden(t, "progress.lines", out.String())
	for range 100 {
		f.Status.Volumes = append(f.Status.Volumes, v1alpha1.FlushedVolume{Name: "pvc-x", Phase: v1alpha1.FlushPending})
	}
	for most, want := range map[int]int{maxBars: maxBars + 2, 3: 5, -2: 2} {
		if n := len(bars(f, most)); n != want {
			t.Errorf("%d lines where %d bars fit, want %d", n, most, want)
		}
	}
}

// run runs the command line against an API server that gives the same answer to every request.
func run(t *testing.T, code int, status string, args ...string) (exit int, out, errOut string) {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_, _ = w.Write([]byte(status))
	}))
	t.Cleanup(s.Close)
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	var o, e bytes.Buffer
	exit = Run("test", append(args, "--server", s.URL), strings.NewReader(""), &o, &e)
	return exit, o.String(), e.String()
}

func TestWrongUseIsASentence(t *testing.T) {
	for _, tc := range []struct {
		args []string
		exit int
		says string
	}{
		{[]string{"flush"}, failure.Usage, "name exactly one of"},
		{[]string{"flush", "a", "--node=n1"}, failure.Usage, "name exactly one of"},
		{[]string{"evacuate"}, failure.Usage, "name one NODE"},
		{[]string{"status", "-o", "xml"}, failure.Usage, "none of table"},
		{[]string{"status", "--sort-by=colour"}, failure.Usage, "none of age, cache, claim, dirty"},
		{[]string{"explain", "pool/x"}, failure.Usage, "only volume/, snapshot/"},
		{[]string{"preflight", "-o", "yaml"}, failure.Usage, "none of table, json"},
		{[]string{"status", "--nonsense"}, failure.Usage, "nonsense"},
		{[]string{"status", "extra"}, failure.Usage, "extra"},
		{[]string{"nonsense"}, failure.Usage, "nonsense"},
	} {
		exit, _, errOut := run(t, http.StatusOK, "{}", tc.args...)
		if exit != tc.exit || !strings.Contains(errOut, tc.says) || strings.Count(errOut, "\n") > 3 {
			t.Errorf("%v: exit %d, %q", tc.args, exit, errOut)
		}
	}
}

func TestServerThatDoesNotAnswer(t *testing.T) {
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	var o, e bytes.Buffer
	if exit := Run("test", []string{"status", "--server", "http://127.0.0.1:1"}, strings.NewReader(""), &o, &e); exit != failure.Failed ||
		!strings.Contains(e.String(), "127.0.0.1:1 does not answer") {
		t.Errorf("exit %d: %s", exit, e.String())
	}
}

func TestSecretsAreCut(t *testing.T) {
	in := `key = AQBvXy1nAAAAABAAo2T3m5Q1YB0T7l0bW7JtGg== token: abcdef0123 "password":"hunter22" eyJhbGciOiJSUzI1NiIs.eyJpc3MiOiJr.c2ln volume pvc-1 ok`
	out := string(redactSecrets([]byte(in)))
	for _, secret := range []string{"AQBv", "abcdef", "hunter22", "eyJ"} {
		if strings.Contains(out, secret) {
			t.Errorf("%s is left in %s", secret, out)
		}
	}
	if !strings.Contains(out, "volume pvc-1 ok") {
		t.Errorf("too much is cut: %s", out)
	}
}

func TestFailedFlushSaysWhy(t *testing.T) {
	f := v1alpha1.CacheFlush{ObjectMeta: metav1.ObjectMeta{Name: "node-x"}}
	f.Status.Phase = v1alpha1.FlushFailed
	f.Status.Conditions = []metav1.Condition{{Type: v1alpha1.FlushConditionComplete, Status: metav1.ConditionFalse, Message: "there is no node zz"}}
	if all := (&state{flushes: []v1alpha1.CacheFlush{f}}).troubles(plugintest.Noon); len(all) != 1 || all[0].What != "there is no node zz" {
		t.Errorf("%+v", all)
	}
}
