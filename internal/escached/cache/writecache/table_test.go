package writecache

import (
	"strings"
	"testing"

	"github.com/escache/escache-csi/internal/escached/cache"
)

func TestTableRoundTrip(t *testing.T) {
	for line, want := range map[string]table{
		"0 131072 writecache s /dev/rbd0 /dev/drbd100 4096 2 start_sector 2048": {
			bytes: 64 << 20, origin: "/dev/rbd0", disk: "/dev/drbd100", options: cache.Options{Mode: cache.Writeback},
		},
		"0 8 writecache s 252:0 147:100 4096 9 start_sector 2048 high_watermark 60 low_watermark 20 max_age 30000 cleaner": {
			bytes: 4096, origin: "252:0", disk: "147:100", options: cache.Options{
				Mode: cache.Writethrough, HighWatermark: 60, LowWatermark: 20, MaxAgeSeconds: 30,
			},
		},
	} {
		if got := want.String(); got != line {
			t.Errorf("got  %s\nwant %s", got, line)
		}
		if got, err := parseTable(want.bytes, strings.SplitN(line, " ", 4)[3]); err != nil || got != want {
			t.Errorf("%s: got %+v, %v", line, got, err)
		}
	}
	for _, text := range []string{"", "252:0 0", "p 252:0 147:100 4096 0", "s a b"} {
		if _, err := parseTable(8, text); err == nil {
			t.Errorf("%q must be refused", text)
		}
	}
}

func TestADeviceOfWholeBlocksIsMadeOfAnImageOfAnySize(t *testing.T) {
	if got := tableOf(cache.Spec{Bytes: 10*cache.BlockBytes + 512}).bytes; got != 10*cache.BlockBytes {
		t.Errorf("%d bytes", got)
	}
}

func TestStatusIsRead(t *testing.T) {
	got, err := parseCounters("1 16000 15990 2 7 3 20 4 5 0 11 0 2 0")
	want := counters{failed: true, blocks: 16000, free: 15990, writeback: 2, Counters: cache.Counters{
		Reads: 7, ReadHits: 3, Writes: 20, WriteHits: 9,
	}}
	if err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	s := device{counters: got}.state("v")
	if !s.Known || s.Dirty != 10*cache.BlockBytes || s.Free != 15990*cache.BlockBytes || s.WritingBack != 2*cache.BlockBytes {
		t.Errorf("%+v", s)
	}
	for _, text := range []string{"", "0 1 2", "0 1 2 3 4 5 6 7 x"} {
		if _, err := parseCounters(text); err == nil {
			t.Errorf("%q must be refused", text)
		}
	}
}

func TestADeviceThatReportsNoBlocksIsNotKnownToBeClean(t *testing.T) {
	if s := (device{}).state("v"); s.Known || s.Clean() || s.Dirty != 0 {
		t.Errorf("%+v", s)
	}
}

func TestAnOrderThatTheKernelDoesNotKeepIsRefused(t *testing.T) {
	err := (&Engine{}).CheckOptions(cache.Options{StrictOrder: true})
	if err == nil || !strings.Contains(err.Error(), "writeBackOrder strict needs the cache engine log") {
		t.Errorf("%v", err)
	}
}

func TestWatermarksAreComparedWithTheKernelsDefaults(t *testing.T) {
	for o, good := range map[cache.Options]bool{
		{}:                                    true,
		{HighWatermark: 46}:                   true,
		{HighWatermark: 44}:                   false,
		{LowWatermark: 50}:                    true,
		{LowWatermark: 51}:                    false,
		{HighWatermark: 60, LowWatermark: 55}: true,
		{HighWatermark: 20, LowWatermark: 30}: false,
		{HighWatermark: 30, LowWatermark: 30}: true,
	} {
		if err := (&Engine{}).CheckOptions(o); (err == nil) != good {
			t.Errorf("%+v: %v", o, err)
		}
	}
}
