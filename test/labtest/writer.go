package labtest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/escache/escache-csi/test/blockcheck/block"
)

// Acks lists the writes that a device has acknowledged, in order.
type Acks []block.Ack

// List is the form `blockcheck verify` reads.
func (a Acks) List() string {
	var b strings.Builder
	for _, ack := range a {
		fmt.Fprintln(&b, ack)
	}
	return b.String()
}

// Slowest is the longest time a write took.
func (a Acks) Slowest() time.Duration {
	var slowest time.Duration
	for _, ack := range a {
		slowest = max(slowest, ack.Latency)
	}
	return slowest
}

// Writes says where and what a writer writes; see `blockcheck write --help` for each.
type Writes struct {
	Offset, Span, Bytes int64
	Batch               int
	Pause               time.Duration
}

// Writer is a program on a host that writes until it is told to end, while its acknowledgements are
// kept here.
type Writer struct {
	// Epoch is in each of its blocks.
	Epoch uint64

	host  *Host
	stdin io.Closer
	done  chan struct{}

	mu   sync.Mutex
	acks Acks
	err  error // how it ended; set before done is closed
}

// StartWriter starts one on a device. Every writer of a lab has an epoch of its own, so nobody's
// blocks pass for another's.
func (h *Host) StartWriter(t T, device string, w Writes) *Writer {
	t.Helper()
	epoch := h.lab.nextEpoch()
	args := []string{
		"blockcheck", "write", device, "--until-eof", "--epoch", fmt.Sprint(epoch),
		"--offset", fmt.Sprint(w.Offset), "--span", fmt.Sprint(w.Span), "--bytes", fmt.Sprint(w.Bytes),
		"--batch", fmt.Sprint(max(w.Batch, 1)), "--pause", w.Pause.String(),
	}
	stdin, closer := io.Pipe()
	stdout, lines := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	writer := &Writer{Epoch: epoch, host: h, stdin: closer, done: make(chan struct{})}
	failed := make(chan error, 1)
	go func() {
		err := h.stream(ctx, stdin, lines, args...)
		failed <- err
		lines.CloseWithError(io.EOF)
	}()
	go func() {
		defer close(writer.done)
		err := writer.collect(stdout)
		writer.err = cmpErr(<-failed, err)
	}()
	return writer
}

func cmpErr(first, second error) error {
	if first != nil {
		return first
	}
	return second
}

// collect takes whole lines only: the one that a power loss cut in two was never given.
func (w *Writer) collect(stdout *io.PipeReader) error {
	lines := bufio.NewReader(stdout)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return nil //nolint:nilerr // the end of the output; how the program ended says whether that is an error
		}
		ack, err := block.ParseAck(strings.TrimSuffix(line, "\n"))
		if err != nil {
			stdout.CloseWithError(err)
			return err
		}
		w.mu.Lock()
		w.acks = append(w.acks, ack)
		w.mu.Unlock()
	}
}

// Acks returns the writes that were acknowledged so far.
func (w *Writer) Acks() Acks {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.acks)
}

// Count is how many writes were acknowledged so far.
func (w *Writer) Count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.acks)
}

// Rests fails the test if a frozen device acknowledges a write during quiet, or fails one. The write that was on
// its way when the device froze may still end, and what was acknowledged before may still be on its
// way here: both are waited for first.
func (w *Writer) Rests(t T, quiet time.Duration) {
	t.Helper()
	before, since := w.Count(), time.Now()
	WaitFor(t, "no more writes arrive from "+w.host.Name, quiet, func(context.Context) error {
		if now := w.Count(); now != before {
			before, since = now, time.Now()
		}
		if time.Since(since) < settled {
			return fmt.Errorf("%d writes arrived, the last of them %s ago", before, time.Since(since))
		}
		return nil
	})
	w.MustWait(t)
	time.Sleep(quiet)
	w.MustWait(t)
	if now := w.Count(); now != before {
		t.Errorf("%s acknowledged %d writes while its device was frozen", w.host.Name, now-before)
	}
}

