// Command host compares, in a running lab, an escache volume with its parts: a bare DRBD device on
// the same two hosts, and an RBD image without a cache. The hosts are emulated, so only the ratios
// within one run mean anything, not the numbers.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/escache/escache-csi/test/labtest"
)

func main() { os.Exit(program()) }

func program() int {
	rounds := flag.Int("rounds", 5, "how often each candidate has its turn")
	duration := flag.Duration("duration", 4*time.Second, "how long one turn of synchronous writes is")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if !run(ctx, func(r *runner) { bench(r, *rounds, *duration) }) {
		return 1
	}
	return 0
}

const mib = 1 << 20

func bench(r *runner, rounds int, duration time.Duration) {
	lab := labtest.Open(r)
	cache := newCache(r, lab)
	startBareDRBD(r, lab)
	candidates := []candidate{cache, bareDRBD{}, newBareRBD(r, lab)}
	before, begin := lab.Hosts[0].ServiceUse(r), time.Now()
	idle(r.Context())
	after, elapsed := lab.Hosts[0].ServiceUse(r), time.Since(begin)

	// Candidates take turns, so whatever else the machine does meets all of them.
	var results results
	for round := range rounds {
		r.Logf("devices, round %d of %d", round+1, rounds)
		syncTurns(r, lab.Hosts[0], candidates, &results, duration, works[:1])
		for _, c := range candidates {
			results.addSequential(writeTo(c), benchSequential(r, lab.Hosts[0], c.device()))
			if c == candidate(cache) {
				results.addSequential(flushName, cache.timedFlush(r))
			}
			c.flush(r)
		}
	}
	for _, c := range candidates {
		mount(r, lab.Hosts[0], c)
		c.flush(r)
	}
	for round := range rounds {
		r.Logf("files, round %d of %d", round+1, rounds)
		syncTurns(r, lab.Hosts[0], candidates, &results, duration, works[1:])
	}
	results.print(candidates)
	fmt.Printf("\nescached on %s: %s; idle CPU %.2f %% of an emulated core\n",
		lab.Hosts[0].Name, after, 100*(after.CPU-before.CPU).Seconds()/elapsed.Seconds())
}

func syncTurns(r *runner, h *labtest.Host, candidates []candidate, into *results, duration time.Duration, all []work) {
	for _, w := range all {
		for _, writers := range syncWriters {
			for _, c := range candidates {
				into.addSync(c, w, writers, benchSync(r, h, c, w, duration, writers))
				c.flush(r)
			}
		}
	}
}

// idle is how long escached is watched doing nothing.
func idle(ctx context.Context) {
	select {
	case <-time.After(20 * time.Second):
	case <-ctx.Done():
	}
}
