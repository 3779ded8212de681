// Package control is how escached speaks to the process that serves one volume's device: HTTP with JSON bodies over a unix
// socket of that process. It is between two programs of the same release or of neighbouring ones: a server refuses fields that it does
// not know, and a client ignores them.
//
// Every request can be repeated. Only WriteBack and Hold wait for the image. The writing goes on when the caller leaves.
package control

import (
	"errors"
	"time"

	"github.com/escache/escache-csi/internal/escached/cache"
)

// Paths of the calls. Status is a GET, all others are POSTs.
const (
	pathStatus    = "/v1/status"
	pathWriteBack = "/v1/writeback"
	pathRetry     = "/v1/retry"
	pathMode      = "/v1/mode"
	pathOptions   = "/v1/options"
	pathResize    = "/v1/resize"
	pathHold      = "/v1/hold"
	pathResume    = "/v1/resume"
	pathStop      = "/v1/stop"
	pathHandOver  = "/v1/handover"
	pathLeave     = "/v1/leave"
)

// Errors of calls, beside cache.ErrOpen, cache.ErrFailed and cache.ErrDirty.
var (
	// ErrUnreachable means that no process answers at the socket: it has died, hangs, or was never there. If the request was
	// sent, what it asked for may still happen.
	ErrUnreachable = errors.New("the cache's process does not answer")
	// ErrHeld means that the volume is held already, and that its image is of an earlier moment.
	ErrHeld = errors.New("the volume is held already")
	// ErrInvalid means that the request cannot be done whatever the state, and should not be repeated.
	ErrInvalid = errors.New("the request is not valid")
	// ErrStopping means that the process is about to end: it was told to stop, or to hand over.
	ErrStopping = errors.New("the cache's process is stopping")
	// ErrBroken means that the log itself has failed: its disk has refused a write. Nothing is acknowledged any more until the
	// process is started again. What is stable can still be written back.
	ErrBroken = errors.New("the log has failed")
	// ErrOther is anything else. The text says what.
	ErrOther = errors.New("the cache's process has failed at it")
)

// codes are the errors on the wire. The first one that fits counts.
var codes = []struct {
	code   string
	err    error
	status int
}{
	{"open", cache.ErrOpen, 409},
	{"held", ErrHeld, 409},
	{"dirty", cache.ErrDirty, 409},
	{"failed", cache.ErrFailed, 409},
	{"stopping", ErrStopping, 409},
	{"broken", ErrBroken, 500},
	{"invalid", ErrInvalid, 400},
}

const codeOther = "other"

// failure is the body of an answer that is not 2xx.
type failure struct {
	Code   string `json:"code"`
	Detail string `json:"detail"`
}

// Status is a process and its volume at one moment. Sizes are bytes.
type Status struct {
	// Name is the volume's name on this host.
	Name    string `json:"name"`
	Version string `json:"version"`
	PID     int    `json:"pid"`
	// Device is the kernel's block device, such as /dev/nbd3. It has no count of its users: a device-mapper device in front has.
	Device string `json:"device"`
	// Origin is the image's device number, MAJOR:MINOR.
	Origin string `json:"origin"`
	Bytes  int64  `json:"bytes"`
	// Options are those in effect, as they were set: a number that is zero means the default. Mode and Order are never empty.
	Options Options `json:"options"`

	// Dirty is not in the image yet, what was answered and is not in the log included. Free is what can be written before
	// writes wait for the image; it is less if writes are small, because each record has a header. WritingBack is on its way to the image.
	Dirty       int64 `json:"dirty"`
	Free        int64 `json:"free"`
	WritingBack int64 `json:"writingBack"`
	// Failed is true after the image refused a write, until Retry. Cause says what it answered.
	Failed bool   `json:"failed"`
	Cause  string `json:"cause,omitempty"`
	// Broken says why the log has failed, if it has.
	Broken string `json:"broken,omitempty"`
	// Held is true during a hold.
	Held bool `json:"held"`
	// Stopping is true once the process takes no more I/O.
	Stopping bool `json:"stopping,omitempty"`

	Log        Log        `json:"log"`
	Counters   Counters   `json:"counters"`
	Histograms Histograms `json:"histograms"`
}

