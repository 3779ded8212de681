package writecache

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/devmapper"
)

// target is the type of the kernel's target.
const target = "writecache"

// table is the kernel's description of one cache.
type table struct {
	// bytes is the size of the device.
	bytes int64
	// origin and disk are paths, or MAJOR:MINOR in what the kernel prints.
	origin string
	disk   string
	// options: a zero watermark leaves the kernel's default. The kernel's "cleaner" is
	// write-through.
	options cache.Options
}

// The kernel's defaults, in percent (drivers/md/dm-writecache.c, HIGH_WATERMARK and LOW_WATERMARK).
const (
	defaultHighWatermark = 50
	defaultLowWatermark  = 45
)

// CheckOptions implements cache.Engine: write-back must stop below the mark at which it starts, and
// dm-writecache keeps no order in it.
func (e *Engine) CheckOptions(o cache.Options) error {
	high, low := cmp.Or(o.HighWatermark, defaultHighWatermark), cmp.Or(o.LowWatermark, defaultLowWatermark)
	if low > high {
		return fmt.Errorf("lowWatermark %d is above highWatermark %d", low, high)
	}
	if o.StrictOrder {
		return errors.New("writeBackOrder strict needs the cache engine log: writecache writes back in no order")
	}
	return nil
}

// tableOf rounds the size down to whole blocks.
func tableOf(s cache.Spec) table {
	return table{
		bytes: s.Bytes / cache.BlockBytes * cache.BlockBytes, origin: s.Origin, disk: s.Disk.Path, options: s.Options,
	}
}

// String returns the line that dmsetup takes.
func (t table) String() string {
	opts := []string{"start_sector", strconv.Itoa(superblockAt / devmapper.SectorBytes)}
	o := t.options
	if o.HighWatermark > 0 {
		opts = append(opts, "high_watermark", strconv.Itoa(o.HighWatermark))
	}
	if o.LowWatermark > 0 {
		opts = append(opts, "low_watermark", strconv.Itoa(o.LowWatermark))
	}
	if o.MaxAgeSeconds > 0 {
		opts = append(opts, "max_age", strconv.Itoa(o.MaxAgeSeconds*1000))
	}
	if o.Mode == cache.Writethrough {
		opts = append(opts, "cleaner")
	}
	return fmt.Sprintf("0 %d %s s %s %s %d %d %s", t.bytes/devmapper.SectorBytes, target, t.origin, t.disk,
		cache.BlockBytes, len(opts), strings.Join(opts, " "))
}

// parseTable reads what the kernel prints behind the target's type.
func parseTable(bytes int64, text string) (table, error) {
	f := strings.Fields(text)
	if len(f) < 5 || f[0] != "s" {
		return table{}, fmt.Errorf("%q is not a table of %s", text, target)
	}
	t := table{bytes: bytes, origin: f[1], disk: f[2], options: cache.Options{Mode: cache.Writeback}}
	o, words := &t.options, f[5:]
	if slices.Contains(words, "cleaner") {
		o.Mode = cache.Writethrough
	}
	for i := 0; i+1 < len(words); i++ {
		n, err := strconv.Atoi(words[i+1])
		if err != nil {
			continue // a word without a number
		}
		switch words[i] {
		case "high_watermark":
			o.HighWatermark = n
		case "low_watermark":
			o.LowWatermark = n
		case "max_age":
			o.MaxAgeSeconds = n / 1000
		}
	}
	return t, nil
}

// counters is what the kernel counts for one cache. All but blocks and free start at zero when it
// is assembled; blocks is zero while it cannot say anything.
type counters struct {
	cache.Counters

	failed    bool
	blocks    int64
	free      int64
	writeback int64
}

// parseCounters reads a status line (Documentation/admin-guide/device-mapper/writecache.rst).
func parseCounters(text string) (counters, error) {
	fields := strings.Fields(text)
	if len(fields) < 9 {
		return counters{}, fmt.Errorf("%q has too few counters", text)
	}
	var n [9]int64
	for i := range n {
		var err error
		if n[i], err = strconv.ParseInt(fields[i], 10, 64); err != nil {
			return counters{}, fmt.Errorf("%q: %w", text, err)
		}
	}
	return counters{
		failed: n[0] != 0, blocks: n[1], free: n[2], writeback: n[3],
		Counters: cache.Counters{Reads: n[4], ReadHits: n[5], Writes: n[6], WriteHits: n[7] + n[8]},
	}, nil
}
