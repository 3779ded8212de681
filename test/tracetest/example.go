package tracetest

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/escache/escache-csi/test/internal/page"
)

// Steps are the names of a trace's spans in the order in which they began. A step is indented by two spaces more than
// the one that it is part of.
type Steps []string

func (s Steps) String() string { return strings.Join(s, "\n") }

// Example returns the steps of the trace that a page shows, without the notes beside them.
func Example(t *testing.T, path string) Steps {
	t.Helper()
	_, block, _ := strings.Cut(string(page.Read(t, path).Section(t, "A slow attach")), "\n```text\n")
	block, _, found := strings.Cut(block, "```")
	if !found {
		t.Fatalf("%s has no trace", path)
	}
	var steps Steps
	for line := range strings.Lines(block) {
		indent := len(line) - len(strings.TrimLeft(line, " "))
		name, _, _ := strings.Cut(strings.TrimSpace(line), "  ")
		steps = append(steps, strings.Repeat(" ", indent)+name)
	}
	return steps
}

// Below returns the steps that are part of the first one with this name.
func (s Steps) Below(name string) Steps {
	from, to := s.part(name)
	below := slices.Clone(s[from:to])
	if len(below) == 0 {
		return nil
	}
	depth := depthOf(below[0])
	for i := range below {
		below[i] = below[i][depth:]
	}
	return below
}

// Without returns the steps without those that are part of the first one with this name.
func (s Steps) Without(name string) Steps {
	from, to := s.part(name)
	return slices.Delete(slices.Clone(s), from, to)
}

func (s Steps) part(name string) (from, to int) {
	at := slices.IndexFunc(s, func(step string) bool { return strings.TrimSpace(step) == name })
	if at < 0 {
		return len(s), len(s)
	}
	for to = at + 1; to < len(s) && depthOf(s[to]) > depthOf(s[at]); to++ {
	}
	return at + 1, to
}

func depthOf(step string) int { return len(step) - len(strings.TrimLeft(step, " ")) }

// Tree returns the steps of spans. Where the test's own program stands in for one of the driver, it gets that name.
func Tree(spans []sdktrace.ReadOnlySpan, program string) Steps {
	spans = slices.Clone(spans)
	slices.SortStableFunc(spans, func(a, b sdktrace.ReadOnlySpan) int { return a.StartTime().Compare(b.StartTime()) })
	depths := map[string]int{}
	var steps Steps
	for _, s := range spans {
		depth, inside := depths[s.Parent().SpanID().String()]
		if inside {
			depth++
		}
		depths[s.SpanContext().SpanID().String()] = depth
		name := strings.Replace(s.Name(), filepath.Base(os.Args[0])+" ", program+" ", 1)
		steps = append(steps, strings.Repeat("  ", depth)+name)
	}
	return steps
}
