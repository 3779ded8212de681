package blockdev

import (
	"fmt"
	"strings"
	"testing"
)

// FuzzStat reads any text as /sys/block/*/stat. The counters are the ones that stand there.
func FuzzStat(f *testing.F) {
	f.Add("  12 3 456 7 100 3 999 50 4 1 2 0 0 0 0 9 9\n")
	f.Add("    1234        0     9872      500      210       80    18446744073709551615     10        0      300      510\n")
	f.Add("x")
	f.Fuzz(func(t *testing.T, text string) {
		p, ok := parseStat(text)
		if !ok {
			return
		}
		words := strings.Fields(text)
		if len(words) < 9 {
			t.Fatalf("%q has only %d counters", text, len(words))
		}
		again, ok := parseStat(fmt.Sprintf("%d 0 0 0 0 0 0 0 %d 0 0\n", p.Completed, p.InFlight))
		if !ok || again != p {
			t.Errorf("%+v came back as %+v", p, again)
		}
	})
}
