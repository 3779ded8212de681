package process

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/cache/log/control"
	"github.com/escache/escache-csi/internal/escached/cache/log/nbd"
	"github.com/escache/escache-csi/internal/escached/cache/log/record"
)

func TestAVolumeIsServedWrittenBackAndStopped(t *testing.T) {
	h := newHost(t)
	ended, _ := h.run()
	must(t, h.write(1, 7, 0))
	must(t, h.write(2, 8, nbd.FUA))
	if h.read(1) != 7 || h.read(2) != 8 || h.read(3) != 0 {
		t.Error("something else was read than was written")
	}
	s := h.status()
	if s.Dirty != 2*record.BlockBytes || s.Bytes != h.config.Bytes || s.Device != "/dev/nbd3" || s.Origin != "0:0" || s.Name != "v" || s.Version != "v1" ||
		s.Options != (control.Options{Mode: cache.Writeback, Order: control.Merged}) {
		t.Errorf("%+v", s)
	}
	if c := s.Counters; c.Writes != 2 || c.Reads != 3 || c.ReadHits != 2 || c.Records != 1 || c.Flushes != 1 || c.Errors != 0 {
		t.Errorf("%+v", c)
	}
	// The second write is one with a flush; both reached the log together.
	m := s.Histograms
	if m.Reads.Count() != 3 || m.Writes.Count() != 2 || m.Flushes.Count() != 1 || m.RecordWrites.Count() != 1 || m.RecordWrites.Sum != 2 ||
		m.Reads.Sum <= 0 || m.Writes.Sum <= 0 || m.Flushes.Sum <= 0 || m.Flushes.Sum > 60 {
		t.Errorf("%+v", m)
	}
	must(t, h.client.WriteBack(t.Context()))
	if s = h.status(); s.Dirty != 0 || h.imageHas(1) != 7 || h.imageHas(2) != 8 {
		t.Errorf("%d bytes are dirty, and the image has %d and %d", s.Dirty, h.imageHas(1), h.imageHas(2))
	}
	must(t, h.write(1, 9, 0))
	h.stop(ended)
	for _, path := range []string{h.config.Memory, h.config.optionsFile()} {
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is still there: %v", path, err)
		}
	}
	ended, _ = h.run() // as on another host: nothing but the log is left
	if h.read(1) != 9 {
		t.Errorf("a write that was answered before Stop is lost: the block has %d", h.read(1))
	}
	if h.connects != 2 {
		t.Errorf("%d devices were made", h.connects)
	}
	h.stop(ended)
}

// Writers notice nothing but a pause.
func TestASuccessorTakesOverUnderWriters(t *testing.T) {
	h := newHost(t)
	ended, _ := h.run()
	finish := h.writers(6, 3)
	for range 5 {
		time.Sleep(20 * time.Millisecond)
		next, _ := h.run()
		if err := within(t, ended); err != nil {
			t.Errorf("the one before ends with %v", err)
		}
		ended = next
	}
	finish()
	if h.connects != 1 || h.reconnect > 0 {
		t.Errorf("%d devices were made, and %d connections", h.connects, h.reconnect)
	}
	h.stop(ended)
}

// It has the log, and died before it served.
func TestAfterASuccessorThatDiesAnotherOneGoesOn(t *testing.T) {
	h := newHost(t)
	ended, _ := h.run()
	must(t, h.write(1, 1, 0))
	if err := h.client.Leave(t.Context()); !errors.Is(err, control.ErrInvalid) {
		t.Errorf("Leave without HandOver: %v", err)
	}
	handed, err := h.client.HandOver(t.Context())
	must(t, err)
	if len(handed.Links) != connections || !h.status().Stopping {
		t.Errorf("%+v", handed)
	}
	wrong := handed.Links[0]
	wrong.Inode++
	if _, err := take(handed.PID, wrong); err == nil {
		t.Error("a descriptor that is another socket is taken")
	}
	must(t, h.client.Leave(t.Context()))
	must(t, within(t, ended))
	ended, _ = h.run()
	if h.read(1) != 1 || h.reconnect != connections {
		t.Errorf("the block has %d, and %d connections were made", h.read(1), h.reconnect)
	}
	h.stop(ended)
}

func TestTheNextProcessHasWhatAKilledOneHadAnswered(t *testing.T) {
	h := newHost(t)
	p, err := start(t.Context(), h.config, h, slog.New(slog.DiscardHandler))
	must(t, err)
	must(t, p.SetOptions(control.Options{HighWatermark: 80, LowWatermark: 70, MaxAgeSeconds: 1000, Order: control.Strict}))
	must(t, p.SetMode(t.Context(), cache.Writethrough))
	must(t, p.SetMode(t.Context(), cache.Writeback))
	must(t, h.write(1, 7, 0))
	must(t, p.Resize(h.config.Bytes)) // changes nothing
	must(t, p.abandon())              // nobody asked for it to be stable
	ended, _ := h.run()
	if h.read(1) != 7 {
		t.Errorf("the block has %d", h.read(1))
	}
	want := control.Options{Mode: cache.Writeback, HighWatermark: 80, LowWatermark: 70, MaxAgeSeconds: 1000, Order: control.Strict}
	if s := h.status(); s.Options != want {
		t.Errorf("the options are %+v", s.Options)
	}
	h.stop(ended)
	ended, _ = h.run() // a new device has those of its start
	if s := h.status(); s.Options.HighWatermark != 0 || s.Options.Order != control.Merged {
		t.Errorf("the options of a new device are %+v", s.Options)
	}
	h.stop(ended)
}

// Somebody may rely on it that nothing becomes dirty.
func TestWritingThroughGoesOnWithoutTheSavedOptions(t *testing.T) {
	h := newHost(t)
	p, err := start(t.Context(), h.config, h, slog.New(slog.DiscardHandler))
	must(t, err)
	must(t, errors.Join(p.SetMode(t.Context(), cache.Writethrough), p.abandon(), os.Remove(h.config.optionsFile())))
	ended, _ := h.run()
	if s := h.status(); s.Options.Mode != cache.Writethrough {
		t.Errorf("%+v", s.Options)
	}
	must(t, h.write(1, 1, 0))
	if h.imageHas(1) != 1 {
		t.Errorf("the image has %d", h.imageHas(1))
	}
	h.stop(ended)
}

func TestOneProcessAtATimeHasAVolume(t *testing.T) {
	h := newHost(t)
	p, err := start(t.Context(), h.config, h, slog.New(slog.DiscardHandler))
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := start(ctx, h.config, h, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("a second one starts: %v", err)
	}
	must(t, h.write(1, 1, nbd.FUA))
	must(t, p.abandon())
}

func TestADeviceThatIsOpenIsNotStopped(t *testing.T) {
	h := newHost(t)
	ended, signal := h.run()
	h.setOpen(true)
	if err := h.client.Stop(t.Context()); !errors.Is(err, cache.ErrOpen) {
		t.Errorf("Stop: %v", err)
	}
	signal()
	time.Sleep(50 * time.Millisecond)
	must(t, h.write(1, 1, nbd.FUA))
	select {
	case err := <-ended:
		t.Fatalf("a signal ends it: %v", err)
	default:
	}
	h.setOpen(false)
	h.stop(ended)
}

func TestASignalStopsADeviceThatNobodyUses(t *testing.T) {
	h := newHost(t)
	ended, signal := h.run()
	must(t, h.write(1, 1, 0))
	signal()
	must(t, within(t, ended))
	ended, _ = h.run()
	if h.read(1) != 1 {
		t.Errorf("the block has %d", h.read(1))
	}
	h.stop(ended)
}

func TestLostConnectionsAreReplaced(t *testing.T) {
	h := newHost(t)
	ended, _ := h.run()
	for i := range 6 {
		h.eventually("a connection that was lost before is replaced", func() bool {
			h.mu.Lock()
			defer h.mu.Unlock()
			return !hungUp(h.conns[i%connections])
		})
		h.lose(i % connections)
		must(t, h.write(i, byte(i+1), nbd.FUA))
		if h.read(i) != byte(i+1) {
			t.Errorf("block %d has %d", i, h.read(i))
		}
	}
	h.eventually("all connections are replaced", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.reconnect == 6
	})
	h.stop(ended)
}

func TestADeviceThatSomebodyElseHasDisconnectedEndsTheProcess(t *testing.T) {
	h := newHost(t)
	ended, _ := h.run()
	must(t, h.write(1, 1, 0))
	h.mu.Lock()
	h.disconnect()
	h.mu.Unlock()
	must(t, within(t, ended))
	ended, _ = h.run()
	if h.read(1) != 1 {
		t.Errorf("the block has %d", h.read(1))
	}
	h.stop(ended)
}

func TestResizeMakesTheDeviceLargerAndASuccessorKeepsThat(t *testing.T) {
	h := newHost(t)
	ended, _ := h.run()
	larger := 2 * h.config.Bytes
	if err := h.client.Resize(t.Context(), larger); !errors.Is(err, control.ErrInvalid) {
		t.Errorf("larger than the image: %v", err)
	}
	if err := h.client.Resize(t.Context(), 17<<40); !errors.Is(err, control.ErrInvalid) || !strings.Contains(err.Error(), "16 TiB") {
		t.Errorf("larger than the engine takes: %v", err)
	}
	must(t, os.Truncate(h.config.Origin, larger+100))
	must(t, h.client.Resize(t.Context(), larger+100))
	must(t, h.client.Resize(t.Context(), h.config.Bytes)) // never smaller
	must(t, h.write(2*volumeBlocks-1, 5, nbd.FUA))
	next, _ := h.run()
	must(t, within(t, ended))
	if s := h.status(); s.Bytes != larger || h.bytes != larger || h.read(2*volumeBlocks-1) != 5 {
		t.Errorf("it has %d bytes, for the kernel %d", s.Bytes, h.bytes)
	}
	h.stop(next)
}

func TestWhatCannotBeServedIsRefused(t *testing.T) {
	for name, test := range map[string]struct {
		change func(h *host)
		want   error
		says   string
	}{
		"another image":    {func(h *host) { h.config.Identity.ImageID = "2" }, cache.ErrForeign, "another image"},
		"a blank disk":     {func(h *host) { must(h.t, os.Truncate(h.config.Disk, 0)); must(h.t, os.Truncate(h.config.Disk, 8<<20)) }, cache.ErrCorrupt, "blank"},
		"too large":        {func(h *host) { h.config.Bytes = 16<<40 + 1 }, control.ErrInvalid, "16 TiB"},
		"too small":        {func(h *host) { h.config.Bytes = 100 }, control.ErrInvalid, "4096"},
		"a shorter image":  {func(h *host) { must(h.t, os.Truncate(h.config.Origin, 4096)) }, nil, "the image has 4096 bytes"},
		"no image":         {func(h *host) { must(h.t, os.Remove(h.config.Origin)) }, fs.ErrNotExist, "look for the image"},
		"no name":          {func(h *host) { h.config.Name = "" }, nil, "name is"},
		"options":          {func(h *host) { h.config.Options.Order = "any" }, control.ErrInvalid, "order"},
		"memory on a disk": {func(h *host) { h.config.Memory = h.config.Disk + ".memory" }, nil, "tmpfs"},
	} {
		h := newHost(t)
		test.change(h)
		err := Run(t.Context(), h.config, h, nil, slog.New(slog.DiscardHandler))
		if err == nil || test.want != nil && !errors.Is(err, test.want) || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v", name, err)
		}
		if h.connects > 0 {
			t.Errorf("%s: there is a device", name)
		}
	}
}

// TestALossOfManyExtentsIsToldInTheLastWords: escached hears no more of a process that has ended.
func TestALossOfManyExtentsIsToldInTheLastWords(t *testing.T) {
	h := newHost(t)
	ended, _ := h.run()
	const extents, lastWords = 30, 500
	for i := range extents {
		must(t, h.write(2*i, byte(i+1), 0))
	}
	must(t, h.write(2*extents, 99, nbd.FUA))
	must(t, h.write(1, 99, nbd.FUA)) // the witness of the record before
	h.stop(ended)
	disk, err := os.OpenFile(h.config.Disk, os.O_RDWR, 0)
	must(t, err)
	for i := range extents {
		_, err := disk.WriteAt([]byte{77}, cache.HeaderBytes+int64(record.Superblocks+1+i)*record.BlockBytes)
		must(t, err)
	}
	must(t, disk.Close())
	err = Run(t.Context(), h.config, h, nil, slog.New(slog.DiscardHandler))
	if !errors.Is(err, ErrLosses) || len(err.Error()) < lastWords {
		t.Fatalf("it ends with %v", err)
	}
	if words := err.Error(); !strings.Contains(words[len(words)-lastWords:], ErrLosses.Error()) {
		t.Errorf("the last words are %q", words[len(words)-lastWords:])
	}
}

