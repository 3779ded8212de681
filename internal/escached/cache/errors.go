package cache

import "errors"

// Errors that callers distinguish.
var (
	// ErrAbsent means that the cache is not assembled.
	ErrAbsent = errors.New("the cache is not assembled")
	// ErrNoEngine means that this host cannot run the cache engine of a volume.
	ErrNoEngine = errors.New("this host cannot run the cache engine")
	// ErrUnserved means that the process that should serve the device is dead or does not answer.
	ErrUnserved = errors.New("nothing serves the device")
	// ErrOpen means that someone has the device open.
	ErrOpen = errors.New("the device is open")
	// ErrRecovering means that the process that is to serve the device runs and reads what is on the disk. It is not
	// ended, and nothing is undone: whoever asks again waits for the same process.
	ErrRecovering = errors.New("what is on the cache's disk is still being read")
	// ErrUnchecked means that it is not known yet whether a disk's cache is in order: reading it took too long.
	ErrUnchecked = errors.New("it is not known yet whether the copy is in order")
	// ErrFailed means that the origin refused a write: see State.Failed.
	ErrFailed = errors.New("the cache could not write back")
	// ErrDirty means that the origin lacks data that it should have by now.
	ErrDirty = errors.New("the cache is still dirty")
	// ErrForeign means that a disk holds the cache of another image.
	ErrForeign = errors.New("the cache belongs to another image")
	// ErrCorrupt means that what is on a disk cannot be used as a cache, and that data may be lost.
	ErrCorrupt = errors.New("the cache is damaged and cannot be used")
)
