package csi

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/internal/operation"
	"github.com/escache/escache-csi/internal/pause"
)

// Operations that copy a volume, or remove a copy. They wait for each other.
const (
	makingClone      = "the making of a clone"
	takingSnapshot   = "CreateSnapshot"
	removingSnapshot = "DeleteSnapshot"
	takingGroup      = "CreateVolumeGroupSnapshot"
	removingGroup    = "DeleteVolumeGroupSnapshot"
	makingReadOnly   = "the making of a read-only volume"
)

// Operations that give nodes a read-only volume or take it from them. They wait for each other: nodes do not
// exclude each other there, and many get the volume at the same time.
const (
	attachingReadOnly = "the attachment of a read-only volume"
	detaching         = "ControllerUnpublishVolume" // of any volume
)

const (
	// turnShare is the share of a call's time that it may wait for other operations. The rest is for
	// the call itself, or the repeated one would have to begin again.
	turnShare = 3
	turnPause = 50 * time.Millisecond
)

// copies are the operations that wait for each other.
func copies() []string {
	return []string{makingClone, takingSnapshot, removingSnapshot, takingGroup, removingGroup, makingReadOnly}
}

// begin locks a volume for a call. It waits only for what csi-controller does by itself and what takes a
// moment: what it writes into records, and a bite of a write-back or of a trim. A user must not have to wait for the
// sidecar's next try because of that.
func (s *service) begin(ctx context.Context, volume, name string) (done func(), err error) {
	ctx, cancel := forTurn(ctx)
	defer cancel()
	return s.waitTurn(ctx, volume, name, append(volumes.Reports(), volumes.WritingBack, volumes.Trimming)...)
}

// turn locks a volume for an operation that copies it. It waits while other copies are made or
// removed: each takes a moment, and the sidecars repeat all calls that were refused at the same time
// again, after pauses of up to 5 minutes. Apart from reports nothing else is waited for. No two calls can
// wait for each other: a volume is on record before its copies are.
func (s *service) turn(ctx context.Context, volume, name string) (done func(), err error) {
	return s.turns(ctx, []string{volume}, name)
}

// turns is turn for several volumes, which must be sorted: calls that lock more than one do so in the
// same order, so that none waits for another that waits for it.
func (s *service) turns(ctx context.Context, all []string, name string) (done func(), err error) {
	ctx, cancel := forTurn(ctx)
	defer cancel()
	others := slices.Concat(copies(), volumes.Reports())
	var locked []func()
	done = func() {
		for _, end := range locked {
			end()
		}
	}
	for _, volume := range all {
		end, err := s.waitTurn(ctx, volume, name, others...)
		if err != nil {
			done()
			return nil, err
		}
		locked = append(locked, end)
	}
	return done, nil
}

// forTurn returns a context that ends when a call must not wait any more.
func forTurn(ctx context.Context) (context.Context, context.CancelFunc) {
	if end, ok := ctx.Deadline(); ok {
		return context.WithTimeout(ctx, time.Until(end)/turnShare)
	}
	return ctx, func() {}
}

// waitTurn locks a volume. It waits while one of the other operations runs.
func (s *service) waitTurn(ctx context.Context, volume, name string, others ...string) (done func(), err error) {
	for {
		done, err = s.operations.Begin(volume, name)
		var busy *operation.BusyError
		if !errors.As(err, &busy) || !slices.Contains(others, busy.Running) || pause.For(ctx, turnPause) != nil {
			return done, err
		}
	}
}

// readOnlyTurn locks a read-only volume to give it to a node or take it from one. It waits for other nodes.
func (s *service) readOnlyTurn(ctx context.Context, volume, name string) (done func(), err error) {
	ctx, cancel := forTurn(ctx)
	defer cancel()
	return s.waitTurn(ctx, volume, name, attachingReadOnly, detaching)
}

// detachTurn locks a volume to take it from a node. With a read-only volume it waits for other nodes.
func (s *service) detachTurn(ctx context.Context, volume string) (done func(), err error) {
	if done, err = s.begin(ctx, volume, detaching); err == nil {
		return done, nil
	}
	if _, other := s.readOnly.Get(ctx, volume); other != nil {
		return nil, err
	}
	return s.readOnlyTurn(ctx, volume, detaching)
}
