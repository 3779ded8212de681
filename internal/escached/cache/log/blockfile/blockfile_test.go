package blockfile

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/escache/escache-csi/internal/escached/cache/log/record"
	"github.com/escache/escache-csi/internal/escached/cache/log/ring"
)

const blocks = 600 // more than are zeroed with one write

func filled(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(path, bytes.Repeat([]byte{7}, blocks*record.BlockBytes), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestWhatIsWrittenIsInTheFile(t *testing.T) {
	for name, open := range map[string]func(string) (*File, error){"a log": OpenLog, "an image": OpenImage} {
		path := filled(t)
		f, err := open(path)
		if err != nil {
			t.Fatal(err)
		}
		p := ring.AlignedBytes(2 * record.BlockBytes)
		p[0], p[len(p)-1] = 1, 2
		if err := f.WriteStable(p, 3*record.BlockBytes); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got := ring.AlignedBytes(2 * record.BlockBytes)
		if _, err := f.ReadAt(got, 3*record.BlockBytes); err != nil || !bytes.Equal(got, p) {
			t.Errorf("%s: something else was read, %v", name, err)
		}
		if n, err := f.Bytes(); err != nil || n != blocks*record.BlockBytes {
			t.Errorf("%s: %d bytes, %v", name, n, err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestAZeroedRangeReadsAsZerosAndNothingElseDoes(t *testing.T) {
	for name, zero := range map[string]func(f *File, at, bytes int64) error{
		"zero":                       func(f *File, at, bytes int64) error { return f.Zero(at, bytes, false) },
		"trim":                       func(f *File, at, bytes int64) error { return f.Zero(at, bytes, true) },
		"a kernel that cannot do it": (*File).writeZeros,
	} {
		path := filled(t)
		f, err := OpenImage(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := zero(f, record.BlockBytes, (blocks-2)*record.BlockBytes); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		got, err := os.ReadFile(path)
		want := bytes.Repeat([]byte{7}, blocks*record.BlockBytes)
		clear(want[record.BlockBytes : (blocks-1)*record.BlockBytes])
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: the file has something else; %v", name, err)
		}
	}
}

func TestAFileThatIsNotThereIsNotMade(t *testing.T) {
	path := filepath.Join(t.TempDir(), "none")
	if _, err := OpenLog(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("it is there: %v", err)
	}
}

// TestATrimTakesWholeObjectsInOnePiece as the kernel cuts it: from its start on.
func TestATrimTakesWholeObjectsInOnePiece(t *testing.T) {
	const object = 4 << 20
	for _, c := range []struct{ at, bytes, piece, whole int64 }{
		{0, 3 * object, object, 3},
		{4096, 3 * object, object, 2},
		{object - 4096, 3*object + 4096, object, 3},
		{object + 4096, object - 4096, object, 0},
		{4096, 8192, object, 0},
		{8192, object, object, 0},
		{4096, 3 * object, 0, 0}, // the kernel zeroes nothing by itself
	} {
		head := toBoundary(c.at, c.bytes, c.piece)
		if head < 0 || head >= c.bytes {
			t.Errorf("%+v: %d bytes come first", c, head)
		}
		var whole int64
		for at := c.at + head; c.piece > 0 && at+c.piece <= c.at+c.bytes; at += c.piece {
			if at%c.piece == 0 {
				whole++
			}
		}
		if whole != c.whole {
			t.Errorf("%+v: %d objects are trimmed whole", c, whole)
		}
	}
}
