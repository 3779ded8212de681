// Package marking marks the images that an older version of the driver has made, once after each
// change of the leader. New images are marked when they are made. An image that has its mark costs
// two short reads.
package marking

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/internal/pause"
)

// Images mark images. Package volumes says how.
type Images interface {
	Mark(ctx context.Context, image volumes.ImageRef, volume string) (id string, err error)
}

// Config holds what Marking needs.
type Config struct {
	// Reader reads a cache of the API server's objects.
	Reader client.Reader
	Images Images
	Log    *slog.Logger
	// Again is the time before those are tried again that could not be marked.
	Again time.Duration
	// Parallel is how many images are marked at once.
	Parallel int
}

// Marking marks the images of all volumes. Add it to controller-runtime's manager.
type Marking struct{ Config }

// New returns a Marking.
func New(config Config) *Marking { return &Marking{config} }

// NeedLeaderElection returns true: only the leader changes images.
func (*Marking) NeedLeaderElection() bool { return true }

// Start marks all images. It returns when each has a mark, or when the context ends.
func (m *Marking) Start(ctx context.Context) error {
	done := map[string]bool{}
	for err := m.pass(ctx, done); err != nil && ctx.Err() == nil; err = m.pass(ctx, done) {
		m.Log.WarnContext(ctx, "not all images are marked as this Kubernetes cluster's; trying again", "error", err)
		_ = pause.For(ctx, m.Again) // fails only if the context has ended
	}
	return nil
}

// pass marks the images of all volumes that are not done. The error names the first that could not
// be marked.
func (m *Marking) pass(ctx context.Context, done map[string]bool) error {
	all := &v1alpha1.CacheVolumeList{}
	if err := m.Reader.List(ctx, all); err != nil {
		return fmt.Errorf("list volumes: %w", err)
	}
	// What is not ready is marked by CreateVolume.
	left := slices.DeleteFunc(all.Items, func(v v1alpha1.CacheVolume) bool {
		return done[v.Name] || v.Status.Phase != v1alpha1.VolumeReady || !v.DeletionTimestamp.IsZero()
	})
	failures := make([]error, len(left))
	var group errgroup.Group
	group.SetLimit(m.Parallel)
	for n := range left {
		group.Go(func() error {
			_, failures[n] = m.Images.Mark(ctx, volumes.ImageOf(&left[n]), left[n].Name)
			return nil
		})
	}
	_ = group.Wait()
	var first error
	unmarked := 0
	for n, err := range failures {
		if err == nil || errors.Is(err, volumes.ErrNotFound) {
			done[left[n].Name] = true
			continue
		}
		if unmarked++; first == nil {
			first = fmt.Errorf("volume %s: %w", left[n].Name, err)
		}
	}
	if first != nil {
		return fmt.Errorf("%d images: %w", unmarked, first)
	}
	return nil
}
