package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/escache/escache-csi/internal/benchmark/device"
	"github.com/escache/escache-csi/test/blockcheck/block"
)

const region = 16 * block.Size

// file is a stand-in for a device; direct I/O wants a real file system, which the package's folder
// is on.
func file(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "device")
	if err := os.WriteFile(path, make([]byte, region), 0o600); err != nil {
		t.Fatal(err)
	}
	if f, err := device.Open(path, device.Read); err != nil {
		t.Skipf("no direct I/O here: %v", err)
	} else {
		f.Close()
	}
	return path
}

func writeTo(t *testing.T, path string, o writeOptions) string {
	t.Helper()
	var acks strings.Builder
	if err := write(t.Context(), path, o, &acks); err != nil {
		t.Fatal(err)
	}
	return acks.String()
}

func verifyList(t *testing.T, path, acks string, fenced ...uint) (report, string) {
	t.Helper()
	ledger, err := block.ReadLedger(strings.NewReader(acks))
	if err != nil {
		t.Fatal(err)
	}
	dev, err := device.Open(path, device.Read)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	var out strings.Builder
	r, err := verify(dev, ledger, fenced, &out)
	if err != nil {
		t.Fatal(err)
	}
	return r, out.String()
}

func TestVerifyFindsWhatBecameOfTheBlocks(t *testing.T) {
	tests := []struct {
		name   string
		change func(t *testing.T, path string, before []byte)
		want   report
		says   string
	}{
		{"nothing happened", func(*testing.T, string, []byte) {}, report{right: 16}, ""},
		{"the device is empty", func(t *testing.T, path string, before []byte) {
			overwrite(t, path, 0, before)
		}, report{wrong: 16}, "missing 0 want 2/1 found 0/0"},
		{"one bit flipped", func(t *testing.T, path string, _ []byte) {
			p, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			overwrite(t, path, 3*block.Size+100, []byte{p[3*block.Size+100] ^ 4})
		}, report{right: 15, wrong: 1}, "corrupt 12288"},
		{"an older write of the same writer is back", func(t *testing.T, path string, _ []byte) {
			p := make([]byte, block.Size)
			block.Fill(p, block.ID{Epoch: 2, Number: 0}, block.Size)
			overwrite(t, path, block.Size, p)
		}, report{right: 15, wrong: 1}, "stale 4096 want 2/2 found 2/0"},
		{"a writer that nobody knows of was here", func(t *testing.T, path string, _ []byte) {
			writeTo(t, path, writeOptions{epoch: 3, first: 1, offset: 0, span: block.Size, batch: 1, bytes: block.Size})
		}, report{right: 15, wrong: 1}, "foreign 0 want 2/1 found 3/1"},
		{"a write got through whose acknowledgement did not", func(t *testing.T, path string, _ []byte) {
			writeTo(t, path, writeOptions{epoch: 2, first: 17, offset: 0, span: block.Size, batch: 1, bytes: block.Size})
		}, report{right: 15, newer: 1}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			path := file(t)
			before, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			acks := writeTo(t, path, writeOptions{epoch: 2, first: 1, batch: 4, bytes: region})
			tt.change(t, path, before)
			got, says := verifyList(t, path, acks)
			if got != tt.want || !strings.Contains(says, tt.says) {
				t.Errorf("%+v: %s, want %+v: %s", got, says, tt.want, tt.says)
			}
		})
	}
}

func overwrite(t *testing.T, path string, at int64, p []byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(p, at); err != nil {
		t.Fatal(err)
	}
}

func TestWriterStartsOverAtTheEndOfItsRegion(t *testing.T) {
	path := file(t)
	acks := writeTo(t, path, writeOptions{epoch: 1, first: 1, offset: 4 * block.Size, span: 4 * block.Size, batch: 1, bytes: 6 * block.Size})
	if got, says := verifyList(t, path, acks); got != (report{right: 4}) {
		t.Errorf("%+v: %s", got, says)
	}
	p, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(p[:4*block.Size], make([]byte, 4*block.Size)) || !bytes.Equal(p[8*block.Size:], make([]byte, 8*block.Size)) {
		t.Error("it wrote outside of its region")
	}
}

func TestWriterEndsWhenItsInputDoes(t *testing.T) {
	path := file(t)
	in, closer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		done <- write(untilEOF(t.Context(), in), path, writeOptions{epoch: 1, first: 1, batch: 1, pause: time.Millisecond}, &strings.Builder{})
	}()
	closer.Close()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("it goes on")
	}
}

func TestBenchesWriteWhatTheySay(t *testing.T) {
	path := file(t)
	s, err := benchSync(t.Context(), path, 20*time.Millisecond, region, 2)
	if err != nil || s.Operations < 2 || s.P50Micros > s.P99Micros || s.P99Micros > s.MaxMicros {
		t.Errorf("%+v, %v", s, err)
	}
	q, err := benchSequential(t.Context(), path, region, 4*block.Size, 2)
	if err != nil || q.Bytes != region || q.BytesPerSecond() <= 0 {
		t.Errorf("%+v, %v", q, err)
	}
	p, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.IndexByte(p, 0) >= 0 {
		t.Error("part of the region was not written")
	}
}

