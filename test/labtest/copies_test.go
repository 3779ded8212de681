package labtest

import (
	"strings"
	"testing"

	"github.com/escache/escache-csi/api/escache"
)

func TestCopiesDifferWhereABlockIsAnotherOneOrMissing(t *testing.T) {
	a := map[string]string{"0": "11 0/0", "4096": "22 7/1", "8192": "33 7/2"}
	for _, tt := range []struct {
		name string
		b    map[string]string
		says string
	}{
		{"the same", map[string]string{"0": "11 0/0", "4096": "22 7/1", "8192": "33 7/2"}, ""},
		{
			"an older block", map[string]string{"0": "11 0/0", "4096": "21 6/9", "8192": "33 7/2"},
			`1 of 3 blocks differ: at 4096: "22 7/1" and "21 6/9"`,
		},
		{"a block less", map[string]string{"0": "11 0/0", "4096": "22 7/1"}, `1 of 3 blocks differ: at 8192: "33 7/2" and ""`},
		{"a block more", map[string]string{"0": "11 0/0", "4096": "22 7/1", "8192": "33 7/2", "12288": "44 7/3"}, `at 12288: "" and "44 7/3"`},
	} {
		err := differences(a, tt.b)
		if (err == nil) != (tt.says == "") || err != nil && !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v, not %q", tt.name, err, tt.says)
		}
	}
}

// A part of a disk that was not formatted holds what was there before, and differs.
func TestNotesEndBeforeTheData(t *testing.T) {
	for _, cacheBytes := range []int64{32 << 20, 128 << 20, 1 << 30, 100 << 30} {
		ofDRBD := cacheBytes>>15 + 36<<10 // a bit for each 4 KiB, the activity log and the superblock
		blocks := (cacheBytes - ofDRBD - 1<<20) / 4112
		if got := notesBytes(escache.EngineWritecache, cacheBytes) - 1<<20; got > blocks*16 || got < blocks*15 || got%4096 != 0 {
			t.Errorf("a cache of %d bytes has notes of %d bytes, and %d are compared", cacheBytes, blocks*16, got)
		}
	}
	if got := notesBytes(escache.EngineLog, 32<<20); got != 1<<20+8192 {
		t.Errorf("%d bytes of a log are compared", got)
	}
}
