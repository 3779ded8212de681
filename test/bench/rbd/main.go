// Command rbd measures the overhead of internal/rbd: images created and deleted per second,
// compared with bare go-ceph calls on the same Ceph in the same run, with different numbers of
// parallel calls. It starts its own Ceph on loopback.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/escache/escache-csi/internal/rbd"
	"github.com/escache/escache-csi/test/bench/bare"
	"github.com/escache/escache-csi/test/internal/microceph"
)

func main() {
	images := flag.Int("images", 300, "images per measurement")
	rounds := flag.Int("rounds", 3, "measurements of each kind, of which the median counts")
	connections := flag.Int("connections", 0, "connections of internal/rbd; 0: its default")
	flag.Parse()
	if err := run(context.Background(), os.Stdout, *images, *rounds, *connections); err != nil {
		fmt.Fprintln(os.Stderr, "bench rbd:", err)
		os.Exit(1)
	}
}

const clusterID = "bench"

func run(ctx context.Context, out io.Writer, images, rounds, connections int) error {
	dir, err := os.MkdirTemp("", "bench-rbd-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	ceph, err := microceph.Start(ctx, microceph.Config{Dir: filepath.Join(dir, "ceph"), Address: "127.0.0.1"})
	if err != nil {
		return err
	}
	defer ceph.Stop(ctx)
	config, err := configDir(dir, ceph)
	if err != nil {
		return err
	}
	clusters := rbd.NewClusters(rbd.Options{Dir: config, Connections: connections, CallTimeout: time.Minute})
	defer clusters.Close()
	cluster, err := clusters.Get(clusterID)
	if err != nil {
		return err
	}
	raw, err := bare.Open(ceph.Conf(), pool)
	if err != nil {
		return err
	}
	defer raw.Close()
	b := &bench{cluster: cluster, bare: raw, images: images, rounds: rounds}
	return b.table(ctx, out, clusters)
}

func configDir(dir string, ceph *microceph.Cluster) (string, error) {
	config := filepath.Join(dir, "clusters")
	if err := os.MkdirAll(filepath.Join(config, clusterID), 0o700); err != nil {
		return "", err
	}
	for from, to := range map[string]string{ceph.Conf(): "ceph.conf", ceph.AdminKeyring(): "keyring"} {
		text, err := os.ReadFile(from)
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(config, clusterID, to), text, 0o600); err != nil {
			return "", err
		}
	}
	return config, nil
}

const pool = "rbd"

type bench struct {
	cluster *rbd.Cluster
	bare    *bare.Pool
	images  int
	rounds  int
	made    int
}

func (b *bench) table(ctx context.Context, out io.Writer, clusters *rbd.Clusters) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(out, "images per second, median of %d runs of %d blank 1 GiB images\n", b.rounds, b.images)
	fmt.Fprintln(w, "in flight\tbare create\tinternal/rbd\tratio\tbare delete\tinternal/rbd\tratio\t")
	for _, inFlight := range []int{1, 8, 25, 32, 100} {
		var rates [4][]float64
		for range b.rounds {
			round, err := b.round(ctx, inFlight)
			if err != nil {
				return err
			}
			for i := range rates {
				rates[i] = append(rates[i], round[i])
			}
		}
		m := [4]float64{median(rates[0]), median(rates[1]), median(rates[2]), median(rates[3])}
		fmt.Fprintf(w, "%d\t%.0f\t%.0f\t%.2f\t%.0f\t%.0f\t%.2f\t\n", inFlight, m[0], m[1], m[1]/m[0], m[2], m[3], m[3]/m[2])
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return b.emptying(ctx, out, clusters)
}

// round measures bare and internal/rbd by turns, so that whatever else the machine does hits both.
func (b *bench) round(ctx context.Context, inFlight int) (rates [4]float64, err error) {
	b.made++
	names := func(kind string) []string {
		out := make([]string, b.images)
		for i := range out {
			out[i] = fmt.Sprintf("%s-%d-%d", kind, b.made, i)
		}
		return out
	}
	bares, ours := names("bare"), names("ours")
	ref := func(name string) rbd.ImageRef { return rbd.ImageRef{Pool: pool, Name: name} }
	for i, step := range []struct {
		names []string
		do    func(name string) error
	}{
		{bares, func(name string) error { return b.bare.Create(name, size) }},
		{ours, func(name string) error {
			return b.cluster.CreateImage(ctx, rbd.ImageSpec{ImageRef: ref(name), SizeBytes: size})
		}},
		{bares, func(name string) error { return b.bare.Trash(name) }},
		{ours, func(name string) error { return b.cluster.DeleteImage(ctx, ref(name)) }},
	} {
		took, err := each(step.names, inFlight, step.do)
		if err != nil {
			return rates, err
		}
		rates[i] = float64(b.images) / took.Seconds()
	}
	return rates, b.bare.EmptyTrash("", inBackground)
}

const (
	size         = 1 << 30
	inBackground = 8
)

// emptying measures the background work that follows deletes.
func (b *bench) emptying(ctx context.Context, out io.Writer, clusters *rbd.Clusters) error {
	names := make([]string, b.images)
	for i := range names {
		names[i] = fmt.Sprintf("trash-%d", i)
	}
	for _, do := range []func(string) error{
		func(name string) error { return b.bare.Create(name, size) },
		func(name string) error { return b.cluster.DeleteImage(ctx, rbd.ImageRef{Pool: pool, Name: name}) },
	} {
		if _, err := each(names, inBackground, do); err != nil {
			return err
		}
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	began := time.Now()
	go clusters.Run(ctx, slog.New(slog.NewTextHandler(os.Stderr, nil)))
	for {
		left, err := b.cluster.TrashedImages(ctx, pool)
		if err != nil {
			return err
		}
		if len(left) == 0 {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	_, err := fmt.Fprintf(out, "trash emptied in the background: %.0f images per second\n", float64(b.images)/time.Since(began).Seconds())
	return err
}

func each(names []string, inFlight int, do func(string) error) (time.Duration, error) {
	began := time.Now()
	work := make(chan string)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var failed error
	for range inFlight {
		wg.Go(func() {
			for name := range work {
				if err := do(name); err != nil {
					mu.Lock()
					failed = fmt.Errorf("%s: %w", name, err)
					mu.Unlock()
				}
			}
		})
	}
	for _, name := range names {
		work <- name
	}
	close(work)
	wg.Wait()
	return time.Since(began), failed
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}
