package inspection

import (
	"testing"
	"time"

	"github.com/escache/escache-csi/internal/orphans"
	"github.com/escache/escache-csi/internal/plugin/plugintest"
)

func TestOrphansTellsOfImagesThatStayForSnapshots(t *testing.T) {
	kept := orphans.Kept{
		Image: orphans.Image{Pool: orphans.Pool{ClusterID: "ceph", Pool: "fast"}, Image: "escache-pvc-1"}, Volume: "pvc-1", Snapshots: []string{"s1", "s2"},
	}
	const line = "no orphan: volume pvc-1 is not on record any more, and image ceph/fast/escache-pvc-1 stays for its snapshots s1, s2\n"
	for name, tc := range map[string]struct {
		found orphans.Found
		want  string
	}{
		"nothing":       {orphans.Found{}, "no orphans\n"},
		"such an image": {orphans.Found{Kept: []orphans.Kept{kept}}, "no orphans\n" + line},
		"and an orphan, too": {
			orphans.Found{Kept: []orphans.Kept{kept}, Volumes: []orphans.Volume{{Name: "pvc-2", Claim: "ns/a", Since: plugintest.Noon.UTC()}}},
			"VOLUME   CREATED FOR   SINCE                  STATE\npvc-2    ns/a          " + plugintest.Noon.UTC().Format(time.RFC3339) + "   can be released\n" + line,
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, out := plugintest.Output()
			if err := printOrphans(c, tc.found); err != nil || out.String() != tc.want {
				t.Errorf("%v\n%q\n%q", err, out.String(), tc.want)
			}
		})
	}
}
