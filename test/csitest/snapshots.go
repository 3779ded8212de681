package csitest

import (
	"context"
	"fmt"
	"time"

	"github.com/escache/escache-csi/internal/controller/volumes"
)

// Settled returns at once, unless Settling answers.
func (f *Images) Settled(_ context.Context, image volumes.ImageRef) error {
	if f.Settling != nil {
		if err := f.Settling(image); err != nil {
			return err
		}
	}
	return f.Fail
}

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
	if f.Foreign[ref.ImageRef] {
		return volumes.Snapshot{}, fmt.Errorf("of another Kubernetes cluster: %w", volumes.ErrRefused)
	}
	f.Taken[ref]++
	f.TakenAt[ref] = time.Now()
	return volumes.Snapshot{SizeBytes: f.Sizes[ref.ImageRef], Taken: f.TakenAt[ref]}, nil
}

// SnapshotTime returns when a snapshot was taken.
func (f *Images) SnapshotTime(_ context.Context, ref volumes.SnapshotRef) (time.Time, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.TakenAt[ref], f.Fail
}

// DeleteSnapshot removes a snapshot. Whether there is one, Ceph sees before it sees whose the image is.
func (f *Images) DeleteSnapshot(_ context.Context, ref volumes.SnapshotRef) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, there := f.Taken[ref]; there && f.Fail == nil {
		if f.Foreign[ref.ImageRef] {
			return fmt.Errorf("of another Kubernetes cluster: %w", volumes.ErrRefused)
		}
		delete(f.Taken, ref)
		delete(f.TakenAt, ref)
	}
	return f.Fail
}
