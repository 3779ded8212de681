// Command controller measures the csi-controller binary with a real Ceph and a real Kubernetes API
// server on loopback. It counts the volumes created and deleted per second through CSI, compares
// that with bare go-ceph calls on the same Ceph in the same run, and measures the memory for many
// volumes.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/escache/escache-csi/test/bench/bare"
)

func main() {
	binary := flag.String("binary", "bin/csi-controller", "the csi-controller to measure")
	volumes := flag.Int("volumes", 1000, "volumes per measurement")
	many := flag.Int("many", 10000, "volumes there are while memory is measured; 0 leaves that out")
	flag.Parse()
	log.SetLogger(logr.Discard())
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Stdout, *binary, *volumes, *many)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench controller:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer, binary string, volumes, many int) error {
	s, err := startStage(ctx, binary)
	if err != nil {
		return err
	}
	defer s.stop()
	d, err := s.drive(ctx)
	if err != nil {
		return err
	}
	err = rates(ctx, out, s, d, volumes)
	d.stop()
	if err != nil || many == 0 {
		return err
	}
	return memory(ctx, out, s, many)
}

const size = 1 << 30

// rates measures bare and CSI by turns, so that whatever else the machine does hits both.
func rates(ctx context.Context, out io.Writer, s *stage, d *driver, volumes int) error {
	raw, err := bare.Open(s.ceph.Conf(), pool)
	if err != nil {
		return err
	}
	defer raw.Close()
	fmt.Fprintf(out,
		"%d blank 1 GiB volumes per measurement; through CSI, each creation or deletion is two writes to the API server and one image;\n"+
			"bare deletion only moves to the trash, which csi-controller empties meanwhile\n", volumes)
	used := map[string]processors{}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "call\tin flight\tper second\tp50 ms\tp95 ms\tp99 ms\tbare per second\tratio\t")
	for _, inFlight := range []int{1, 8, 25, 100} {
		name := func(kind string) func(int) string {
			return func(i int) string { return fmt.Sprintf("%s-%d-%d", kind, inFlight, i) }
		}
		barely, ours := name("bare"), name("pvc")
		measured := map[string]result{}
		for _, step := range []struct {
			what string
			do   func(i int) error
		}{
			{"bare create", func(i int) error { return raw.Create(barely(i), size) }},
			{"CreateVolume", func(i int) error { return d.create(ctx, ours(i)) }},
			{"bare delete", func(i int) error { return raw.Trash(barely(i)) }},
			{"DeleteVolume", func(i int) error { return d.delete(ctx, ours(i)) }},
		} {
			before, err := spent()
			if err != nil {
				return err
			}
			if measured[step.what], err = measure(volumes, inFlight, step.do); err != nil {
				return fmt.Errorf("%s with %d in flight: %w", step.what, inFlight, err)
			}
			after, err := spent()
			if err != nil {
				return err
			}
			used[step.what] = after.since(before)
		}
		row(w, "CreateVolume", inFlight, measured["CreateVolume"], measured["bare create"])
		row(w, "DeleteVolume", inFlight, measured["DeleteVolume"], measured["bare delete"])
		if err := raw.EmptyTrash("bare-", 8); err != nil {
			return err
		}
		if err := d.waitForEmptyTrash(ctx); err != nil {
			return err
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(out, "the bound: time of one of %d processors for each call, with 100 in flight, by program\n", runtime.NumCPU())
	for _, what := range []string{"bare create", "CreateVolume", "bare delete", "DeleteVolume"} {
		used[what].print(out, what, volumes)
	}
	return nil
}

func row(w io.Writer, call string, inFlight int, r, raw result) {
	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	fmt.Fprintf(w, "%s\t%d\t%.0f\t%.1f\t%.1f\t%.1f\t%.0f\t%.2f\t\n", call, inFlight, r.rate, ms(r.percentile(50)), ms(r.percentile(95)),
		ms(r.percentile(99)), raw.rate, r.rate/raw.rate)
}

// result is the rate of many calls, and how long each took, sorted.
type result struct {
	rate float64
	took []time.Duration
}

func (r result) percentile(p int) time.Duration { return r.took[min(len(r.took)*p/100, len(r.took)-1)] }

func measure(n, inFlight int, do func(i int) error) (result, error) {
	r := result{took: make([]time.Duration, n)}
	failures := make([]error, n)
	work := make(chan int)
	var wait sync.WaitGroup
	began := time.Now()
	for range inFlight {
		wait.Go(func() {
			for i := range work {
				begun := time.Now()
				failures[i] = do(i)
				r.took[i] = time.Since(begun)
			}
		})
	}
	for i := range n {
		work <- i
	}
	close(work)
	wait.Wait()
	r.rate = float64(n) / time.Since(began).Seconds()
	slices.Sort(r.took)
	for _, err := range failures {
		if err != nil {
			return r, err
		}
	}
	return r, nil
}

// memory starts a driver that finds many volumes, lists them all and makes some more.
func memory(ctx context.Context, out io.Writer, s *stage, many int) error {
	if err := s.fill(ctx, many); err != nil {
		return err
	}
	began := time.Now()
	d, err := s.drive(ctx)
	if err != nil {
		return err
	}
	defer d.stop()
	serving := time.Since(began)
	listed := 0
	for token := ""; ; {
		r, err := d.ListVolumes(ctx, &csi.ListVolumesRequest{MaxEntries: 1000, StartingToken: token})
		if err != nil {
			return err
		}
		listed += len(r.GetEntries())
		if token = r.GetNextToken(); token == "" {
			break
		}
	}
	if _, err := measure(200, 25, func(i int) error { return d.create(ctx, fmt.Sprintf("pvc-more-%d", i)) }); err != nil {
		return err
	}
	now, peak, err := d.memory()
	if err != nil {
		return err
	}
	if _, err = fmt.Fprintf(out, "with %d volumes: serving %.1f s after start, %d listed; resident %d MiB, at most %d MiB (limit %d)\n",
		many, serving.Seconds(), listed, now>>20, peak>>20, mostMemory>>20); err != nil {
		return err
	}
	return fits(peak)
}

// mostMemory is what csi-controller may have resident at any time, whatever it does with 10,000 volumes.
const mostMemory = 200 << 20

// fits returns an error if csi-controller has needed more memory than it may.
func fits(peak int64) error {
	if peak > mostMemory {
		return fmt.Errorf("csi-controller has needed %d bytes of memory, and may need %d", peak, mostMemory)
	}
	return nil
}
