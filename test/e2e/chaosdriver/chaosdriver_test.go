//go:build e2e

// Package chaosdriver breaks hosts, disks, programs and records while the whole driver is at work:
// csi-controller, csi-node, kubelet and API server take part where they decide. A checker outside
// of the hosts knows what was acknowledged. It runs inside a lab: `lab up --driver`, `lab run --
// chaosdriver.test`. One row: -test.run 'TestChaosDriver/frozen/the_holder'. Package chaos does the
// same to escached alone.
package chaosdriver

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/escache/escache-csi/test/labtest"
)

// row is one fault, or two that overlap, and what has to come of it.
type row struct {
	when, what string
	core       bool
	run        func(*scene)
}

func (r row) name() string { return r.when + "/" + r.what }

// rows of the matrix.
func rows() []row {
	return slices.Concat(restartRows(), diskRows(), forcedRows(), frozenRows(), powerRows(), thirdHostRows(), repairRows(), stepRows(),
		arbiterRows(), cephRows(), clockRows(), recordRows(), rebuildRows(), manyRows(), witnessRows(), maintenanceRows())
}

// TestChaosDriver runs every row and prints the table. A row that loses an acknowledged block, or
// has two writers, fails.
func TestChaosDriver(t *testing.T) {
	rows := slices.DeleteFunc(rows(), func(r row) bool { return labtest.CoreOnly() && !r.core })
	w := open(t)
	tallies := make([]labtest.Tally, len(rows))
	for range labtest.Runs(t) {
		for i, r := range rows {
			tallies[i].When, tallies[i].What = r.when, r.what
			runRow(t, w, r, &tallies[i])
		}
	}
	fmt.Print(labtest.Table(tallies))
}

// runRow runs one row and tells at once what came of it: whatever ends the run before its table is
// printed, this is known.
func runRow(t *testing.T, w *world, r row, into *labtest.Tally) {
	var s *scene // stays nil where -test.run leaves the row out
	begin := time.Now()
	passed := t.Run(r.name(), func(t *testing.T) {
		t.Cleanup(func() { w.cleanUp(t) }) // after the writers have ended
		s = w.newScene(t)
		t.Cleanup(func() { s.watch.end(t) })
		s.open()
		r.run(s)
	})
	if s == nil {
		return
	}
	into.Add(s.recovered, passed, s.checks()...)
	verdict := "ok"
	if !passed {
		verdict = "FAILED"
	}
	fmt.Printf("%-6s %s: %s; in use again after %s\n", verdict, r.name(), time.Since(begin).Round(time.Second), s.recovered)
}

// checks are the checkers of all volumes of a row.
func (s *scene) checks() []*labtest.Checker {
	all := []*labtest.Checker{s.check}
	for _, o := range s.others {
		all = append(all, o.check)
	}
	return all
}