// MustWait fails the test if the writer has ended: then its device has failed a write that it should keep waiting.
func (w *Writer) MustWait(t T) {
	t.Helper()
	if w.Ended() {
		t.Fatalf("the device on %s failed a write instead of keeping it waiting: the writer ended with: %v", w.host.Name, w.err)
	}
}

// settled is how long nothing arrives once a writer's device is frozen. A write to a device that is not
// frozen takes some milliseconds.
const settled = 2 * time.Second

// WaitForMore waits until n more writes are acknowledged, and returns how long that took.
func (w *Writer) WaitForMore(t T, n int, limit time.Duration) time.Duration {
	t.Helper()
	want := w.Count() + n
	return WaitFor(t, fmt.Sprintf("%d more writes on %s", n, w.host.Name), limit, func(context.Context) error {
		if w.Ended() {
			t.Fatalf("the writer on %s ended: %v", w.host.Name, w.err)
		}
		if have := w.Count(); have < want {
			return fmt.Errorf("%d are missing", want-have)
		}
		return nil
	})
}

// Ended says whether the writer is no more, for whatever reason.
func (w *Writer) Ended() bool {
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}

// Stop ends the writer in good order and returns all that was acknowledged. A failed write fails
// the test.
func (w *Writer) Stop(t T) Acks {
	t.Helper()
	w.stdin.Close()
	return w.Finish(t)
}

// Finish waits for a writer with an end of its own.
func (w *Writer) Finish(t T) Acks {
	t.Helper()
	w.wait(t)
	if w.err != nil {
		t.Fatalf("the writer on %s failed after %d writes: %v", w.host.Name, w.Count(), w.err)
	}
	return w.Acks()
}

// Lost waits for the end of a writer whose host has lost its power, and returns what was
// acknowledged before.
func (w *Writer) Lost(t T) Acks {
	t.Helper()
	w.wait(t)
	return w.Acks()
}

// End ends the writer, whatever its device does by now.
func (w *Writer) End(t T) {
	t.Helper()
	w.stdin.Close()
	w.wait(t)
}

// Broken waits for the end of a writer whose device fails its I/O.
func (w *Writer) Broken(t T) {
	t.Helper()
	w.wait(t)
	if w.err == nil {
		t.Errorf("the writer on %s ended well", w.host.Name)
	}
}

func (w *Writer) wait(t T) {
	t.Helper()
	select {
	case <-w.done:
	case <-time.After(2 * time.Minute):
		t.Fatalf("the writer on %s does not end; %d writes are acknowledged", w.host.Name, w.Count())
	}
}

// Fill writes so many bytes from offset on, each write stable before the next, and returns the
// acknowledgements.
func (h *Host) Fill(t T, device string, offset, bytes int64) Acks {
	t.Helper()
	return h.StartWriter(t, device, Writes{Offset: offset, Span: bytes, Bytes: bytes, Batch: fillBatch}).Finish(t)
}

// fillBatch makes writes of 256 KiB.
const fillBatch = 64

// Verify reads a device on a host and fails the test for each acknowledged block that is not there.
func (h *Host) Verify(t T, device string, acks Acks) {
	t.Helper()
	if out, err := h.verify(t.Context(), device, acks); err != nil {
		t.Fatalf("%s on %s: %v\n%s", device, h.Name, err, out)
	}
}

// MustDiffer fails the test if the device holds what was acknowledged: the counter-check that
// Verify can fail.
func (h *Host) MustDiffer(t T, device string, acks Acks) {
	t.Helper()
	if out, err := h.verify(t.Context(), device, acks); err == nil {
		t.Fatalf("%s on %s holds everything already: %s", device, h.Name, out)
	} else if !strings.Contains(out, "right 0 newer 0 wrong ") {
		t.Fatalf("%s on %s holds some of it already: %v\n%s", device, h.Name, err, out)
	}
}

func (h *Host) verify(ctx context.Context, device string, acks Acks) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	return h.Try(ctx, strings.NewReader(acks.List()), "blockcheck", "verify", device)
}
