package device

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// stuck begins to write, and returns when the writer waits for Retry, or for the end of a hold. written gets how it ends.
func stuck(t *testing.T, d *Device, write func() error) (written chan error) {
	t.Helper()
	written = begin(write)
	waitUntil(t, func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.writing && d.mayWriteBack() != nil
	})
	return written
}

func begin(call func() error) (ended chan error) {
	ended = make(chan error, 1)
	go func() { ended <- call() }()
	return ended
}

func ends(t *testing.T, ended chan error) error {
	t.Helper()
	select {
	case err := <-ended:
		return err
	case <-time.After(10 * time.Second):
		t.Fatal("it hangs")
		return nil
	}
}

// writesBack are the calls after which the image has what was written before. Whoever is to call Retry or Resume may wait for them.
var writesBack = map[string]func(ctx context.Context, d *Device) error{
	"WriteBack": func(ctx context.Context, d *Device) error { return d.WriteBack(ctx) },
	"Hold":      func(ctx context.Context, d *Device) error { return d.Hold(ctx, time.Minute) },
}

func TestARefusalIsToldWhileAWriterWaitsForRetry(t *testing.T) {
	for name, test := range map[string]struct {
		through bool
		write   func(d *Device) error
	}{
		"writing through": {true, func(d *Device) error { return d.Write(2, block(2)) }},
		"a full log": {false, func(d *Device) (err error) {
			for range 2 * ringBlocks {
				err = errors.Join(err, d.Write(2, block(2)), d.Flush())
			}
			return err
		}},
	} {
		for call, writeBack := range writesBack {
			t.Run(name+", "+call, func(t *testing.T) {
				d, _, origin := start(t)
				defer d.Close()
				must(t, errors.Join(d.Write(1, block(1)), d.Flush()))
				d.WriteThrough(test.through)
				origin.refuse(true)
				written := stuck(t, d, func() error { return test.write(d) })
				again := func() error { return writeBack(t.Context(), d) }
				for i := range 2 {
					if i > 0 {
						d.Retry()
					}
					if err := ends(t, begin(again)); !errors.Is(err, ErrRefused) || !errors.Is(err, errImage) {
						t.Errorf("%s: %v", call, err)
					}
					if s := d.State(); s.Refused == nil || s.Held || s.Dirty == 0 {
						t.Errorf("refused: %v, held: %t, and %d blocks are dirty", s.Refused, s.Held, s.Dirty)
					}
				}
				if len(written) > 0 {
					t.Errorf("the writer did not wait: %v", <-written)
				}
				origin.refuse(false)
				d.Retry()
				must(t, ends(t, begin(again)))
				d.Resume()
				must(t, ends(t, written))
				must(t, d.WriteBack(t.Context()))
				if s := d.State(); s.Dirty != 0 || origin.has(1) != 1 || origin.has(2) != 2 {
					t.Errorf("%d blocks are dirty, and the image has %d and %d", s.Dirty, origin.has(1), origin.has(2))
				}
			})
		}
	}
}

// What was answered goes through the log, and the log's writer waits for Retry. Nobody else writes.
func TestARefusalOfWhatIsOnlyInTheMemoryIsTold(t *testing.T) {
	for call, writeBack := range writesBack {
		d, _, origin := start(t)
		must(t, d.Write(1, block(1)))
		d.WriteThrough(true)
		origin.refuse(true)
		for range 2 {
			if err := ends(t, begin(func() error { return writeBack(t.Context(), d) })); !errors.Is(err, ErrRefused) {
				t.Errorf("%s: %v", call, err)
			}
			if s := d.State(); s.Refused == nil || s.Held || s.Dirty == 0 || read(t, d, 1) != 1 {
				t.Errorf("%s: refused: %v, held: %t, and %d blocks are dirty", call, s.Refused, s.Held, s.Dirty)
			}
		}
		origin.refuse(false)
		d.Retry()
		must(t, ends(t, begin(func() error { return writeBack(t.Context(), d) })))
		if s := d.State(); s.Dirty != 0 || origin.has(1) != 1 {
			t.Errorf("%s: after Retry %d blocks are dirty, and the image has %d", call, s.Dirty, origin.has(1))
		}
		d.Close()
	}
}

func TestAHoldIsToldWhileAWriterWaitsForItsEnd(t *testing.T) {
	d, _, origin := start(t)
	d.WriteThrough(true)
	must(t, d.Hold(t.Context(), time.Minute))
	written := stuck(t, d, func() error { return d.Write(1, block(1)) })
	for call, writeBack := range writesBack {
		if err := ends(t, begin(func() error { return writeBack(t.Context(), d) })); !errors.Is(err, ErrHeld) || origin.has(1) != 0 {
			t.Errorf("%s: %v, and the image has %d", call, err, origin.has(1))
		}
	}
	if !d.Resume() {
		t.Error("the hold has ended")
	}
	must(t, ends(t, written))
	if origin.has(1) != 1 {
		t.Errorf("the image has %d", origin.has(1))
	}
}

// Whoever resumes waits for the Hold whose caller has left.
func TestWriteBackAndHoldEndWithTheirContextWhileAWriterWaitsForTheImage(t *testing.T) {
	for call, writeBack := range writesBack {
		d, _, origin := openSlowOrigin(t)
		d.WriteThrough(true)
		written := begin(func() error { return d.Write(1, block(1)) })
		<-origin.begun
		ctx, leave := context.WithCancel(t.Context())
		ended := begin(func() error { return writeBack(ctx, d) })
		select {
		case err := <-ended:
			t.Errorf("%s does not wait for the writer: %v", call, err)
		case <-time.After(50 * time.Millisecond):
		}
		leave()
		if err := ends(t, ended); !errors.Is(err, context.Canceled) || d.State().Held {
			t.Errorf("%s: %v, and it is held: %t", call, err, d.State().Held)
		}
		origin.goOn <- struct{}{}
		must(t, ends(t, written))
	}
}

func TestWriteBackWithoutWritersBringsWhatIsInTheMemory(t *testing.T) {
	for _, through := range []bool{false, true} {
		d, _, origin := start(t)
		must(t, d.Write(1, block(1)))
		d.WriteThrough(through)
		must(t, d.WriteBack(t.Context()))
		if s := d.State(); s.Dirty != 0 || s.Log.Sequence != 1 || origin.has(1) != 1 {
			t.Errorf("through: %t, %d blocks are dirty, there are %d records, and the image has %d", through, s.Dirty, s.Log.Sequence, origin.has(1))
		}
	}
}

// TestWriteBackSucceedsOnlyIfTheImageHasWhatWasAnswered has writers who wait for room, for the image and for Retry, while modes change and
// the image refuses writes for moments.
func TestWriteBackSucceedsOnlyIfTheImageHasWhatWasAnswered(t *testing.T) {
	for name, strict := range map[string]bool{"merged": false, "strict": true} {
		t.Run(name, func(t *testing.T) { writeBackSucceedsOnlyIfTheImageHasWhatWasAnswered(t, strict) })
	}
}

func writeBackSucceedsOnlyIfTheImageHasWhatWasAnswered(t *testing.T, strict bool) {
	t.Helper()
	d, _, origin := start(t)
	d.StrictOrder(strict)
	var (
		stop     atomic.Bool
		others   sync.WaitGroup
		answered numbers
	)
	answered.write(t, d, &stop, &others)
	others.Go(func() {
		for n := 0; !stop.Load(); n++ {
			d.WriteThrough(n%3 == 0)
			origin.refuse(n%2 == 0)
			time.Sleep(200 * time.Microsecond)
		}
		origin.refuse(false)
	})
	succeeded, refused := 0, 0
	for begun := time.Now(); time.Since(begun) < 2*time.Second; {
		before := answered.now()
		err := ends(t, begin(func() error { return d.WriteBack(t.Context()) }))
		if errors.Is(err, ErrRefused) {
			refused++
			time.Sleep(100 * time.Microsecond)
			d.Retry()
			continue
		}
		must(t, err)
		succeeded++
		origin.mustHave(t, before, "WriteBack succeeds")
	}
	stop.Store(true)
	ended := begin(func() error { others.Wait(); return nil })
	waitUntil(t, func() bool {
		d.Retry()
		return len(ended) > 0
	})
	if succeeded == 0 || refused == 0 {
		t.Errorf("WriteBack succeeded %d times, and was refused %d times", succeeded, refused)
	}
	d.Retry()
	must(t, d.WriteBack(t.Context()))
}
