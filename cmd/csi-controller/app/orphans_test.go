package app

import (
	"strings"
	"testing"

	"github.com/escache/escache-csi/internal/orphans"
)

// TestTheListSaysWhatIsLostWithAnImage: claim and epoch are known from the image's metadata.
func TestTheListSaysWhatIsLostWithAnImage(t *testing.T) {
	of := func(name string, note orphans.Note) orphans.Lost {
		return orphans.Lost{Image: orphans.Image{Pool: orphans.Pool{ClusterID: "ceph", Pool: "rbd"}, Image: name}, Note: note}
	}
	fresh := of("fresh", orphans.Note{Volume: "v", Claim: "shop/new"})
	used := of("used", orphans.Note{Volume: "w", Claim: "shop/data", Epoch: 7, Hosts: []string{"n1", "n2"}})
	const hint = "kubectl escache adopt --all"
	for name, tc := range map[string]struct {
		found orphans.Found
		lines []string
		hint  bool
	}{
		"nothing is lost": {orphans.Found{Images: []orphans.Lost{fresh}}, []string{"image  ceph/rbd/fresh  shop/new", "never attached"}, false},
		"data may be lost": {
			orphans.Found{Images: []orphans.Lost{fresh, used}},
			[]string{"ceph/rbd/used   shop/data", "used until epoch 7, and the caches on n1 and n2"}, true,
		},
		"an unmarked one": {
			orphans.Found{Unmarked: []orphans.Lost{used}},
			[]string{"unmarked image  ceph/rbd/used  shop/data", "used until epoch 7"}, true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			if err := list(&out, tc.found); err != nil {
				t.Fatal(err)
			}
			for _, line := range tc.lines {
				if !strings.Contains(out.String(), line) {
					t.Errorf("no %q in\n%s", line, out.String())
				}
			}
			if strings.Contains(out.String(), hint) != tc.hint {
				t.Errorf("hint to adopt:\n%s", out.String())
			}
		})
	}
}
