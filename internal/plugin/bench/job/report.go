package job

import (
	"fmt"
	"io"
	"strings"

	"github.com/escache/escache-csi/internal/benchmark"
)

// Report is what was measured, with the medians of all rounds.
type Report struct {
	Node           string  `json:"node"`
	SizeBytes      int64   `json:"sizeBytes"`
	Rounds         int     `json:"rounds"`
	SecondsOfATurn float64 `json:"secondsOfATurn"`
	Tests          []Row   `json:"tests"`
}

// Row is one test.
type Row struct {
	benchmark.Test

	Volumes []Figures `json:"volumes"`
	// Ratio is the rate of the first volume divided by that of the second: the median of the ratios of
	// all rounds. 0: there is one volume.
	Ratio float64 `json:"ratio,omitempty"`
}

// Figures are those of one volume: medians of its turns, and the turns.
type Figures struct {
	Volume         string           `json:"volume"`
	PerSecond      float64          `json:"perSecond"`
	BytesPerSecond float64          `json:"bytesPerSecond"`
	P50Millis      float64          `json:"p50Millis"`
	P99Millis      float64          `json:"p99Millis"`
	Turns          []benchmark.Turn `json:"turns"`
}

// NewReport takes the medians.
func NewReport(node string, plan benchmark.Plan, result benchmark.Result) Report {
	report := Report{Node: node, SizeBytes: plan.Bytes, Rounds: plan.Rounds, SecondsOfATurn: plan.Turn.Seconds()}
	for _, outcome := range result.Tests {
		row := Row{Test: outcome.Test}
		for i, turns := range outcome.Turns {
			median := func(value func(benchmark.Turn) float64) float64 {
				return benchmark.Median(benchmark.Column(turns, value))
			}
			row.Volumes = append(row.Volumes, Figures{
				Volume: result.Volumes[i], Turns: turns,
				PerSecond: median(benchmark.Turn.Rate), BytesPerSecond: median(benchmark.Turn.BytesPerSecond),
				P50Millis: median(benchmark.Turn.P50Millis), P99Millis: median(benchmark.Turn.P99Millis),
			})
		}
		if len(outcome.Turns) == 2 {
			row.Ratio = benchmark.Median(benchmark.Ratios(
				benchmark.Column(outcome.Turns[0], benchmark.Turn.Rate), benchmark.Column(outcome.Turns[1], benchmark.Turn.Rate)))
		}
		report.Tests = append(report.Tests, row)
	}
	return report
}

// mostName is how many columns the name of a volume has. All of a line are 80.
const mostName = 24

// legend says what the tests do, and what the figures are.
const legend = `sync write: 4 KiB to places all over a file, with O_DSYNC, past the page cache.
append: 4 KiB to the end of a file, then fdatasync.
random read: 4 KiB from places all over a file, past the page cache.
sequential write: 1 MiB at a time, past the page cache, stable at the end.
×8: eight at the same time.
RATE: operations a second; of sequential writes MiB a second.
P50, P99: milliseconds that half of the operations, or 99 of 100, do not exceed.
`

// Print writes the report for people, in 80 columns.
func (r Report) Print(out io.Writer) error {
	var text strings.Builder
	fmt.Fprintf(&text, "Node %s, medians of %d rounds, %g s for each turn\n\n", r.Node, r.Rounds, r.SecondsOfATurn)
	fmt.Fprintf(&text, "%-19s  %-*s %9s %8s %8s", "TEST", mostName, "VOLUME", "RATE", "P50", "P99")
	if r.compares() {
		fmt.Fprintf(&text, " %6s", "RATIO")
	}
	text.WriteString("\n")
	for _, row := range r.Tests {
		name := fmt.Sprintf("%s ×%d", row.Name, row.Workers)
		for i, f := range row.Volumes {
			rate := f.PerSecond
			if row.Large() {
				rate = f.BytesPerSecond / (1 << 20)
			}
			fmt.Fprintf(&text, "%-19s  %-*s %9s %8.2f %8.2f", name, mostName, cut(f.Volume), figure(rate), f.P50Millis, f.P99Millis)
			if i == 0 && r.compares() {
				fmt.Fprintf(&text, " %6.2f", row.Ratio)
			}
			text.WriteString("\n")
			name = ""
		}
	}
	text.WriteString("\n" + legend)
	if r.compares() {
		text.WriteString("RATIO: rate of the upper volume divided by that of the lower one.\n")
	}
	_, err := io.WriteString(out, text.String())
	return err
}

func (r Report) compares() bool { return len(r.Tests) > 0 && len(r.Tests[0].Volumes) == 2 }

// figure has three digits at least.
func figure(rate float64) string {
	if rate < 100 {
		return fmt.Sprintf("%.1f", rate)
	}
	return fmt.Sprintf("%.0f", rate)
}

// cut shortens a name in its middle: names often differ at the end.
func cut(name string) string {
	runes := []rune(name)
	if len(runes) <= mostName {
		return name
	}
	half := (mostName - 1) / 2
	return string(runes[:half]) + "…" + string(runes[len(runes)-(mostName-1-half):])
}
