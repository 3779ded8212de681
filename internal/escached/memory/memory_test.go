package memory

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const gib = 1 << 30

func TestASixteenthIsKeptAndAtMostAGiB(t *testing.T) {
	for name, c := range map[string]struct {
		r             Reading
		reserve, free int64
	}{
		"small host":           {Reading{4 * gib, 3 * gib}, gib / 4, 3*gib - gib/4},
		"large host":           {Reading{512 * gib, 100 * gib}, gib, 99 * gib},
		"less than is kept":    {Reading{512 * gib, gib / 2}, gib, 0},
		"just what is kept":    {Reading{512 * gib, gib}, gib, 0},
		"one byte more":        {Reading{512 * gib, gib + 1}, gib, 1},
		"nothing is available": {Reading{16 * gib, 0}, gib, 0},
	} {
		if c.r.Reserve() != c.reserve || c.r.Free() != c.free {
			t.Errorf("%s: %d are kept and %d free, not %d and %d", name, c.r.Reserve(), c.r.Free(), c.reserve, c.free)
		}
	}
}

// host is a host of 16 GiB, which keeps 1 GiB.
type host struct {
	available int64
	err       error
}

func (h *host) Read() (Reading, error) {
	return Reading{Total: 16 * gib, Available: h.available}, h.err
}

func TestCachesThatAreConnectedAtTheSameTimeShareWhatIsFree(t *testing.T) {
	h := &host{available: 4 * gib}
	c := NewClaims(h)
	first, err := c.Claim(2 * gib)
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Claim(gib + 1)
	if !errors.Is(err, ErrShort) {
		t.Fatalf("a byte more than is left: %v", err)
	}
	for _, figure := range []string{"takes 1.0 GiB", "1.0 GiB are free", "4.0 GiB of 16.0 GiB", "1.0 GiB of them are kept", "2.0 GiB are promised"} {
		if !strings.Contains(err.Error(), figure) {
			t.Errorf("%v does not say %q", err, figure)
		}
	}
	second, err := c.Claim(gib)
	if err != nil {
		t.Fatalf("what is left is given: %v", err)
	}
	if free, err := c.Free(); free != 0 || err != nil {
		t.Errorf("%d bytes are free, %v", free, err)
	}
	first()
	first() // has no effect
	if free, err := c.Free(); free != 2*gib || err != nil {
		t.Errorf("after the first one has ended %d bytes are free, %v", free, err)
	}
	second()
	h.available = gib
	if _, err := c.Claim(1); !errors.Is(err, ErrShort) {
		t.Errorf("the reserve is given away: %v", err)
	}
	if done, err := c.Claim(0); err != nil {
		t.Errorf("a cache that takes nothing is refused: %v", err)
	} else {
		done()
	}
}

func TestMemoryThatCannotBeReadIsNotFree(t *testing.T) {
	c := NewClaims(&host{available: 4 * gib, err: errors.New("no answer")})
	if _, err := c.Claim(1); err == nil || errors.Is(err, ErrShort) {
		t.Errorf("%v", err)
	}
	if _, err := c.Free(); err == nil {
		t.Error("no error")
	}
}

func TestProcReadsMeminfo(t *testing.T) {
	dir := t.TempDir()
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "meminfo"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("MemTotal:       16303908 kB\nMemFree:         1043184 kB\nMemAvailable:    9104812 kB\nHugePages_Total:       0\n")
	got, err := Proc{Path: dir}.Read()
	if want := (Reading{Total: 16303908 << 10, Available: 9104812 << 10}); err != nil || got != want {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	for _, bad := range []string{"MemTotal:       16303908 kB\n", "MemAvailable:    9104812 kB\n", "", "MemTotal: much kB\n"} {
		write(bad)
		if got, err := (Proc{Path: dir}).Read(); err == nil {
			t.Errorf("%q reads as %+v", bad, got)
		}
	}
	if _, err := (Proc{Path: dir + "/none"}).Read(); err == nil {
		t.Error("no error without procfs")
	}
	if got, err := (Proc{Path: "/proc"}).Read(); err != nil || got.Total <= 0 || got.Available > got.Total {
		t.Errorf("this machine has %+v, %v", got, err)
	}
}

func TestLargestIsTheLastSizeThatFits(t *testing.T) {
	fiftieth := func(n int64) int64 { return n / 50 }
	for memory, want := range map[int64]int64{0: 0, 81: 4096, 2 * gib: 100 * gib, -1: 0} {
		got, bounded := Largest(memory, fiftieth)
		if !bounded || got != want {
			t.Errorf("%d bytes of memory are enough for %d (%v), want %d", memory, got, bounded, want)
		}
	}
	if got, bounded := Largest(0, func(int64) int64 { return 0 }); bounded || got != 0 {
		t.Errorf("caches that take nothing are bounded: %d", got)
	}
}
