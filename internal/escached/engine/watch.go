package engine

import (
	"context"
)

// Watch does what nobody asks for, until ctx ends: it connects again what DRBD has given up, asks the arbiter again, gives back what a verb
// left behind, and releases holds whose time is up. It is called after Recover.
func (e *Engine) Watch(ctx context.Context) {
	go e.watchFrozen(ctx)
	go e.watchLeftovers(ctx)
	go e.watchStandbys(ctx)
	go e.watchUnasked(ctx)
	go e.watchAlone(ctx)
	go e.space.watch(ctx)
	e.watchHolds(ctx)
}

// Names of what escached does to a volume by itself.
const (
	verbAskArbiter   = "ask_arbiter"
	verbAskRecord    = "ask_record"
	verbConnectAgain = "connect_again"
)