func TestALogWithLossesIsServedOnlyIfTheyAreAccepted(t *testing.T) {
	h := newHost(t)
	ended, _ := h.run()
	for i := range 3 {
		must(t, h.write(i, byte(i+1), nbd.FUA))
	}
	h.stop(ended)
	disk, err := os.OpenFile(h.config.Disk, os.O_RDWR, 0)
	must(t, err)
	_, err = disk.WriteAt([]byte{99}, cache.HeaderBytes+(record.Superblocks+1)*record.BlockBytes) // data of the first record
	must(t, errors.Join(err, disk.Close()))
	if err := Run(t.Context(), h.config, h, nil, slog.New(slog.DiscardHandler)); !errors.Is(err, ErrLosses) {
		t.Fatalf("without leave: %v", err)
	}
	h.config.AcceptLosses = true
	ended, _ = h.run()
	if s := h.status(); len(s.Log.Losses) != 1 || h.read(1) != 2 {
		t.Errorf("losses %v, and the next block has %d", s.Log.Losses, h.read(1))
	}
	h.stop(ended)
}

// TestAChangeOfModeWhoseCallerHasLeftIsNotMade: escached says what the mode is then.
func TestAChangeOfModeWhoseCallerHasLeftIsNotMade(t *testing.T) {
	h := newHost(t)
	p, err := start(t.Context(), h.config, h, slog.New(slog.DiscardHandler))
	must(t, err)
	must(t, p.SetMode(t.Context(), cache.Writethrough))
	ctx, leave := context.WithCancel(t.Context())
	ended := make(chan error)
	p.changing.Lock() // as a resize that hangs
	go func() { ended <- p.SetMode(ctx, cache.Writeback) }()
	leave()
	p.changing.Unlock()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the call says %v", err)
	}
	if o, _ := p.back.get(); o.Mode != cache.Writethrough {
		t.Errorf("the mode is %s", o.Mode)
	}
	must(t, p.abandon())
}

// Who hears of a volume that writes through and has nothing dirty may use the image without the log.
func TestAWriteThatIsAnsweredBeforeTheModeChangesIsDirtyInThatMode(t *testing.T) {
	h := newHost(t)
	p, err := start(t.Context(), h.config, h, slog.New(slog.DiscardHandler))
	must(t, err)
	drained := func(s control.Status) bool { return s.Options.Mode == cache.Writethrough && s.Dirty == 0 }

	before := p.volume.State()
	if !p.volume.TryWrite(1, bytes.Repeat([]byte{7}, record.BlockBytes)) {
		t.Fatal("the write was not answered at once")
	}
	must(t, p.SetMode(t.Context(), cache.Writethrough))
	if s := p.statusOf(before); drained(s) {
		t.Errorf("an answered write is dirty, and the status says mode %s and %d bytes dirty", s.Options.Mode, s.Dirty)
	}
	if s := p.Status(); s.Options.Mode != cache.Writethrough || s.Dirty != record.BlockBytes {
		t.Errorf("after the change the status says mode %s and %d bytes dirty", s.Options.Mode, s.Dirty)
	}

	must(t, p.WriteBack(t.Context()))
	if s := p.Status(); !drained(s) {
		t.Errorf("the image has everything, and the status says mode %s and %d bytes dirty", s.Options.Mode, s.Dirty)
	}
	before = p.volume.State()
	must(t, p.SetOptions(control.Options{Mode: cache.Writeback, HighWatermark: 80, Order: control.Strict}))
	if s := p.statusOf(before); !drained(s) || s.Options.Order != control.Merged {
		t.Errorf("at that moment it wrote through, and the status says %+v", s.Options)
	}
	want := control.Options{Mode: cache.Writeback, HighWatermark: 80, Order: control.Strict}
	if s := p.Status(); s.Options != want {
		t.Errorf("the options are %+v, want %+v", s.Options, want)
	}
	must(t, p.abandon())
}
