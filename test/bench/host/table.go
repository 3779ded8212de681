package main

import (
	"fmt"
	"os"
	"text/tabwriter"

	"github.com/escache/escache-csi/internal/benchmark"
)

// Aims of the project. They are printed beside what was measured, and a miss is for the reader to
// see: a busy machine is no failed build.
const (
	aimSync  = 0.9
	aimFlush = 0.8
)

// syncWriters are the numbers of programs that write at the same time.
var syncWriters = []int{1, 8}

const flushName = "flush of escache"

func writeTo(c candidate) string { return "write to " + c.name() }

// results holds one value a round for each thing measured.
type results struct {
	sync       map[syncKey][]syncResult
	sequential map[string][]float64 // bytes a second
}

type syncKey struct {
	name    string
	work    string
	writers int
}

func (r *results) addSync(c candidate, w work, writers int, result syncResult) {
	if r.sync == nil {
		r.sync = map[syncKey][]syncResult{}
	}
	key := syncKey{c.name(), w.name, writers}
	r.sync[key] = append(r.sync[key], result)
}

func (r *results) addSequential(name string, bytesPerSecond float64) {
	if r.sequential == nil {
		r.sequential = map[string][]float64{}
	}
	r.sequential[name] = append(r.sequential[name], bytesPerSecond)
}

// print compares everything with the candidates: the first is escache, the last plain RBD.
func (r *results) print(candidates []candidate) {
	rounds := len(r.sequential[flushName])
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, work := range works {
		for _, writers := range syncWriters {
			fmt.Fprintf(w, "\n%s, %d at a time (medians of %d rounds, taken in turns)\n", work.name, writers, rounds)
			fmt.Fprintln(w, "device\twrites/s\tp50 ms\tp99 ms\tDRBD requests for each\tescache against it\t")
			own := benchmark.Column(r.sync[syncKey{candidates[0].name(), work.name, writers}], syncResult.Rate)
			for _, c := range candidates {
				all := r.sync[syncKey{c.name(), work.name, writers}]
				fmt.Fprintf(w, "%s\t%.0f\t%.2f\t%.2f\t%.2f\t%.2f\t\n", c.name(), benchmark.Median(benchmark.Column(all, syncResult.Rate)),
					benchmark.Median(benchmark.Column(all, syncResult.P50Millis)),
					benchmark.Median(benchmark.Column(all, syncResult.P99Millis)),
					benchmark.Median(benchmark.Column(all, replicatedPerWrite)),
					benchmark.Median(benchmark.Ratios(own, benchmark.Column(all, syncResult.Rate))))
			}
			w.Flush()
		}
	}
	fmt.Printf("aim: escache ≥ %.1f × bare DRBD in each table\n", aimSync)

	fmt.Printf("\nSequential writes of %d MiB, and flush of the same\n", sequentialBytes/mib)
	fmt.Fprintln(w, "what\tMiB/s\tagainst plain RBD\t")
	names := []string{flushName}
	for _, c := range candidates {
		names = append(names, writeTo(c))
	}
	plain := r.sequential[names[len(names)-1]]
	for _, name := range names {
		rates := r.sequential[name]
		fmt.Fprintf(w, "%s\t%.1f\t%.2f\t\n", name, benchmark.Median(rates)/mib, benchmark.Median(benchmark.Ratios(rates, plain)))
	}
	w.Flush()
	fmt.Printf("aim: flush ≥ %.1f × sequential write of plain RBD\n", aimFlush)
}
