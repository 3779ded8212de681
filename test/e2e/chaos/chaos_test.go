//go:build e2e

// Package chaos breaks every part of the lab at every moment that matters, under a checker that
// knows what was acknowledged. It runs inside a lab: `lab run -- chaos.test`. One row: -test.run
// 'TestChaos/flush/Ceph_stalled'.
package chaos

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/escache/escache-csi/test/labtest"
)

const (
	// runsVariable says how often every row runs.
	runsVariable = "CHAOS_RUNS"
	// coreVariable leaves only the rows of the core, for a run that must not take long.
	coreVariable = "CHAOS_CORE"
)

// row is one fault at one moment.
type row struct {
	when, what string
	core       bool
	run        func(*scene)
}

func (r row) name() string { return r.when + "/" + r.what }

// tally is what came of a row.
type tally struct {
	row                row
	runs, failed       int
	acks, lost, double int
	recovered          []time.Duration
}

// TestChaos runs every row and prints the table. A row that loses an acknowledged block, or has two
// writers, fails.
func TestChaos(t *testing.T) {
	runs := 1
	if text := os.Getenv(runsVariable); text != "" {
		var err error
		if runs, err = strconv.Atoi(text); err != nil || runs < 1 {
			t.Fatalf("%s=%q is not a number of runs", runsVariable, text)
		}
	}
	rows := slices.DeleteFunc(rows(), func(r row) bool { return os.Getenv(coreVariable) != "" && !r.core })
	lab := labtest.Open(t)
	tallies := make([]tally, len(rows))
	for range runs {
		for i, r := range rows {
			tallies[i].row = r
			runRow(t, lab, &tallies[i])
		}
	}
	fmt.Print(table(tallies))
}

// runRow runs one row and tells at once what came of it: whatever ends the run before its table is
// printed, this is known. Only after a subtest is it known whether its clean-up failed, too.
func runRow(t *testing.T, lab *labtest.Lab, into *tally) {
	var s *scene // stays nil where -test.run leaves the row out
	begin := time.Now()
	passed := t.Run(into.row.name(), func(t *testing.T) {
		s = &scene{T: t, lab: lab, n1: lab.Hosts[0], n2: lab.Hosts[1], n3: lab.Hosts[2]}
		s.open()
		into.row.run(s)
		if !t.Failed() {
			lab.AssertNothingLeft(t)
		}
	})
	if s == nil {
		return
	}
	into.add(s, passed)
	verdict := "ok"
	if !passed {
		verdict = "FAILED"
	}
	fmt.Printf("%-6s %s: %s; in use again after %s\n", verdict, into.row.name(), time.Since(begin).Round(time.Second), s.recovered)
}

func (y *tally) add(s *scene, passed bool) {
	y.runs++
	if !passed {
		y.failed++
	}
	if s.check != nil {
		y.acks += len(s.check.Acks())
		y.lost += s.check.Lost
		y.double += s.check.Double
	}
	y.recovered = append(y.recovered, s.recovered...)
}

// table is what `make chaos` is for.
func table(tallies []tally) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n%-12s %-52s %5s %6s %8s %5s %7s %12s %9s\n", "when", "what", "runs", "failed", "acks", "lost", "double",
		"usable after", "slowest")
	var all tally
	rows := 0
	for _, r := range tallies {
		if r.runs == 0 {
			continue
		}
		rows++
		middle, slowest := "", ""
		if n := len(r.recovered); n > 0 {
			slices.Sort(r.recovered)
			middle, slowest = seconds(r.recovered[(n-1)/2]), seconds(r.recovered[n-1])
		}
		fmt.Fprintf(&b, "%-12s %-52s %5d %6d %8d %5d %7d %12s %9s\n", r.row.when, r.row.what, r.runs, r.failed, r.acks, r.lost, r.double,
			middle, slowest)
		all.runs, all.failed, all.acks = all.runs+r.runs, all.failed+r.failed, all.acks+r.acks
		all.lost, all.double = all.lost+r.lost, all.double+r.double
	}
	fmt.Fprintf(&b, "%d rows, %d runs, %d failed; %d writes acknowledged, %d blocks lost, %d double writes\n", rows, all.runs, all.failed,
		all.acks, all.lost, all.double)
	return b.String()
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }
