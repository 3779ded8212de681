package csi_test

import (
	"context"
	"time"

	"github.com/escache/escache-csi/internal/controller/volumes"
)

func (f *fakeImages) TakeSnapshot(ctx context.Context, ref volumes.SnapshotRef) (volumes.Snapshot, error) {
	if f.taking != nil {
		f.taking(ref)
	}
	if f.refusing != nil {
		if err := f.refusing(ctx, ref); err != nil {
			return volumes.Snapshot{}, err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		return volumes.Snapshot{}, f.fail
	}
	f.taken[ref]++
	return volumes.Snapshot{SizeBytes: f.images[ref.ImageRef], Taken: time.Now()}, nil
}

func (f *fakeImages) DeleteSnapshot(_ context.Context, ref volumes.SnapshotRef) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail == nil {
		delete(f.taken, ref)
	}
	return f.fail
}
