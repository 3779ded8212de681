package flush

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/plugin/console"
)

// progress shows a CacheFlush: on a terminal as bars that it redraws, elsewhere as a line for each
// change.
type progress struct {
	c     *console.Console
	drawn int // lines
	last  string
}

func newProgress(c *console.Console) *progress { return &progress{c: c} }

const (
	barWidth = 20
	// maxBars is how many bars are shown; those of volumes that are done are left out first.
	maxBars = 15
)

func (p *progress) show(f *v1alpha1.CacheFlush) {
	screen, ok := p.c.Screen()
	if !ok {
		p.line(f)
		return
	}
	const otherLines = 4 // how many are hidden, the total, the cursor's, and one above
	lines := bars(f, min(maxBars, screen.Height-otherLines))
	if p.drawn > 0 {
		p.c.Printf("\x1b[%dA", p.drawn)
	}
	for _, line := range lines {
		p.c.Printf("%s%s\n", console.Truncate(line, screen.Width), console.EndOfLine)
	}
	for range p.drawn - len(lines) {
		p.c.Printf("%s\n", console.EndOfLine)
	}
	p.drawn = max(p.drawn, len(lines))
}

func (p *progress) line(f *v1alpha1.CacheFlush) {
	lines := []string{Total(f)}
	for _, v := range f.Status.Volumes {
		if v.Message != "" && v.Phase != v1alpha1.FlushComplete {
			lines = append(lines, "  "+v.Name+": "+v.Message)
		}
	}
	line := strings.Join(lines, "\n")
	if line != p.last {
		p.c.Printf("%s\n", line)
	}
	p.last = line
}

// bars returns a line for each volume, at most that many, and one for the total.
func bars(f *v1alpha1.CacheFlush, most int) []string {
	var open, done []v1alpha1.FlushedVolume
	for _, v := range f.Status.Volumes {
		if v.Phase == v1alpha1.FlushComplete || v.Phase == v1alpha1.FlushDrained {
			done = append(done, v)
		} else {
			open = append(open, v)
		}
	}
	shown := slices.Concat(open, done)
	hidden := len(shown) - max(most, 0)
	if hidden > 0 {
		shown = shown[:max(most, 0)]
	}
	lines := make([]string, 0, len(shown)+2)
	for _, v := range shown {
		line := fmt.Sprintf("  %s %-8s %8s  %s  %s", bar(v.TotalBytes, v.LeftBytes, v.Phase), cmp.Or(v.Phase, v1alpha1.FlushPending),
			v1alpha1.HumanBytes(v.LeftBytes), cmp.Or(v.Claim, v.Name), v.Message)
		lines = append(lines, strings.TrimRight(line, " "))
	}
	if hidden > 0 {
		lines = append(lines, fmt.Sprintf("  … and %d more", hidden))
	}
	return append(lines, "  "+bar(f.Status.TotalBytes, f.Status.LeftBytes, f.Status.Phase)+" "+Total(f))
}

// Total says how far a CacheFlush is.
func Total(f *v1alpha1.CacheFlush) string {
	s := &f.Status
	text := fmt.Sprintf("%s: %d%%, %s volumes clean, %s left", cmp.Or(string(s.Phase), "Pending"), s.Percent,
		cmp.Or(s.Summary.Volumes, "0/0"), cmp.Or(s.Summary.Left, "0"))
	if s.Summary.Rate != "" {
		text += ", " + s.Summary.Rate + ", " + s.Summary.Remaining + " remaining"
	}
	return text
}

func bar(all, left int64, phase v1alpha1.FlushPhase) string {
	full := 0
	switch {
	case phase == v1alpha1.FlushComplete, phase == v1alpha1.FlushDrained:
		full = barWidth
	case all > 0:
		full = int(min(max(barWidth*(all-left)/all, 0), barWidth-1))
	}
	return "[" + strings.Repeat("#", full) + strings.Repeat(".", barWidth-full) + "]"
}
