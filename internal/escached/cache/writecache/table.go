package writecache

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Table is the kernel's description of one cache.
type Table struct {
	// Bytes is the size of the device, which is the image's.
	Bytes int64
	// Origin and Cache are paths, or MAJOR:MINOR in what the kernel prints.
	Origin string
	Cache  string
	// HighWatermark and LowWatermark are percent; zero leaves the kernel's defaults (50 and 45).
	HighWatermark int
	LowWatermark  int
	// MaxAgeSeconds bounds how old dirty data gets; zero means no bound.
	MaxAgeSeconds int
	// Cleaner drains the cache and lets new writes through.
	Cleaner bool
}

const sector = 512

// String is the line dmsetup takes.
func (t Table) String() string {
	opts := []string{"start_sector", strconv.Itoa(HeaderBytes / sector)}
	if t.HighWatermark > 0 {
		opts = append(opts, "high_watermark", strconv.Itoa(t.HighWatermark))
	}
	if t.LowWatermark > 0 {
		opts = append(opts, "low_watermark", strconv.Itoa(t.LowWatermark))
	}
	if t.MaxAgeSeconds > 0 {
		opts = append(opts, "max_age", strconv.Itoa(t.MaxAgeSeconds*1000))
	}
	if t.Cleaner {
		opts = append(opts, "cleaner")
	}
	return fmt.Sprintf("0 %d writecache s %s %s %d %d %s",
		t.Bytes/sector, t.Origin, t.Cache, BlockBytes, len(opts), strings.Join(opts, " "))
}

// ParseTable reads what the kernel prints.
func ParseTable(line string) (Table, error) {
	f := strings.Fields(line)
	if len(f) < 8 || f[2] != "writecache" || f[3] != "s" {
		return Table{}, fmt.Errorf("%q is no writecache table", line)
	}
	sectors, err := strconv.ParseInt(f[1], 10, 64)
	if err != nil {
		return Table{}, fmt.Errorf("%q is no writecache table: %w", line, err)
	}
	t := Table{Bytes: sectors * sector, Origin: f[4], Cache: f[5], Cleaner: slices.Contains(f[8:], "cleaner")}
	for i := 8; i+1 < len(f); i++ {
		n, err := strconv.Atoi(f[i+1])
		if err != nil {
			continue // a word without a number
		}
		switch f[i] {
		case "high_watermark":
			t.HighWatermark = n
		case "low_watermark":
			t.LowWatermark = n
		case "max_age":
			t.MaxAgeSeconds = n / 1000
		}
	}
	return t, nil
}

// Counters is what the kernel counts for one cache. All but Blocks and Free start at zero when it is assembled.
type Counters struct {
	Error     bool
	Blocks    int64
	Free      int64
	Writeback int64
	Reads     int64
	ReadHits  int64
	Writes    int64
	WriteHits int64
}

// DirtyBytes is what the origin has not.
func (c Counters) DirtyBytes() int64 { return (c.Blocks - c.Free) * BlockBytes }

func parseCounters(fields []string) (Counters, error) {
	if len(fields) < 9 {
		return Counters{}, errors.New("too few counters")
	}
	var n [9]int64
	for i := range n {
		var err error
		if n[i], err = strconv.ParseInt(fields[i], 10, 64); err != nil {
			return Counters{}, err
		}
	}
	return Counters{
		Error: n[0] != 0, Blocks: n[1], Free: n[2], Writeback: n[3], Reads: n[4], ReadHits: n[5], Writes: n[6], WriteHits: n[7] + n[8],
	}, nil
}
