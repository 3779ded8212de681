package explain

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/plugin/claims"
	"github.com/escache/escache-csi/internal/plugin/plugintest"
)

// reads are a read-only volume, its PersistentVolume and its claim user/reads.
func reads() []client.Object {
	v := plugintest.Sample().ReadOnly[0]
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "to-read"}}
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: v1alpha1.DriverName, VolumeHandle: v.Name}
	pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "user", Name: "reads"}
	pvc := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "user", Name: "reads"}}
	pvc.Spec.VolumeName = "to-read"
	return []client.Object{&v, pv, pvc}
}

func TestExplainOfAReadOnlyVolume(t *testing.T) {
	waits := plugintest.Event("p", "FailedMount", `MountDevice failed for volume "to-read" : no image`, plugintest.Noon.Add(-time.Minute))
	deleted := reads()
	deleted[0].SetFinalizers([]string{v1alpha1.ReadOnlyFinalizer})
	deleted[0].SetDeletionTimestamp(&metav1.Time{Time: plugintest.Noon})
	free := plugintest.Sample().ReadOnly[0]
	free.Status.Copies = nil
	for name, tc := range map[string]struct {
		objects   []client.Object
		says, not []string
	}{
		"two nodes have it": {reads(), []string{
			"Volume:     pvc-read, read-only, of claim user/reads, created for claim shop/to-read, 2h0m0s ago\n",
			"Made from:  snapshot snapshot-monday, which cannot be deleted before this volume\n",
			"in pool fast of Ceph cluster ceph, 10Gi, without a cache\n",
			"Attached:   to n1: image " + free.ImageOn("n1") + ", id 5e1f\n", "Attached:   to n3: image " + free.ImageOn("n3") + " is not there yet\n",
			"Next step: nothing\n",
		}, []string{"No PV"}},
		"a pod waits": {append(reads(), plugintest.Pod("p", false), waits), []string{
			"FailedMount: MountDevice failed", "Next step: find out why its pods wait:\n  pod user/p waits for it: MountDevice failed",
		}, nil},
		"nobody's": {[]client.Object{&free}, []string{
			"Attached:   not attached\n", "No PV:      no PersistentVolume names it\n", "csi-controller orphans --remove-volume pvc-read",
		}, nil},
		"being deleted": {deleted, []string{"Next step: wait: it is being deleted"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			text, err := explained(t, plugintest.Cluster(t, tc.objects...), "volume", "pvc-read")
			plugintest.Must(t, err)
			plugintest.Says(t, text, tc.says...)
			for _, part := range tc.not {
				if strings.Contains(text, part) {
					t.Errorf("it says %q:\n%s", part, text)
				}
			}
		})
	}
}

func TestExplainFindsTheReadOnlyVolumeOfAClaim(t *testing.T) {
	api := plugintest.Cluster(t, reads()...)
	name, err := claims.NameOf(t.Context(), api, "user", "reads")
	plugintest.Must(t, err)
	c, out := plugintest.Output()
	plugintest.Must(t, explainVolume(t.Context(), c, api, name))
	plugintest.Says(t, out.String(), "pvc-read, read-only")
}

func TestExplainOfASnapshotNamesItsReadOnlyVolumes(t *testing.T) {
	api := plugintest.Cluster(t, append(reads(), snapshot("snapshot-monday", "pvc-1", true, time.Hour), snapshot("other", "pvc-1", true, time.Hour))...)
	text, err := explained(t, api, "snapshot", "snapshot-monday")
	plugintest.Must(t, err)
	plugintest.Says(t, text, "Read-only:  pvc-read: made of it, and to be deleted before it\n")
	text, err = explained(t, api, "snapshot", "other")
	plugintest.Must(t, err)
	if strings.Contains(text, "pvc-read") {
		t.Errorf("it is of another snapshot:\n%s", text)
	}
}

func TestExplainOfAHostShowsItsReadOnlyVolumes(t *testing.T) {
	s := plugintest.Sample()
	text, err := explained(t, plugintest.Cluster(t, append(reads(), &s.Groups[0])...), "host", "n3")
	plugintest.Must(t, err)
	plugintest.Says(t, text, "\npvc-read ", "n1,n3 (no image yet)")
}
