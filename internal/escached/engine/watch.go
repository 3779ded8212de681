package engine

import (
	"context"
)

// Watch runs the background work until ctx ends: it asks the arbiter again about frozen I/O and
// outdated replicas, reconnects replicas, cleans up what verbs left behind, releases overdue holds,
// and reads again what status reports. Call it after Recover.
func (e *Engine) Watch(ctx context.Context) {
	go e.watchFrozen(ctx)
	go e.watchLeftovers(ctx)
	go e.standbys.Watch(ctx)
	go e.watchUnasked(ctx)
	go e.watchAlone(ctx)
	go e.space.Watch(ctx)
	e.watchHolds(ctx)
}

// Names of the background work that locks a volume.
const (
	verbAskArbiter   = "ask_arbiter"
	verbAskRecord    = "ask_record"
	verbConnectAgain = "connect_again"
)
