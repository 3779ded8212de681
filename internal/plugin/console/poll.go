package console

import (
	"context"
	"time"

	"github.com/escache/escache-csi/internal/pause"
)

// PollInterval is the time between two reads with --watch. Commands that wait for an end look more
// often.
const PollInterval = 2 * time.Second

// Poll looks at once and then again after each interval, until look says that it is done, with or
// without an error, or fails. When the context ends first, the error is that of unfinished: what look
// fails with then has no other cause.
func Poll(ctx context.Context, interval time.Duration, look func() (done bool, err error), unfinished func() error) error {
	for {
		done, err := look()
		switch {
		case done:
			return err
		case ctx.Err() != nil:
			return unfinished()
		case err != nil:
			return err
		case pause.For(ctx, interval) != nil:
			return unfinished()
		}
	}
}