// Log is the state of the log.
type Log struct {
	// Bytes is the length of the ring. Used can not be written now, Live of it is not in the image: the rest is free after a
	// superblock was written. Memory is that of the index.
	Bytes  int64 `json:"bytes"`
	Used   int64 `json:"used"`
	Live   int64 `json:"live"`
	Memory int64 `json:"memory"`
	// Sequence is the newest record.
	Sequence   uint64 `json:"sequence"`
	Generation uint64 `json:"generation"`
	// Recovery is how long opening the log took, in nanoseconds.
	Recovery time.Duration `json:"recovery"`
	// Losses are acknowledged data that recovery did not find whole on the disk.
	Losses []string `json:"losses,omitempty"`
}

// Counters count since the process was started. Blocks have 4 KiB.
type Counters struct {
	cache.Counters

	Flushes int64 `json:"flushes"`
	// Records were written to the log; RecordBlocks are their length, with their headers.
	Records      int64 `json:"records"`
	RecordBlocks int64 `json:"recordBlocks"`
	// WrittenBack are blocks that went to the image.
	WrittenBack int64 `json:"writtenBack"`
	// Errors are requests that were answered with an error.
	Errors int64 `json:"errors"`
}

// Histograms are those of cache.Measures.
type Histograms struct {
	Reads        cache.Histogram `json:"reads"`
	Writes       cache.Histogram `json:"writes"`
	Flushes      cache.Histogram `json:"flushes"`
	RecordWrites cache.Histogram `json:"recordWrites"`
}

func (s Status) measures() *cache.Measures {
	return &cache.Measures{
		LogBytes: s.Log.Bytes, LogUsed: s.Log.Used, LogLive: s.Log.Live, IndexBytes: s.Log.Memory, Recovery: s.Log.Recovery,
		Reads: s.Histograms.Reads, Writes: s.Histograms.Writes, Flushes: s.Histograms.Flushes, RecordWrites: s.Histograms.RecordWrites,
		RecordBytes: s.Counters.RecordBlocks * cache.BlockBytes, WrittenBack: s.Counters.WrittenBack * cache.BlockBytes,
		Errors: s.Counters.Errors,
	}
}

// State returns the status as cache.State. Path is the process's device, and Open is not known: see Device. Nothing is known of a log that
// has failed, or that a successor may have.
func (s Status) State() cache.State {
	state := cache.State{
		Path: s.Device, Origin: s.Origin, Bytes: s.Bytes, Options: s.Options.Cache(),
		Known: s.Broken == "" && !s.Stopping, Failed: s.Failed, Held: s.Held, Counters: s.Counters.Counters,
		Measures: s.measures(),
	}
	if state.Known {
		state.Dirty, state.Free, state.WritingBack = s.Dirty, s.Free, s.WritingBack
	}
	return state
}

type modeRequest struct {
	Mode cache.Mode `json:"mode"`
}

type resizeRequest struct {
	Bytes int64 `json:"bytes"`
}

type holdRequest struct {
	// Limit ends the hold whatever becomes of the caller, in nanoseconds since the answer.
	Limit time.Duration `json:"limit"`
}

// Handed is the answer to HandOver.
type Handed struct {
	PID int `json:"pid"`
	// Links are connections of the device with which the successor can go on, so that the kernel notices nothing. There may be fewer
	// than the device has, or none.
	Links []Link `json:"links,omitempty"`
}

// Link is one connection of the device.
type Link struct {
	// FD is the socket's descriptor in the process, and Inode the socket's own number.
	FD    int    `json:"fd"`
	Inode uint64 `json:"inode"`
	// Left was read from the socket and is not answered.
	Left []byte `json:"left,omitempty"`
}

// Resumed is the answer to Resume.
type Resumed struct {
	// Held reports whether there was a hold. If not, the image has not stood still all the time since Hold.
	Held bool `json:"held"`
}
