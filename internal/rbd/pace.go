package rbd

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/ceph/go-ceph/rados"

	"github.com/escache/escache-csi/internal/pause"
)

// deletesAtOnce is how many objects of one image are deleted at once. Ceph's own default is ten.
const deletesAtOnce = 4

// deleteAll deletes the objects that names yields, and those that are gone already. Each of its
// deleters rests as long as its last deletion took: the busier the OSDs are, the more they have for
// the volumes in use. It ends with the first error, or with the context.
func deleteAll(ctx context.Context, io *rados.IOContext, names func(yield func(string) bool) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	work := make(chan string)
	var deleters sync.WaitGroup
	for range deletesAtOnce {
		deleters.Go(func() {
			for name := range work {
				if err := deleteOne(ctx, io, name); err != nil {
					cancel(err)
				}
			}
		})
	}
	err := names(func(name string) bool {
		select {
		case work <- name:
			return true
		case <-ctx.Done():
			return false
		}
	})
	close(work)
	deleters.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

func deleteOne(ctx context.Context, io *rados.IOContext, name string) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	begun := time.Now()
	if err := io.Delete(name); err != nil && !errors.Is(err, rados.ErrNotFound) {
		return err
	}
	return pause.For(ctx, time.Since(begun))
}

// pacer has who lists objects rest as long as the listing took.
type pacer struct {
	since time.Time
	n     int
}

// listed is called after each object. It returns an error when the context has ended.
func (p *pacer) listed(ctx context.Context) error {
	const together = 1000 // about as many as Ceph lists in one message
	if p.n++; p.n%together != 0 {
		return nil
	}
	err := pause.For(ctx, time.Since(p.since))
	p.since = time.Now()
	return err
}
