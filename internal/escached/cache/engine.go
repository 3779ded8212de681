// Package cache defines what escached needs of a write-back cache: one local, replicated disk (the
// cache's disk) in front of one slower block device (the origin, an RBD image).
//
// An Engine is one way to build such a cache. cmd/escached has all engines, each replica's tag says
// which one is its own, and everything calls it through this interface only. What an engine knows about its kernel target, its metadata
// and its failures stays in the engine's own package.
//
// The verbs decide when a cache may be used: epochs, promotion, fencing and holds are not an
// engine's business. An engine keeps nothing in memory that it could not read again: a new process
// finds everything on the disk and in the kernel.
package cache

import (
	"context"
	"time"
)

// Engine builds and drives caches. Sizes are bytes. A name is the volume's on this host; it is
// unique and starts with escached's prefix. The caller never changes one cache from two goroutines,
// but it calls States at any time.
//
// A device may be served by a process of its own, which can die while the device stays: see
// State.Unserved and Revive.
//
// Every method may fail, and the process may be killed in it, at any step. Then the caller calls
// Resume if States has the cache, or Remove if not, and may repeat the method. A method that needs
// an assembled cache returns ErrAbsent if there is none.
type Engine interface {
	// Wipe makes a disk look as if it was never used. The rest of its content stays.
	Wipe(ctx context.Context, disk Disk) error
	// Unused reports whether nothing was written to a disk since it was wiped, neither by Prepare
	// on this host nor by a resync from another one.
	Unused(ctx context.Context, disk Disk) (bool, error)
	// Dirty counts the bytes on a disk that are not in the origin. The disk may be part of an
	// assembled cache or not. The count is right only if nobody writes meanwhile. A blank disk has
	// none. Dirty returns ErrCorrupt if the metadata cannot be read, or is blank although the header
	// says that the disk was formatted.
	Dirty(ctx context.Context, disk Disk) (int64, error)

	// CheckOptions returns an error that names the option if the engine cannot work with o.
	CheckOptions(o Options) error
	// Check looks at a disk as Prepare and Assemble do, and changes nothing: ErrForeign if it belongs to
	// another image, ErrCorrupt if its cache cannot be used. A disk that Prepare would format is in order.
	// If it ends before it knows, the error wraps ErrUnchecked.
	Check(ctx context.Context, disk Disk, id Identity, usedHere bool) error
	// Prepare makes a disk ready for Assemble, on the host that may write to it. It formats a disk
	// that was never used and writes id to it. Any other disk is only checked: ErrForeign if it
	// belongs to another image, ErrCorrupt if its cache cannot be used. After these two errors the
	// disk is as it was. usedHere says that this host has handed out the cache before; then a blank
	// disk has lost data and is ErrCorrupt.
	Prepare(ctx context.Context, s Spec, id Identity, usedHere bool) error
	// Assemble makes the device from a disk that is prepared and an origin, and returns its path.
	// What was dirty on the disk is dirty in the new cache. After an error no device is left,
	// unless the error says so. After ErrRecovering the cache is there and is still being made: the caller
	// calls Resume until it is complete, or Remove.
	Assemble(ctx context.Context, s Spec) (path string, err error)
	// Remove removes the device, and whatever a killed Prepare or Assemble left. It writes nothing
	// back: what is dirty stays on the disk. It returns ErrOpen while someone has the device open.
	// Removing what is not there succeeds.
	Remove(ctx context.Context, name string) error
	// Fail makes all I/O to the device fail that waits for its process, and all that comes later. It ends
	// the process, and what only that has is lost. The caller has made the disk fail, and calls Remove next.
	// If the device needs no process, the disk's errors reach its users, and Fail only ends what a hold keeps.
	Fail(ctx context.Context, name string) error
	// Stop is Remove for a cache that is clean and leaves this host. A process that has died may have
	// answered writes that only this host's memory has, and Dirty does not count those. Then Stop
	// returns ErrUnserved; the caller calls Resume, and the cache is there again.
	Stop(ctx context.Context, name string) error

	// States returns all assembled caches whose name has the prefix, by name. It starts no child
	// and waits for no I/O, so it also answers while I/O is frozen.
	States(ctx context.Context, prefix string) (map[string]State, error)

	// WriteBack writes to the origin what is dirty when it is called, and returns when that is
	// done, however long the origin takes. When ctx ends WriteBack returns, but the writing goes
	// on. Success does not mean clean: I/O goes on meanwhile. If the origin refuses a write,
	// WriteBack fails and State.Failed is set.
	WriteBack(ctx context.Context, name string) error
	// Retry clears State.Failed so that WriteBack can be tried again. Nothing dirty is lost, the
	// device stays open, and Failed is set again if the origin still refuses.
	Retry(ctx context.Context, name string) error
	// SetMode changes the mode under running I/O. It does not wait until what is dirty already is in the
	// origin: see WriteBack. In Writethrough an engine writes that back unasked. If it may stop before
	// everything is there, SetMode with the same mode makes it go on.
	SetMode(ctx context.Context, name string, m Mode) error
	// SetOptions changes the watermarks and the maximum age under running I/O. Zero means the engine's
	// default. The mode stays; o.Mode has no effect. CheckOptions must have accepted o. What is dirty
	// already is at its maximum age, at the latest, that long after the call.
	SetOptions(ctx context.Context, name string, o Options) error
	// Resize makes the device larger under running I/O, after the origin has grown. It never
	// shrinks a device. Called with the size that there is, it completes an interrupted Resize.
	Resize(ctx context.Context, name string, bytes int64) error
	// Hold brings the origin to one point in time: it holds everything that was acknowledged before
	// the call, and gets nothing more until Resume. An engine may stop all I/O for as long; if it does
	// not, State.GoesOn is set, and Resume comes before another Hold. With pause it must stop all I/O, from
	// before the origin has everything until Resume. A hold outlives this process, and so does a pause.
	// Hold returns ErrFailed if the origin refuses a write and ErrDirty if it did not get everything.
	// After any error the caller calls Resume.
	Hold(ctx context.Context, name string, pause bool) error
	// Revive makes I/O to a device go on whose process has died: see State.Unserved. It changes nothing
	// else: a hold goes on, and a change that was interrupted stays so. It does nothing if the device is
	// served, or needs no process.
	Revive(ctx context.Context, name string) error
	// Resume ends a hold, and completes an Assemble, SetMode, SetOptions, Resize or Retry that was
	// interrupted. It revives a device, too.
	// It does nothing to a cache that works, and does not clear State.Failed of one that is not
	// held.
	Resume(ctx context.Context, name string) error

	// ReadTime returns how long Check and Dirty may take on a disk of this size. It is never less for a larger
	// disk. A caller who gives them less time may never get an answer.
	ReadTime(diskBytes int64) time.Duration

	// Memory returns how much of the host's memory an assembled cache on a disk of this size takes, in
	// bytes, whoever takes it: the kernel or a process. It is never negative, and never less for a
	// larger disk. It may be somewhat too much, but never too little.
	Memory(diskBytes int64) int64

	// Version returns the version of the engine that this host can run, or "" if its kernel lacks what
	// the engine needs. It starts no child.
	Version(ctx context.Context) (string, error)
	// Modules returns the kernel modules that the engine needs, the most important first.
	Modules() []string
}
