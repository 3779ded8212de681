package flush

import (
	"strings"
	"testing"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/plugin/plugintest"
)

func TestProgressOnATerminalAndElsewhere(t *testing.T) {
	f := &plugintest.Sample().Flushes[0]
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
