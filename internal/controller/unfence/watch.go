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
	repeat(ctx, w.Every, w.Longest, w.Fences.KeepFenced, func(err error) {
		w.Log.WarnContext(ctx, "not all fenced clients are known to be on Ceph's blocklist; trying again", "error", err)
	})
	return nil
}

// repeat calls do until the context ends, with a pause after each call. It tells of failures, unless the context has ended.
func repeat(ctx context.Context, every, longest time.Duration, do func(ctx context.Context) error, tell func(err error)) {
	for ctx.Err() == nil {
		bounded, cancel := context.WithTimeout(ctx, longest)
		err := do(bounded)
		cancel()
		if err != nil && ctx.Err() == nil {
			tell(err)
		}
		_ = pause.For(ctx, every) // fails only if the context has ended
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
	repeat(ctx, l.Every, l.Longest, l.Fences.UnfenceLeft, func(err error) {
		l.Log.DebugContext(ctx, "could not lift fences of volumes that are gone yet", "error", err)
	})
	return nil
}
