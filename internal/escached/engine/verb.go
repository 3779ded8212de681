package engine

import (
	"context"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/problem"
	"github.com/escache/escache-csi/internal/escached/volume"
)

// Time limits of verbs. They are generous: every step has a tighter one.
const (
	changeTimeout  = 2 * time.Minute
	connectTimeout = 3 * time.Minute
	turnTimeout    = 10 * time.Minute
)

// poll is how often the kernel's state is read while a verb waits for it to change.
const poll = 200 * time.Millisecond

// begin locks the volume for a verb. The context that it returns does not end when the caller hangs
// up, so that the verb is not stopped half way.
func (e *Engine) begin(ctx context.Context, ref escache.VolumeRef, verb string, timeout time.Duration) (
	context.Context, func(), error,
) {
	release, err := e.lock(ref, verb)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	return ctx, func() { cancel(); release() }, nil
}

// beginInTurn is begin for verbs that lay or remove replicas. When many pods start, dozens of them
// come at once, and all would time out if they ran together. So only a few run at a time, in the
// order in which they came. The verb's time limit starts with its turn.
func (e *Engine) beginInTurn(ctx context.Context, ref escache.VolumeRef, verb string) (context.Context, func(), error) {
	waiting, done, err := e.begin(ctx, ref, verb, turnTimeout)
	if err != nil {
		return nil, nil, err
	}
	if err := e.turns.Acquire(waiting, 1); err != nil {
		done()
		return nil, nil, problem.On(ref, escache.CodeBusy,
			"other replicas are being laid or removed; after %s it was still not the turn of %s; repeat the call", turnTimeout, verb)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), changeTimeout)
	return ctx, func() { cancel(); e.turns.Release(1); done() }, nil
}

// lock locks the volume for a verb. It fails with CodeBusy, which names the running verb, if the
// volume is locked.
func (e *Engine) lock(ref escache.VolumeRef, verb string) (release func(), err error) {
	release, err = e.locks.Begin(volume.NameOf(ref), verb)
	if err != nil {
		return nil, problem.On(ref, escache.CodeBusy, "%s", err)
	}
	return release, nil
}

// known returns the volume of a replica that is ready. It fails with CodeNotFound if there is none.
func (e *Engine) known(ref escache.VolumeRef) (volume.Volume, error) {
	v, ok := e.reg.Get(volume.NameOf(ref))
	switch {
	case !ok:
		return volume.Volume{}, problem.On(ref, escache.CodeNotFound,
			"%s has no replica of it; PUT %s lays one", e.cfg.Node, escache.PathReplica)
	case v.Phase == volume.Abandoning:
		return volume.Volume{}, problem.On(ref, escache.CodeNotFound,
			"another node has taken it over in epoch %d, and the device on %s is being given up; POST %s finishes that",
			v.Epoch, e.cfg.Node, escache.PathAbandon)
	case v.Phase != volume.Ready:
		return volume.Volume{}, problem.On(ref, escache.CodeNotFound,
			"its replica on %s was not completely laid or removed; repeat that call", e.cfg.Node)
	}
	return v, nil
}

// connected returns the volume and its device. It fails with CodeNotConnected if there is no device
// here.
func (e *Engine) connected(ctx context.Context, ref escache.VolumeRef) (volume.Volume, cache.State, error) {
	v, err := e.known(ref)
	if err != nil {
		return v, cache.State{}, err
	}
	dev, ok, err := e.device(ctx, v.Name())
	if err == nil && !ok {
		err = problem.On(ref, escache.CodeNotConnected, "it is not connected on %s", e.cfg.Node)
	}
	return v, dev, err
}

// withReplica locks the volume and runs do, if its replica is ready.
func (e *Engine) withReplica(ctx context.Context, ref escache.VolumeRef, verb string, do func(context.Context, volume.Volume) error) error {
	ctx, done, err := e.begin(ctx, ref, verb, changeTimeout)
	if err != nil {
		return err
	}
	defer done()
	v, err := e.known(ref)
	if err != nil {
		return err
	}
	return do(ctx, v)
}

// withDevice locks the volume and runs do, if the volume is connected here.
func (e *Engine) withDevice(
	ctx context.Context, ref escache.VolumeRef, verb string, do func(context.Context, volume.Volume, cache.State) error,
) error {
	ctx, done, err := e.begin(ctx, ref, verb, changeTimeout)
	if err != nil {
		return err
	}
	defer done()
	v, dev, err := e.connected(ctx, ref)
	if err != nil {
		return err
	}
	return do(ctx, v, dev)
}

// change is withDevice for verbs that change the running device. It refuses while the volume is
// held or its I/O is frozen.
func (e *Engine) change(
	ctx context.Context, ref escache.VolumeRef, verb string, do func(context.Context, volume.Volume, cache.State) error,
) error {
	return e.withDevice(ctx, ref, verb, func(ctx context.Context, v volume.Volume, dev cache.State) error {
		if err := e.mayTouch(ctx, v, dev); err != nil {
			return err
		}
		return do(ctx, v, dev)
	})
}
