package engine

import "context"

// Watch runs the background work until ctx ends. It asks the arbiter again about frozen I/O and
// outdated replicas, links copies that were booted, revives devices, makes devices that write through go on with what is
// dirty, reconnects replicas, and settles permits and tags. It cleans up what verbs left behind, also without a cache,
// recovers what Recover could not, and reads again what status reports. Call it after Recover.
func (e *Engine) Watch(ctx context.Context) {
	go e.recoverAgain(ctx)
	go e.watcher.Frozen(ctx, e.finishAbandoned)
	go e.watcher.Leftovers(ctx)
	go e.uncached.Watch(ctx)
	go e.watcher.Unserved(ctx)
	go e.watcher.Undrained(ctx)
	go e.standbys.Watch(ctx)
	go e.outdated.Watch(ctx)
	go e.watcher.Alone(ctx)
	go e.watcher.Booted(ctx)
	go e.watcher.Exchanges(ctx)
	go e.watcher.Permits(ctx)
	go e.watcher.Tags(ctx)
	e.space.Watch(ctx)
}
