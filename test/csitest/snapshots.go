package csitest

import (
	"context"
	"time"

	"github.com/escache/escache-csi/internal/controller/volumes"
)

// TakeSnapshot counts up Taken, unless Refusing answers.
func (f *Images) TakeSnapshot(ctx context.Context, ref volumes.SnapshotRef) (volumes.Snapshot, error) {
	if f.Taking != nil {
		f.Taking(ref)
	}
	if f.Refusing != nil {
		if err := f.Refusing(ctx, ref); err != nil {
			return volumes.Snapshot{}, err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.Fail != nil {
		return volumes.Snapshot{}, f.Fail
	}
	f.Taken[ref]++
	return volumes.Snapshot{SizeBytes: f.Sizes[ref.ImageRef], Taken: time.Now()}, nil
}

// DeleteSnapshot removes a snapshot.
func (f *Images) DeleteSnapshot(_ context.Context, ref volumes.SnapshotRef) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.Fail == nil {
		delete(f.Taken, ref)
	}
	return f.Fail
}
