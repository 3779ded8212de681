package engine

import (
	"context"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/escache/escache-csi/internal/escached/host"
	"github.com/escache/escache-csi/internal/escached/lvm"
	"github.com/escache/escache-csi/internal/escached/volume"
	"github.com/escache/escache-csi/internal/pause"
)

const (
	// againFirst is the pause before volumes that could not be recovered are tried again for the first time.
	againFirst = 5 * time.Second
	// againLongest is the longest pause between two tries.
	againLongest = 30 * time.Second
)

// recoverAgain recovers the volumes that Recover could not, as soon as that is possible. It returns when ctx ends. It costs
// nothing while there are none. Nothing else does all that is due for them: a replica may come up by itself, and its image
// still be mapped.
func (e *Engine) recoverAgain(ctx context.Context) {
	for wait := againFirst; pause.For(ctx, wait) == nil; wait = min(2*wait, againLongest) {
		faulty := slices.DeleteFunc(e.Volumes.List(), func(v volume.Volume) bool { return !e.isFaulty(v.Name()) })
		if len(faulty) == 0 {
			continue
		}
		lvs, err := e.Store.Volumes(ctx, false)
		if err != nil {
			continue // the next round reads them again
		}
		var recovering errgroup.Group
		recovering.SetLimit(e.recoverAtOnce)
		for _, v := range faulty {
			i := slices.IndexFunc(lvs, func(lv lvm.Volume) bool { return lv.Name == v.Name() })
			if i < 0 || lvs[i].Partial && e.diskMissing(v.Name()) {
				continue // its disk is still away
			}
			recovering.Go(func() error { e.recoverOnceMore(ctx, v, lvs[i]); return nil })
		}
		_ = recovering.Wait()
	}
}

func (e *Engine) isFaulty(name string) bool {
	_, faulty := e.faults.Load(name)
	return faulty
}

// recoverOnceMore recovers one volume, unless a verb runs or has made that needless.
func (e *Engine) recoverOnceMore(ctx context.Context, v volume.Volume, lv lvm.Volume) {
	ctx, done, err := e.TryBegin(ctx, v.VolumeRef, host.WorkRecover, host.ChangeTimeout)
	if err != nil {
		return // a verb is running; the next round looks again
	}
	defer done()
	v, known := e.Volumes.Get(v.Name())
	if !known || !e.isFaulty(v.Name()) {
		return
	}
	if st, up, err := e.Replica(v.Minor); err != nil || up && st.Suspended {
		return // it would hang in the frozen I/O
	}
	dev, connected, err := e.Device(ctx, v.Name())
	if err != nil {
		return
	}
	e.fault(v.Name(), e.recoverLocked(ctx, v, lv, dev, connected))
}
