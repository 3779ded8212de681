//go:build e2e

package host

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/cache/writecache"
	"github.com/escache/escache-csi/test/labtest"
)

const gib = 1 << 30

// largeGiB is the size of the cache whose memory TestMemoryOfALargeCache measures. 0: none.
var largeGiB = flag.Int64("memory-of", 0, "measure how much memory a cache of this many GiB takes; the lab needs `--disk` of twice as much")

// largeLimit bounds making the device: an emulated host takes minutes for the entries of all blocks.
const largeLimit = 40 * time.Minute

// TestMemoryOfALargeCache prints what the kernel takes for a cache that is too large for the other
// tests, and fails if escached counts less. The cache is made without escached, whose calls would not
// wait that long for an emulated host. Its replica, beside it, shows what DRBD takes.
func TestMemoryOfALargeCache(t *testing.T) {
	if *largeGiB == 0 {
		t.Skip("it needs a lab of its own: see hack/bench.sh")
	}
	lab := labtest.Open(t)
	h, size := lab.Hosts[0], *largeGiB*gib
	idle := h.Memory(t)
	v := lab.NewVolume(t, labtest.VolumeSpec{CacheBytes: size})
	v.Lay(t)
	laid := h.Memory(t)
	remove := assembleLarge(t, h, size)
	assembled := h.Memory(t)
	remove()
	removed := h.Memory(t)
	v.Remove(t, nil)

	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(table, "\nmemory of a cache of %d GiB, in MiB\n", *largeGiB)
	fmt.Fprintln(table, "\treplica laid\tconnected\tfor each GiB\t% of the cache\tleft after stop\t")
	inMiB := func(bytes int64) float64 { return float64(bytes) / mib }
	for _, row := range []struct {
		name string
		of   func(labtest.Memory) int64
	}{
		{"less is available", func(m labtest.Memory) int64 { return -m.Available }},
		{"vmalloc", func(m labtest.Memory) int64 { return m.Vmalloc }},
		{"dm-writecache's vmalloc", func(m labtest.Memory) int64 { return m.Writecache }},
		{"slab", func(m labtest.Memory) int64 { return m.Slab }},
		{"page tables", func(m labtest.Memory) int64 { return m.PageTables }},
	} {
		took := row.of(assembled) - row.of(laid)
		fmt.Fprintf(table, "%s\t%.1f\t%.1f\t%.2f\t%.2f\t%.1f\t\n", row.name, inMiB(row.of(laid)-row.of(idle)), inMiB(took),
			inMiB(took)/float64(*largeGiB), 100*float64(took)/float64(size), inMiB(row.of(removed)-row.of(laid)))
	}
	counts, took := writecache.New(nil, nil, nil).Memory(size), laid.Available-assembled.Available
	fmt.Fprintf(table, "escached counts\t\t%.1f\t%.2f\t%.2f\t\t\n", inMiB(counts), inMiB(counts)/float64(*largeGiB),
		100*float64(counts)/float64(size))
	if err := table.Flush(); err != nil {
		t.Error(err)
	}
	if kernel := assembled.Writecache - laid.Writecache; kernel <= 0 || counts < kernel {
		t.Errorf("escached counts %d bytes, and the kernel takes %d", counts, kernel)
	}
	if counts < took-took/50 {
		t.Errorf("escached counts %d bytes, and %d less are available: more than 2 %% too little", counts, took)
	}
}

// assembleLarge makes a cache of this size as escached does, on a logical volume and in front of a
// file.
func assembleLarge(t *testing.T, h *labtest.Host, size int64) (remove func()) {
	t.Helper()
	const (
		name    = "memory-of-a-large-cache"
		file    = "/run/" + name
		sectors = 64 * mib / 512
	)
	done := false
	remove = func() {
		if !done {
			done = true
			putRight(t, h, fmt.Sprintf("! dmsetup info %[1]s >/dev/null 2>&1 || dmsetup remove %[1]s; losetup -a | grep -F %[2]s | cut -d: -f1 |"+
				" xargs -r losetup -d; rm -f %[2]s; lvremove -qq -y escache/%[1]s", name, file))
		}
	}
	t.Cleanup(remove)
	h.Shell(t, fmt.Sprintf("lvcreate -qq -y -Wn -Zn -L %dB -n %s escache && truncate -s %d %s", size, name, 64*mib, file))
	origin := strings.TrimSpace(h.Shell(t, "device=$(losetup -f) && losetup $device "+file+" && echo $device"))
	ctx, cancel := context.WithTimeout(t.Context(), largeLimit)
	defer cancel()
	begin := time.Now()
	if _, err := h.Try(ctx, nil, "dmsetup", "create", name, "--table", fmt.Sprintf("0 %d writecache s %s /dev/escache/%s %d 2 start_sector %d",
		sectors, origin, name, cache.BlockBytes, cache.HeaderBytes/512)); err != nil {
		t.Fatal(err)
	}
	t.Logf("the kernel took %s to make it", time.Since(begin).Round(time.Second))
	return remove
}
