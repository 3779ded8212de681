//go:build e2e

// Package chaos breaks every part of the lab at every moment that matters, under a checker that
// knows what was acknowledged. It runs inside a lab: `lab run -- chaos.test`. One row: -test.run
// 'TestChaos/flush/Ceph_stalled'.
package chaos

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/escache/escache-csi/test/labtest"
)

// row is one fault at one moment.
type row struct {
	when, what string
	core       bool
	run        func(*scene)
}

func (r row) name() string { return r.when + "/" + r.what }

// TestChaos runs every row and prints the table. A row that loses an acknowledged block, or has two
// writers, fails.
func TestChaos(t *testing.T) {
	rows := slices.DeleteFunc(rows(), func(r row) bool { return labtest.CoreOnly() && !r.core })
	lab := labtest.Open(t)
	tallies := make([]labtest.Tally, len(rows))
	for range labtest.Runs(t) {
		for i, r := range rows {
			tallies[i].When, tallies[i].What = r.when, r.what
			runRow(t, lab, r, &tallies[i])
		}
	}
	fmt.Print(labtest.Table(tallies))
}

// runRow runs one row and tells at once what came of it: whatever ends the run before its table is
// printed, this is known. Only after a subtest is it known whether its clean-up failed, too.
func runRow(t *testing.T, lab *labtest.Lab, r row, into *labtest.Tally) {
	var s *scene // stays nil where -test.run leaves the row out
	begin := time.Now()
	passed := t.Run(r.name(), func(t *testing.T) {
		s = &scene{T: t, lab: lab, n1: lab.Hosts[0], n2: lab.Hosts[1], n3: lab.Hosts[2]}
		s.open()
		r.run(s)
		if !t.Failed() {
			lab.AssertNothingLeft(t)
		}
	})
	if s == nil {
		return
	}
	into.Add(s.recovered, passed, s.check)
	verdict := "ok"
	if !passed {
		verdict = "FAILED"
	}
	fmt.Printf("%-6s %s: %s; in use again after %s\n", verdict, r.name(), time.Since(begin).Round(time.Second), s.recovered)
}
