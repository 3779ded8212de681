package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/volume"
)

// damage is what was wrong with a copy, and how much had been written to its disk by then, in KiB, as DRBD
// counts.
type damage struct {
	err     error
	written int64
}

// lookTimeout bounds how long a status waits for another look at a copy.
const lookTimeout = time.Minute

// unknownWritten stands for the count of a replica that is not up.
const unknownWritten = -1

func isDamage(err error) bool {
	return errors.Is(err, cache.ErrCorrupt) || errors.Is(err, cache.ErrForeign)
}

// noteDamage remembers a copy that is damaged, for Status, and returns the error with the volume and the
// host. An error of another kind says nothing about the copy.
func (e *Engine) noteDamage(v volume.Volume, err error, written int64) error {
	err = v.About(fmt.Errorf("on %s: %w", e.Config.Node, err))
	if isDamage(err) {
		e.damaged.Store(v.Name(), damage{err, written})
	}
	return err
}

// written returns how much DRBD has written to the local disk of a replica, in KiB.
func (e *Engine) written(v volume.Volume) int64 {
	st, up, err := e.Replica(v.Minor)
	if err != nil || !up {
		return unknownWritten
	}
	return st.DiskWrittenKiB
}

// damageOf returns what was wrong with a copy when somebody looked last.
func (e *Engine) damageOf(name string) (damage, bool) {
	stored, ok := e.damaged.Load(name)
	if !ok {
		return damage{}, false
	}
	d, ok := stored.(damage)
	return d, ok
}

// lookAgain forgets that a copy was damaged if it is in order now: the peer has filled it since. It looks
// only if something was written: that reads as much as making the cache does.
func (e *Engine) lookAgain(ctx context.Context, r volume.Reading) {
	if d, was := e.damageOf(r.Name()); was && r.Up && !r.Connected && d.written != r.Replica.DiskWrittenKiB {
		ctx, cancel := context.WithTimeout(ctx, lookTimeout) // a long log is read when the volume is connected
		defer cancel()
		_ = e.checkCopy(ctx, r.Volume, r.ImageID)
	}
}
