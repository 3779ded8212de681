package status

import (
	"strings"
	"testing"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/plugin/claims"
	"github.com/escache/escache-csi/internal/plugin/plugintest"
	"github.com/escache/escache-csi/internal/plugin/state"
)

// shown is what status shows of a state.
func shown(t *testing.T, s *state.State, f options) string {
	t.Helper()
	v, err := newView(s, f, plugintest.Noon)
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
		plugintest.Golden(t, "status."+output, shown(t, plugintest.Sample(), options{output: output}))
	}
	plugintest.Golden(t, "status.empty", shown(t, &state.State{}, options{}))
}

func TestStatusFitsEightyColumns(t *testing.T) {
	v, err := newView(plugintest.Sample(), options{}, plugintest.Noon)
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

func TestStatusNamesVolumesWithoutAPersistentVolume(t *testing.T) {
	s := plugintest.Sample()
	s.Uses = claims.Uses{"pvc-busy": {PersistentVolume: "pvc-busy"}}
	if out := shown(t, s, options{}); !strings.Contains(out, "No PersistentVolume names pvc-lost. kubectl escache release") {
		t.Errorf("it says\n%s", out)
	}
}

func TestStatusShowsBothSizesWhileACacheIsToBeResized(t *testing.T) {
	s := plugintest.Sample()
	s.Volumes[0].Spec.WantedCacheBytes = 2 * s.Volumes[0].Spec.CacheBytes
	want := v1alpha1.HumanBytes(s.Volumes[0].Spec.CacheBytes) + " (" + v1alpha1.HumanBytes(s.Volumes[0].Spec.WantedCacheBytes) + " wanted)"
	plugintest.Says(t, shown(t, s, options{output: "wide"}), want)
}
