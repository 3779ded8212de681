package unfence

import (
	"context"
	"log/slog"
	"time"

	"github.com/escache/escache-csi/internal/pause"
)

// Fences keeps clients fenced; *volumes.Locked.
type Fences interface {
	KeepFenced(ctx context.Context) error
}

// Watch looks whether the clients that have to stay fenced are still on Ceph's blocklist, while this process
// leads. Anybody may remove an entry. An old map whose entry is gone writes again: what its host still has
// may be older than what the next holder has written.
type Watch struct {
	Fences Fences
	Log    *slog.Logger
	// Every is the time between two looks, and Longest bounds one.
	Every   time.Duration
	Longest time.Duration
}

// NeedLeaderElection returns true: only the leader fences.
func (*Watch) NeedLeaderElection() bool { return true }

// Start looks until the context ends.
func (w *Watch) Start(ctx context.Context) error {
	for ctx.Err() == nil {
		w.look(ctx)
		_ = pause.For(ctx, w.Every) // fails only if the context has ended
	}
	return nil
}

func (w *Watch) look(ctx context.Context) {
	bounded, cancel := context.WithTimeout(ctx, w.Longest)
	defer cancel()
	if err := w.Fences.KeepFenced(bounded); err != nil && ctx.Err() == nil {
		w.Log.WarnContext(ctx, "not all fenced clients are known to be on Ceph's blocklist; trying again", "error", err)
	}
}

// Left lifts the fences of volumes whose records are gone, while this process leads.
type Left struct {
	Fences LeftFences
	Log    *slog.Logger
	// Every is the time between two tries, and Longest bounds one.
	Every   time.Duration
	Longest time.Duration
}

// LeftFences lifts such fences; *volumes.Locked.
type LeftFences interface {
	UnfenceLeft(ctx context.Context) error
}

// NeedLeaderElection returns true: only the leader lifts fences.
func (*Left) NeedLeaderElection() bool { return true }

// Start tries until the context ends.
func (l *Left) Start(ctx context.Context) error {
	for ctx.Err() == nil {
		bounded, cancel := context.WithTimeout(ctx, l.Longest)
		err := l.Fences.UnfenceLeft(bounded)
		cancel()
		if err != nil && ctx.Err() == nil {
			l.Log.DebugContext(ctx, "could not lift fences of volumes that are gone yet", "error", err)
		}
		_ = pause.For(ctx, l.Every) // fails only if the context has ended
	}
	return nil
}