// A writer that was fenced has written what was found then, and nothing after; what another has
// written over it is right.
func TestVerifyFindsWritesOfAFencedWriter(t *testing.T) {
	path := file(t)
	writeTo(t, path, writeOptions{epoch: 2, first: 1, batch: 4, bytes: region})
	dev, err := device.Open(path, device.Read)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	var found strings.Builder
	if err := list(dev, 0, region, &found); err != nil {
		t.Fatal(err)
	}
	acks := found.String() + writeTo(t, path, writeOptions{epoch: 3, first: 1, span: 4 * block.Size, batch: 1, bytes: 4 * block.Size})
	if got, says := verifyList(t, path, acks, 2); got != (report{right: 16}) {
		t.Errorf("%+v: %s", got, says)
	}
	late := writeOptions{epoch: 2, first: 99, offset: 8 * block.Size, span: block.Size, batch: 1, bytes: block.Size}
	writeTo(t, path, late)
	if got, says := verifyList(t, path, acks, 2); got != (report{right: 15, wrong: 1}) || !strings.Contains(says, "fenced 32768") {
		t.Errorf("%+v: %s", got, says)
	}
	if got, _ := verifyList(t, path, acks); got != (report{right: 15, newer: 1}) {
		t.Errorf("while it is not fenced: %+v", got)
	}
	late.offset = 0
	writeTo(t, path, late)
	if got, says := verifyList(t, path, acks, 2); got.wrong != 2 || !strings.Contains(says, "stale 0") {
		t.Errorf("over a newer holder's block: %+v: %s", got, says)
	}
}

// Blocks lie elsewhere on a cache's disk than on the device they were written to, and beside others that do not count.
func TestSumsAreOfTheBeginningAndOfWrittenBlocksAnywhere(t *testing.T) {
	sumsOf := func(change func(path string)) []string {
		path := file(t)
		p := make([]byte, block.Size)
		for at, epoch := range map[int64]uint64{3: 4, 5: 9, 8: 10} {
			block.Fill(p, block.ID{Epoch: epoch, Number: 1}, 100*block.Size)
			overwrite(t, path, at*block.Size, p)
		}
		change(path)
		dev, err := device.Open(path, device.Read)
		if err != nil {
			t.Fatal(err)
		}
		defer dev.Close()
		var out strings.Builder
		if err := sums(dev, 2*block.Size, 9, &out); err != nil {
			t.Fatal(err)
		}
		return strings.Split(strings.TrimSpace(out.String()), "\n")
	}
	before := sumsOf(func(string) {})
	var places []string
	for _, line := range before {
		fields := strings.Fields(line)
		places = append(places, fields[0]+" "+fields[len(fields)-1])
	}
	if want := []string{"0 0/0", "4096 0/0", "20480 9/1", "32768 10/1"}; !slices.Equal(places, want) {
		t.Fatalf("the sums are of %q, not of %q", places, want)
	}
	for at, differ := range map[int64]bool{1: true, 4: false, 5: true, 15: false} {
		after := sumsOf(func(path string) { overwrite(t, path, at*block.Size+100, []byte{1, 2, 3}) })
		if slices.Equal(before, after) == differ {
			t.Errorf("a change of block %d: %q, and before %q", at, after, before)
		}
	}
}

func TestBenchFilesWritesAndRemovesItsFiles(t *testing.T) {
	for _, appends := range []bool{true, false} {
		dir := t.TempDir()
		r, err := benchFiles(t.Context(), dir, 50*time.Millisecond, 3, appends)
		if err != nil || r.Operations < 3 || r.PerSecond <= 0 {
			t.Errorf("append %v: %+v, %v", appends, r, err)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("append %v: left %v, %v", appends, left, err)
		}
	}
}

func TestAFileIsNamedOnceItIsWhole(t *testing.T) {
	dir := t.TempDir()
	var out strings.Builder
	if err := renameAll(t.Context(), dir, strings.NewReader("1\n2\n"), &out); err != nil || out.String() != "1\n2\n" {
		t.Fatalf("%q, %v", out.String(), err)
	}
	for _, n := range []string{"1", "2"} {
		if content, err := os.ReadFile(filepath.Join(dir, "file."+n)); err != nil || string(content) != n {
			t.Errorf("file %s has %q, %v", n, content, err)
		}
	}
	if err := renameAll(t.Context(), dir, strings.NewReader("x\n"), &out); err == nil {
		t.Error("x is no number")
	}
	if err := renameAll(t.Context(), filepath.Join(dir, "none"), strings.NewReader("3\n"), &out); err == nil || strings.Contains(out.String(), "3") {
		t.Errorf("a file in no directory: %q, %v", out.String(), err)
	}
}
