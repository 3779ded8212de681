package explain

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/plugin/failure"
	"github.com/escache/escache-csi/internal/plugin/plugintest"
)

// explained is what explain says of KIND/NAME.
func explained(t *testing.T, api client.Reader, kind, name string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	c := plugintest.Console(&out, plugintest.AtNoon)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := explainObject(ctx, c, api, kind, name)
	return out.String(), err
}

func snapshot(name, volume string, taken bool, age time.Duration) *v1alpha1.CacheSnapshot {
	s := &v1alpha1.CacheSnapshot{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(plugintest.Noon.Add(-age))}}
	s.Spec = v1alpha1.CacheSnapshotSpec{Volume: volume, ClusterID: "ceph", Pool: "fast", Image: "escache-1", Snapshot: "at-" + name}
	if taken {
		s.Status.Taken, s.Status.SizeBytes = new(metav1.NewTime(plugintest.Noon.Add(-age))), 10<<30
	}
	return s
}

func TestExplainShowsBothSizesWhileACacheIsToBeResized(t *testing.T) {
	s := plugintest.Sample()
	s.Volumes[0].Spec.WantedCacheBytes = 2 * s.Volumes[0].Spec.CacheBytes
	want := v1alpha1.HumanBytes(s.Volumes[0].Spec.CacheBytes) + " (" + v1alpha1.HumanBytes(s.Volumes[0].Spec.WantedCacheBytes) + " wanted)"
	says, err := explained(t, plugintest.Cluster(t, &s.Groups[0], &s.Volumes[0]), "volume", s.Volumes[0].Name)
	if err != nil || !strings.Contains(says, want) {
		t.Errorf("explain does not say %s, %v:\n%s", want, err, says)
	}
}

func TestExplainOfOtherThings(t *testing.T) {
	s := plugintest.Sample()
	s.Groups[0].Status.StaleReplicas = []v1alpha1.StaleReplica{{Node: "n3", Volume: "pvc-old"}}
	s.Groups[0].Annotations = map[string]string{"meta.helm.sh/release-name": "escache", "meta.helm.sh/release-namespace": "storage"}
	other := v1alpha1.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: "rack2"}, Spec: v1alpha1.NodeGroupSpec{Nodes: []string{"m1", "m2", "m3"}}}
	copied := &v1alpha1.CacheVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-copy"}, Spec: v1alpha1.CacheVolumeSpec{FromSnapshot: "monday", Group: "rack2", Replicas: []string{"m1", "m9"}}}
	slow := &v1alpha1.CacheFlush{ObjectMeta: metav1.ObjectMeta{Name: "slow"}, Spec: v1alpha1.CacheFlushSpec{NodeGroup: "rack1", Mode: "Flush"}}
	slow.Status = v1alpha1.CacheFlushStatus{
		Phase: v1alpha1.FlushRunning, Percent: 50, Summary: v1alpha1.CacheFlushSummary{Left: "3Gi", Volumes: "0/2", Rate: "1Gi/s", Remaining: "3s"},
		Volumes: []v1alpha1.FlushedVolume{{Name: "pvc-lost", LeftBytes: 1 << 30}, {Name: "pvc-busy", Phase: v1alpha1.FlushRunning, LeftBytes: 2 << 30}},
	}
	api := plugintest.Cluster(t, slow, &s.Groups[0], &other, &s.Volumes[0], &s.Volumes[1], &s.Flushes[0], copied, snapshot("monday", "pvc-1", true, time.Hour),
		snapshot("young", "pvc-1", false, time.Second), snapshot("stuck", "pvc-1", false, time.Hour), snapshot("alone", "pvc-gone", true, time.Hour),
		snapshot("never", "pvc-gone", false, time.Hour))
	for what, c := range map[string]struct {
		says, not []string
	}{
		"host/n2": {
			[]string{"n2, of group rack1", "Ready, last seen now", "1Ti, of which 512Gi are given to volumes (50%), 3Gi are dirty", "12, of which 5",
				"TLS:        its certificate ends in 6d (2027-03-07)", "evacuate n2", "volume pvc-busy: n2 goes on", "\npvc-busy ", "\nrack1   n2 "},
			[]string{"rack2", "\nrack1   n1", "host n3:", "pvc-old"},
		},
		"host/n3": {[]string{"NotReady, last seen never: escached on node n3 does not answer", "version not known", "replica of volume pvc-old on node n3",
			"What is wrong", "host n3: "}, nil},
		"host/m2": {[]string{"csi-controller has not asked it yet", "Nothing is wrong.", "no volumes that fit"}, nil},
		"host/m9": {[]string{"in no group any more", "\npvc-copy "}, []string{"pvc-busy"}},
		"group/rack1": {[]string{"rack1 of n1, n2, n3, made", "Helm release escache in namespace storage: change it there",
			"no replicas on n1", "of volume pvc-old on node n3", "no csi-controller has looked", "Volumes:  2 of 4", "evacuate-n1"}, []string{"rack2", "pvc-copy"}},
		"volume/pvc-busy": {[]string{"fast/escache-pvc-busy of Ceph cluster ceph", "Next step:",
			"Resync:     of the copy on n3: 31%, 700Mi left at 56Mi/s, 12s remaining; seen 8s ago",
			"Flush:      slow (Flush): Running, 2Gi of this volume left. All of it: Running: 50%, 0/2 volumes clean, 3Gi left, 1Gi/s, 3s remaining",
		}, []string{"evacuate-n1"}},
		"snapshot/monday": {[]string{"fast/escache-1@at-monday of cluster ceph", "1h0m0s ago, of an image of 10Gi", "pvc-1, of claim user/shared by its record",
			"Made of it:", "pvc-copy", "dataSource"}, []string{"wait"}},
		"snapshot/young": {[]string{"not yet", "Next step: wait: it is being taken"}, []string{"Made of it"}},
		"snapshot/stuck": {[]string{"Next step: kubectl describe volumesnapshotcontent", "explain volume/pvc-1"}, nil},
		"snapshot/alone": {[]string{"pvc-gone, which is not on record any more: its image stays", "dataSource"}, nil},
		"snapshot/never": {[]string{"delete its VolumeSnapshot"}, nil},
	} {
		t.Run(what, func(t *testing.T) {
			kind, name, _ := strings.Cut(what, "/")
			out, err := explained(t, api, kind, name)
			if err != nil {
				t.Fatal(err)
			}
			for _, part := range c.says {
				if !strings.Contains(out, part) {
					t.Errorf("it does not say %q:\n%s", part, out)
				}
			}
			for _, part := range c.not {
				if strings.Contains(out, part) {
					t.Errorf("it says %q:\n%s", part, out)
				}
			}
		})
	}
	for what, says := range map[string]string{
		"host/zz": "node zz is in no NodeGroup", "group/zz": "there is no NodeGroup zz", "volume/zz": "there is no CacheVolume zz",
		"snapshot/zz": "there is no CacheSnapshot zz", "pool/zz": "only volume/, snapshot/, host/ and group/",
	} {
		kind, name, _ := strings.Cut(what, "/")
		if _, err := explained(t, api, kind, name); err == nil || !strings.Contains(err.Error(), says) || errors.Is(err, failure.ErrUsage) != (kind == "pool") {
			t.Errorf("%s: %v", what, err)
		}
	}
}
