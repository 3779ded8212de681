package host

import (
	"context"
	"slices"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/problem"
	"github.com/escache/escache-csi/internal/escached/volume"
	"github.com/escache/escache-csi/internal/pause"
	"github.com/escache/escache-csi/internal/traces"
)

const (
	// ChangeTimeout is the usual time limit of a verb. It is generous: every step has a tighter
	// one.
	ChangeTimeout = 2 * time.Minute
	// turnTimeout bounds how long a verb waits for its turn.
	turnTimeout = 10 * time.Minute
	// lockTimeout bounds how long a verb waits for another one to end.
	lockTimeout = 20 * time.Second
)

// Names under which work that escached does by itself locks a volume. Mostly it takes seconds. A caller
// did not ask for it and cannot see it, so verbs wait for it.
const (
	WorkAskArbiter   = "ask_arbiter"
	WorkAskRecord    = "ask_record"
	WorkCleanUp      = "clean_up"
	WorkRevive       = "revive"
	WorkReconnect    = "connect_again"
	WorkRecover      = "recover"
	WorkDrain        = "drain"
	WorkSettlePermit = "settle_permit"
	WorkSettleTags   = "settle_tags"
)

func isOwnWork(verb string) bool {
	return slices.Contains([]string{
		WorkAskArbiter, WorkAskRecord, WorkCleanUp, WorkRevive, WorkReconnect, WorkRecover, WorkDrain, WorkSettlePermit,
		WorkSettleTags,
	}, verb)
}

// EndsWithIO reports whether a verb may wait for the volume's own I/O, and does not touch its link. If the peer is lost
// meanwhile and I/O freezes, the verb keeps the volume locked until I/O goes on.
func EndsWithIO(verb string) bool {
	return slices.Contains([]string{"flush", "hold", "mode", "options", "resize", "trim", WorkDrain}, verb)
}

// Poll is how often the kernel's state is read while a verb waits for it to change.
const Poll = 200 * time.Millisecond

// Begin locks the volume for a verb. It waits for work that escached does by itself. The context that
// it returns does not end when the caller hangs up, so that the verb is not stopped half way.
func (h *Host) Begin(ctx context.Context, ref escache.VolumeRef, verb string, timeout time.Duration) (
	context.Context, func(), error,
) {
	return h.beginAfter(ctx, ref, verb, timeout, isOwnWork)
}

// BeginAfterAll is Begin that waits for every running verb, not only for escached's own work.
func (h *Host) BeginAfterAll(ctx context.Context, ref escache.VolumeRef, verb string, timeout time.Duration) (
	context.Context, func(), error,
) {
	return h.beginAfter(ctx, ref, verb, timeout, func(string) bool { return true })
}

func (h *Host) beginAfter(ctx context.Context, ref escache.VolumeRef, verb string, timeout time.Duration, worth func(running string) bool) (
	context.Context, func(), error,
) {
	traces.Note(ctx, "escache.pool", ref.Pool)
	traces.Note(ctx, "escache.image", ref.Image)
	waiting, step := traces.Begin(ctx, "wait for the volume")
	var release func()
	err := h.lockAfter(waiting, ref, func() (err error) {
		release, err = h.Lock(ref, verb)
		return err
	}, worth)
	step.Done(&err)
	return begun(ctx, timeout, release, err)
}

// TryBegin is Begin that waits for nothing. It is for work that escached does by itself.
func (h *Host) TryBegin(ctx context.Context, ref escache.VolumeRef, verb string, timeout time.Duration) (
	context.Context, func(), error,
) {
	release, err := h.Lock(ref, verb)
	return begun(ctx, timeout, release, err)
}

// begun returns the context of a verb that has locked its volume, and what ends the verb.
func begun(ctx context.Context, timeout time.Duration, release func(), err error) (context.Context, func(), error) {
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	return ctx, func() { cancel(); release() }, nil
}

// AfterOwnWork calls lock, which locks the volume, again for as long as work of escached's own has it
// locked. If that takes too long or ctx ends, it returns the last error of lock.
func (h *Host) AfterOwnWork(ctx context.Context, ref escache.VolumeRef, lock func() error) error {
	return h.lockAfter(ctx, ref, lock, isOwnWork)
}

// lockAfter calls lock again for as long as a verb has the volume locked for which worth returns true.
func (h *Host) lockAfter(ctx context.Context, ref escache.VolumeRef, lock func() error, worth func(running string) bool) error {
	for start := h.Now(); ; {
		err := lock()
		if err == nil || problem.Of(err).Code != escache.CodeBusy || h.Now().Sub(start) > lockTimeout {
			return err
		}
		running := h.Running(volume.NameOf(ref)) // "" if the verb has just ended
		if running != "" && !worth(running) || pause.For(ctx, Poll) != nil {
			return err
		}
	}
}

