package process

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/escache/escache-csi/internal/escached/cache/log/device"
	"github.com/escache/escache-csi/internal/escached/cache/log/histogram"
	"github.com/escache/escache-csi/internal/escached/cache/log/nbd"
	"github.com/escache/escache-csi/internal/escached/cache/log/record"
)

// volume is the device as the kernel's requests see it. It counts them, and logs why one is answered with an error.
type volume struct {
	*device.Device

	log     *slog.Logger
	took    latencies
	bytes   atomic.Int64
	writes  atomic.Int64 // blocks
	flushes atomic.Int64
	errors  atomic.Int64

	mu     sync.Mutex // for what follows
	logged map[string]time.Time
}

// latencies are how long requests take, from the moment at which the volume gets them.
type latencies struct{ reads, writes, flushes *histogram.Histogram }

func newVolume(d *device.Device, log *slog.Logger) *volume {
	return &volume{
		Device: d, log: log, logged: map[string]time.Time{},
		took: latencies{reads: histogram.NewLatency(), writes: histogram.NewLatency(), flushes: histogram.NewLatency()},
	}
}

// sameErrorEvery is how often the same cause is logged.
const sameErrorEvery = 10 * time.Second

var _ nbd.Volume = (*volume)(nil)

func (v *volume) Bytes() int64 { return v.bytes.Load() }

func (v *volume) Read(start uint64, p []byte) error {
	defer v.took.reads.Since(time.Now())
	return v.answer("read", start, len(p)/record.BlockBytes, v.Device.Read(start, p))
}

func (v *volume) Write(start uint64, p []byte) error {
	defer v.took.writes.Since(time.Now())
	v.writes.Add(int64(len(p) / record.BlockBytes))
	return v.answer("write", start, len(p)/record.BlockBytes, v.Device.Write(start, p))
}

func (v *volume) TryWrite(start uint64, p []byte) bool {
	begun := time.Now()
	if !v.Device.TryWrite(start, p) {
		return false
	}
	v.took.writes.Since(begun)
	v.writes.Add(int64(len(p) / record.BlockBytes))
	return true
}

func (v *volume) Zero(start uint64, blocks uint32, trim bool) error {
	defer v.took.writes.Since(time.Now())
	v.writes.Add(int64(blocks))
	return v.answer("zero", start, int(blocks), v.Device.Zero(start, blocks, trim))
}

func (v *volume) Flush() error {
	defer v.took.flushes.Since(time.Now())
	v.flushes.Add(1)
	return v.answer("flush", 0, 0, v.Device.Flush())
}

// Refused implements nbd.Volume. One line in a while is enough: a filesystem that is larger than its device asks again and again.
func (v *volume) Refused(r nbd.Request, errno nbd.Errno) {
	v.errors.Add(1)
	v.tell(fmt.Sprintf("refused %s %d", r.Command, errno), "a request that the device cannot do is answered with an error",
		"request", r.Command, "offset", r.Offset, "bytes", r.Bytes, "flags", r.Flags, "errno", syscall.Errno(errno), "device", v.Bytes())
}

// tell logs an error, unless it has logged one of the same cause just now.
func (v *volume) tell(cause, message string, args ...any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if time.Since(v.logged[cause]) <= sameErrorEvery {
		return
	}
	if len(v.logged) > 1000 { // causes that name blocks
		clear(v.logged)
	}
	v.logged[cause] = time.Now()
	v.log.Error(message, args...)
}

// answer returns the error of a request. Without an answer the kernel repeats the request on the connection of the next process.
func (v *volume) answer(what string, start uint64, blocks int, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, device.ErrClosed):
		return nbd.ErrStopped
	}
	v.errors.Add(1)
	v.tell(what+err.Error(), "a request is answered with an I/O error", "request", what, "block", start, "blocks", blocks, "error", err)
	return err
}
