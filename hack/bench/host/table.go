package main

import (
	"fmt"
	"os"
	"slices"
	"text/tabwriter"
)

// Aims of the project. They are printed beside what was measured, and a miss is for the reader to see: a busy machine is no failed build.
const (
	aimSync  = 0.9
	aimFlush = 0.8
)

func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}

// ratios compares round by round, since rounds have different company.
func ratios(a, b []float64) []float64 {
	var all []float64
	for i := range a {
		all = append(all, a[i]/b[i])
	}
	return all
}

func column[T any](results []T, value func(T) float64) []float64 {
	var values []float64
	for _, r := range results {
		values = append(values, value(r))
	}
	return values
}

func perSecond(r syncResult) float64 { return r.PerSecond }

func printSync(candidates []candidate, results [][]syncResult) {
	fmt.Printf("\n4 KiB writes, each stable before the next (medians of %d rounds, taken in turns)\n", len(results[0]))
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "device\twrites/s\tp50 ms\tp99 ms\tescache against it\t")
	own := column(results[0], perSecond)
	for i, c := range candidates {
		fmt.Fprintf(w, "%s\t%.0f\t%.2f\t%.2f\t%.2f\t\n", c.name(), median(column(results[i], perSecond)),
			median(column(results[i], func(r syncResult) float64 { return float64(r.P50Micros) / 1000 })),
			median(column(results[i], func(r syncResult) float64 { return float64(r.P99Micros) / 1000 })),
			median(ratios(own, column(results[i], perSecond))))
	}
	w.Flush()
	fmt.Printf("aim: escache ≥ %.1f × bare DRBD\n", aimSync)
}

func printSequential(candidates []candidate, results [][]float64, flushes []float64) {
	fmt.Printf("\nSequential writes of %d MiB, and flush of the same\n", sequentialBytes/mib)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "what\tMiB/s\tagainst plain RBD\t")
	plain := results[len(results)-1]
	for i, c := range candidates {
		fmt.Fprintf(w, "write to %s\t%.1f\t%.2f\t\n", c.name(), median(results[i])/mib, median(ratios(results[i], plain)))
	}
	fmt.Fprintf(w, "flush of escache\t%.1f\t%.2f\t\n", median(flushes)/mib, median(ratios(flushes, plain)))
	w.Flush()
	fmt.Printf("aim: flush ≥ %.1f × sequential write of plain RBD\n", aimFlush)
}