// BeginInTurn is Begin for verbs that create or remove replicas. When many pods start, dozens of them
// come at once, and all would time out if they ran together. So only a few run at a time, in the
// order in which they came. The verb's time limit starts with its turn.
func (h *Host) BeginInTurn(ctx context.Context, ref escache.VolumeRef, verb string) (context.Context, func(), error) {
	waiting, done, err := h.Begin(ctx, ref, verb, turnTimeout)
	if err != nil {
		return nil, nil, err
	}
	waiting, step := traces.Begin(waiting, "wait for its turn")
	err = h.Turns.Acquire(waiting, 1)
	step.Done(&err)
	if err != nil {
		done()
		return nil, nil, problem.On(ref, escache.CodeBusy,
			"other replicas are being created or removed; after %s it was still not the turn of %s; repeat the call", turnTimeout, verb)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ChangeTimeout)
	return ctx, func() { cancel(); h.Turns.Release(1); done() }, nil
}

// Lock locks the volume for a verb. It fails with CodeBusy, which names the running verb, if the
// volume is locked, and with CodeInternal if the tags of its replica cannot be read.
func (h *Host) Lock(ref escache.VolumeRef, verb string) (release func(), err error) {
	if u, ok := h.Volumes.Unreadable()[volume.NameOf(ref)]; ok {
		return nil, problem.On(ref, escache.CodeInternal,
			"%s has a replica whose tags it cannot read, so nothing is done to it: %v; install the version of escached that wrote them",
			h.Config.Node, u.Err)
	}
	release, err = h.locks.Begin(volume.NameOf(ref), verb)
	if err != nil {
		return nil, problem.On(ref, escache.CodeBusy, "%s", err)
	}
	return release, nil
}

// Running returns the verb that has locked the volume with this name, or "".
func (h *Host) Running(name string) string { return h.locks.Running(name) }

// Known returns the volume of a replica that is ready. It fails with CodeNotFound if there is none.
func (h *Host) Known(ref escache.VolumeRef) (volume.Volume, error) {
	v, ok := h.Volumes.Get(volume.NameOf(ref))
	switch {
	case !ok:
		return volume.Volume{}, problem.On(ref, escache.CodeNotFound,
			"%s has no replica of it; PUT %s creates one", h.Config.Node, escache.PathReplica)
	case v.Phase == volume.Abandoning:
		return volume.Volume{}, problem.On(ref, escache.CodeNotFound,
			"another node has taken it over in epoch %d, and the device on %s is being given up; POST %s finishes that",
			v.Epoch, h.Config.Node, escache.PathAbandon)
	case v.Phase != volume.Ready:
		return volume.Volume{}, problem.On(ref, escache.CodeNotFound,
			"its replica on %s was not completely created or removed; repeat that call", h.Config.Node)
	}
	return v, nil
}

// Connected returns the volume and its device. It fails with CodeNotConnected if there is no device
// here.
func (h *Host) Connected(ctx context.Context, ref escache.VolumeRef) (volume.Volume, cache.State, error) {
	v, err := h.Known(ref)
	if err != nil {
		return v, cache.State{}, err
	}
	dev, ok, err := h.Device(ctx, v.Name())
	if err == nil && !ok {
		err = problem.On(ref, escache.CodeNotConnected, "it is not connected on %s", h.Config.Node)
	}
	return v, dev, err
}

// WithReplica locks the volume and runs do, if its replica is ready.
func (h *Host) WithReplica(ctx context.Context, ref escache.VolumeRef, verb string, do func(context.Context, volume.Volume) error) error {
	ctx, done, err := h.Begin(ctx, ref, verb, ChangeTimeout)
	if err != nil {
		return err
	}
	defer done()
	v, err := h.Known(ref)
	if err != nil {
		return err
	}
	return do(ctx, v)
}

// WithDevice locks the volume and runs do, if the volume is connected here.
func (h *Host) WithDevice(
	ctx context.Context, ref escache.VolumeRef, verb string, do func(context.Context, volume.Volume, cache.State) error,
) error {
	ctx, done, err := h.Begin(ctx, ref, verb, ChangeTimeout)
	if err != nil {
		return err
	}
	defer done()
	v, dev, err := h.Connected(ctx, ref)
	if err != nil {
		return err
	}
	return do(ctx, v, dev)
}

// Change is WithDevice for verbs that change the running device. It refuses while the volume is
// held or its I/O is frozen.
func (h *Host) Change(
	ctx context.Context, ref escache.VolumeRef, verb string, do func(context.Context, volume.Volume, cache.State) error,
) error {
	return h.WithDevice(ctx, ref, verb, func(ctx context.Context, v volume.Volume, dev cache.State) error {
		if err := h.MayTouch(ctx, v, dev); err != nil {
			return err
		}
		return do(ctx, v, dev)
	})
}
