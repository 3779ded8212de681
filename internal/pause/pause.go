// Package pause waits for a while, but not longer than a context lasts.
package pause

import (
	"context"
	"time"
)

// For returns nil after d, or the context's error as soon as the context ends.
func For(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
