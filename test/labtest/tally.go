package labtest

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Tally is what came of a row of a fault matrix, over all of its runs.
type Tally struct {
	When, What   string
	Runs, Failed int
	// Acks are the writes that were acknowledged; Lost and Double are as in Checker.
	Acks, Lost, Double int
	// Recovered is how long each fault kept the volume from being used.
	Recovered []time.Duration
}

// Add counts one run, with a checker for each volume. It is nil where the run did not get as far as
// having one.
func (y *Tally) Add(recovered []time.Duration, passed bool, checks ...*Checker) {
	y.Runs++
	if !passed {
		y.Failed++
	}
	for _, check := range checks {
		if check != nil {
			y.Acks += len(check.Acks())
			y.Lost += check.Lost
			y.Double += check.Double
		}
	}
	y.Recovered = append(y.Recovered, recovered...)
}

// Table shows all rows that have run, and their sum.
func Table(tallies []Tally) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n%-12s %-64s %5s %6s %8s %5s %7s %12s %9s\n", "when", "what", "runs", "failed", "acks", "lost", "double",
		"usable after", "slowest")
	var all Tally
	rows := 0
	for _, r := range tallies {
		if r.Runs == 0 {
			continue
		}
		rows++
		middle, slowest := "", ""
		if n := len(r.Recovered); n > 0 {
			slices.Sort(r.Recovered)
			middle, slowest = seconds(r.Recovered[(n-1)/2]), seconds(r.Recovered[n-1])
		}
		fmt.Fprintf(&b, "%-12s %-64s %5d %6d %8d %5d %7d %12s %9s\n", r.When, r.What, r.Runs, r.Failed, r.Acks, r.Lost, r.Double,
			middle, slowest)
		all.Runs, all.Failed, all.Acks = all.Runs+r.Runs, all.Failed+r.Failed, all.Acks+r.Acks
		all.Lost, all.Double = all.Lost+r.Lost, all.Double+r.Double
	}
	fmt.Fprintf(&b, "%d rows, %d runs, %d failed; %d writes acknowledged, %d blocks lost, %d double writes\n", rows, all.Runs, all.Failed,
		all.Acks, all.Lost, all.Double)
	return b.String()
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }
