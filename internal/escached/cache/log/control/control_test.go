package control

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/unixsocket"
)

// volume notes what was asked for, and answers with an error if it has one.
type volume struct {
	status Status
	asked  []any
	err    error
	begun  func()        // called when WriteBack waits until its caller leaves; nil if it does not wait
	left   chan struct{} // closed when that caller has left
}

var handed = Handed{PID: 5, Links: []Link{{FD: 7, Inode: 1 << 40, Left: []byte{0, 255}}, {FD: 8}}}

func (v *volume) note(what ...any) error { v.asked = append(v.asked, what...); return v.err }

func (v *volume) Status() Status                                { return v.status }
func (v *volume) Retry() error                                  { return v.note("retry") }
func (v *volume) SetMode(_ context.Context, m cache.Mode) error { return v.note("mode", m) }
func (v *volume) SetOptions(o Options) error                    { return v.note("options", o) }
func (v *volume) Resize(n int64) error                          { return v.note("resize", n) }
func (v *volume) Stop(context.Context) error                    { return v.note("stop") }
func (v *volume) Resume() (Resumed, error)                      { return Resumed{Held: true}, v.note("resume") }
func (v *volume) Leave() error                                  { return v.note("leave") }

func (v *volume) HandOver(context.Context) (Handed, error) { return handed, v.note("handover") }

func (v *volume) Hold(_ context.Context, limit time.Duration) error { return v.note("hold", limit) }

func (v *volume) WriteBack(ctx context.Context) error {
	if v.begun == nil {
		return v.note("writeback")
	}
	v.begun()
	<-ctx.Done()
	close(v.left)
	return ctx.Err()
}

func serve(t *testing.T, v Volume) *Client {
	t.Helper()
	dir, err := os.MkdirTemp("", "sock") //nolint:usetesting // a socket's path has 108 characters at most
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "control")
	listener, err := unixsocket.Listen(socket, unixsocket.Modes{Directory: 0o700, Socket: 0o600})
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: Handler(v)}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { server.Close(); os.RemoveAll(dir) })
	return NewClient(socket)
}

func TestEachCallReachesTheVolumeWithWhatItWasGiven(t *testing.T) {
	v := &volume{}
	c := serve(t, v)
	ctx := t.Context()
	options := Options{Mode: cache.Writeback, HighWatermark: 60, LowWatermark: 40, MaxAgeSeconds: 30, Order: Strict}
	for _, err := range []error{
		c.WriteBack(ctx), c.Retry(ctx), c.SetMode(ctx, cache.Writethrough), c.SetOptions(ctx, options),
		c.Resize(ctx, 8192), c.Hold(ctx, time.Minute), c.Stop(ctx), c.Leave(ctx),
	} {
		if err != nil {
			t.Error(err)
		}
	}
	if h, err := c.HandOver(ctx); err != nil || !reflect.DeepEqual(h, handed) {
		t.Errorf("HandOver: %+v, %v", h, err)
	}
	if r, err := c.Resume(ctx); err != nil || !r.Held {
		t.Errorf("Resume: %+v, %v", r, err)
	}
	want := []any{
		"writeback", "retry", "mode", cache.Writethrough, "options", options,
		"resize", int64(8192), "hold", time.Minute, "stop", "leave", "handover", "resume",
	}
	if !reflect.DeepEqual(v.asked, want) {
		t.Errorf("the volume was asked for %v, not %v", v.asked, want)
	}
}

func histogram(count uint64) cache.Histogram {
	return cache.Histogram{Bounds: []float64{0.1}, Counts: []uint64{count, 1}, Sum: 1.5}
}

func TestTheStatusArrivesWhole(t *testing.T) {
	want := Status{
		Name: "escache-1", Version: "v1", PID: 7, Device: "/dev/nbd3", Origin: "252:16", Bytes: 1 << 40,
		Options: Options{Mode: cache.Writethrough, HighWatermark: 60, LowWatermark: 40, MaxAgeSeconds: 9, Order: Merged},
		Dirty:   4096, Free: 8192, WritingBack: 4096, Failed: true, Cause: "input/output error", Broken: "no space", Held: true,
		Log: Log{
			Bytes: 1 << 30, Used: 3, Live: 2, Memory: 5, Sequence: 1<<63 + 1, Generation: 2, Recovery: time.Second, Losses: []string{"one"},
		},
		Counters: Counters{
			Counters: cache.Counters{Reads: 1, ReadHits: 2, Writes: 3, WriteHits: 4}, Flushes: 5, Records: 6, RecordBlocks: 7, WrittenBack: 8, Errors: 9,
		},
		Stopping: true,
		Histograms: Histograms{
			Reads: histogram(1), Writes: histogram(2), Flushes: histogram(3), RecordWrites: histogram(4),
		},
	}
	got, err := serve(t, &volume{status: want}).Status(t.Context())
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	state := cache.State{
		Path: "/dev/nbd3", Origin: "252:16", Bytes: 1 << 40, Failed: true, Held: true,
		Options:  cache.Options{Mode: cache.Writethrough, HighWatermark: 60, LowWatermark: 40, MaxAgeSeconds: 9},
		Counters: want.Counters.Counters,
		Measures: &cache.Measures{
			LogBytes: 1 << 30, LogUsed: 3, LogLive: 2, IndexBytes: 5, Recovery: time.Second,
			Reads: histogram(1), Writes: histogram(2), Flushes: histogram(3), RecordWrites: histogram(4),
			RecordBytes: 7 * cache.BlockBytes, WrittenBack: 8 * cache.BlockBytes, Errors: 9,
		},
	}
	broken, stopping, sound := want, want, want
	broken.Stopping, stopping.Broken, sound.Stopping, sound.Broken = false, "", false, ""
	for _, s := range []Status{broken, stopping} { // nothing is known
		if got := s.State(); !reflect.DeepEqual(got, state) {
			t.Errorf("as a cache's state %+v is %+v", s, got)
		}
	}
	state.Known, state.Dirty, state.Free, state.WritingBack = true, 4096, 8192, 4096
	if got := sound.State(); !reflect.DeepEqual(got, state) {
		t.Errorf("with a sound log it is %+v", got)
	}
}

func TestErrorsKeepTheirKindAndTheirText(t *testing.T) {
	v := &volume{}
	c := serve(t, v)
	for _, kind := range []error{
		cache.ErrOpen, cache.ErrFailed, cache.ErrDirty, ErrHeld, ErrInvalid, ErrStopping, ErrBroken, ErrOther,
	} {
		v.err = errors.Join(kind, errors.New("because of that"))
		err := c.Retry(t.Context())
		if !errors.Is(err, kind) || !strings.Contains(err.Error(), "because of that") {
			t.Errorf("%v arrives as %v", kind, err)
		}
	}
}

func TestWhatCannotBeIsRefusedBeforeTheVolumeIsAsked(t *testing.T) {
	v := &volume{}
	c := serve(t, v)
	ctx := t.Context()
	for what, err := range map[string]error{
		"no mode":            c.SetMode(ctx, ""),
		"another mode":       c.SetMode(ctx, "fast"),
		"another order":      c.SetOptions(ctx, Options{Order: "any"}),
		"crossed marks":      c.SetOptions(ctx, Options{HighWatermark: 20, LowWatermark: 30}),
		"no such percent":    c.SetOptions(ctx, Options{HighWatermark: 101}),
		"a negative age":     c.SetOptions(ctx, Options{MaxAgeSeconds: -1}),
		"no size":            c.Resize(ctx, 0),
		"a hold without end": c.Hold(ctx, 0),
		"an unknown field":   c.post(ctx, pathMode, time.Second, map[string]any{"mode": cache.Writeback, "speed": 1}),
		"no JSON":            c.post(ctx, pathMode, time.Second, "x"),
	} {
		if !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if len(v.asked) > 0 {
		t.Errorf("the volume was asked for %v", v.asked)
	}
}

func TestOneWatermarkAloneHasAnotherThatFits(t *testing.T) {
	for _, o := range []Options{{}, {HighWatermark: 3}, {LowWatermark: 70}, {LowWatermark: 99}, {HighWatermark: 100}} {
		full := o.WithDefaults()
		if o.Check() != nil || full.HighWatermark <= full.LowWatermark || full.HighWatermark > 100 || full.LowWatermark < 0 ||
			o.HighWatermark != 0 && full.HighWatermark != o.HighWatermark || o.LowWatermark != 0 && full.LowWatermark != o.LowWatermark {
			t.Errorf("%+v becomes %+v; %v", o, full, o.Check())
		}
	}
}

func TestACallerThatLeavesIsSeenAndOneWithoutAServerHearsSo(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	v := &volume{begun: cancel, left: make(chan struct{})}
	c := serve(t, v)
	if err := c.WriteBack(ctx); !errors.Is(err, ErrUnreachable) || !errors.Is(err, context.Canceled) {
		t.Errorf("after it left: %v", err)
	}
	<-v.left
	nobody := NewClient(filepath.Join(t.TempDir(), "s"))
	if _, err := nobody.Status(t.Context()); !errors.Is(err, ErrUnreachable) {
		t.Errorf("without a server: %v", err)
	}
}
