package csitest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/escache/escache-csi/internal/controller/volumes"
)

// Images is Ceph in a map. It may be changed while no call runs.
type Images struct {
	mu sync.Mutex

	Sizes    map[volumes.ImageRef]int64              // of the images that are there
	Marks    map[volumes.ImageRef]string             // the volume of each image that has a mark
	Foreign  map[volumes.ImageRef]bool               // marked as another Kubernetes cluster's
	Notes    map[volumes.ImageRef]volumes.Note       // the last one of each image
	Kept     map[volumes.ImageRef]string             // for the snapshots of which deleted volume
	Clones   map[volumes.ImageRef]string             // of which snapshot
	Made     int                                     // how many images were made
	Open     map[volumes.ImageRef][]string           // the clients that have an image open
	Left     map[volumes.ImageRef][]string           // who holds the lock without having the image open
	Seen     map[volumes.ImageRef]volumes.Inspection // of images that others have made
	Released map[volumes.ImageRef]volumes.Note       // the last note of images that were given up

	// Taken is how often each snapshot was taken.
	Taken map[volumes.SnapshotRef]int
	// TakenAt is when Ceph has taken them.
	TakenAt map[volumes.SnapshotRef]time.Time
	// Settling is what Settled answers if it is an error.
	Settling func(volumes.ImageRef) error
	// Taking is called while a snapshot is taken.
	Taking func(volumes.SnapshotRef)
	// Refusing is what TakeSnapshot answers if it is an error.
	Refusing func(context.Context, volumes.SnapshotRef) error

	// Fenced are the clients on the blocklist.
	Fenced []string
	// Blocked are entries of the blocklist that others have made, with their ends.
	Blocked map[string]time.Time
	// Fences and Lists are how often somebody was fenced, and the blocklist was read.
	Fences, Lists int

	// Pool is the size of every pool, unless PoolFails.
	Pool      int64
	PoolFails error
	// Asked is called when somebody asks for the size of a pool.
	Asked func()

	Fail      error                         // what every call answers
	FailFence error                         // what Fence answers
	Keeping   error                         // what Keep answers
	Noting    error                         // what Note answers
	Reading   error                         // what Noted answers of an image that is there
	Creating  func(volumes.ImageSpec) error // before an image is made
}

// NewImages returns a Ceph without images.
func NewImages() *Images {
	return &Images{
		Pool: 50 * GiB, Sizes: map[volumes.ImageRef]int64{}, Open: map[volumes.ImageRef][]string{},
		Notes: map[volumes.ImageRef]volumes.Note{}, Released: map[volumes.ImageRef]volumes.Note{},
		Seen:  map[volumes.ImageRef]volumes.Inspection{},
		Marks: map[volumes.ImageRef]string{}, Foreign: map[volumes.ImageRef]bool{},
		Kept:  map[volumes.ImageRef]string{},
		Taken: map[volumes.SnapshotRef]int{}, TakenAt: map[volumes.SnapshotRef]time.Time{}, Clones: map[volumes.ImageRef]string{},
	}
}

// EnsurePool finds every pool but the one that is named absent.
func (f *Images) EnsurePool(_ context.Context, _, pool string, _ bool) error {
	if pool == "absent" {
		return fmt.Errorf("pool %s: %w", pool, volumes.ErrNotFound)
	}
	return f.Fail
}

// Create makes an image, unless Creating answers.
func (f *Images) Create(_ context.Context, spec volumes.ImageSpec) (bool, error) {
	if f.Creating != nil {
		if err := f.Creating(spec); err != nil {
			return false, err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.Fail != nil {
		return false, f.Fail
	}
	if f.Foreign[spec.ImageRef] {
		return false, fmt.Errorf("of another Kubernetes cluster: %w", volumes.ErrRefused)
	}
	_, there := f.Sizes[spec.ImageRef]
	if !there {
		f.Sizes[spec.ImageRef] = spec.SizeBytes
		f.Marks[spec.ImageRef], f.Notes[spec.ImageRef] = spec.Volume, spec.Note
		f.Made++
		if spec.From != nil {
			f.Clones[spec.ImageRef] = spec.From.Snapshot
		}
	}
	return !there, nil
}

// Mark marks an image that is there.
func (f *Images) Mark(_ context.Context, image volumes.ImageRef, volume string) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.Foreign[image] {
		return "", fmt.Errorf("of another Kubernetes cluster: %w", volumes.ErrRefused)
	}
	if _, there := f.Sizes[image]; !there {
		return "", volumes.ErrNotFound
	}
	if text, err := f.Notes[image].Text(); err == nil && f.Marks[image] != "" {
		if err := volumes.MayMark(image, volume, text); err != nil {
			return "", err
		}
	}
	if f.Fail == nil {
		f.Marks[image] = volume
	}
	return idOf(image), f.Fail
}

// idOf is the ID of an image. The API takes letters and digits.
func idOf(image volumes.ImageRef) string { return strings.ReplaceAll("idof"+image.Image, "-", "") }

// Resize makes an image larger.
func (f *Images) Resize(_ context.Context, image volumes.ImageRef, sizeBytes int64) (int64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.Fail == nil {
		f.Sizes[image] = max(f.Sizes[image], sizeBytes)
	}
	return f.Sizes[image], f.Fail
}

// Delete removes an image that nobody has open and that has no snapshots.
func (f *Images) Delete(_ context.Context, image volumes.ImageRef) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.Fail != nil {
		return f.Fail
	}
	for _, client := range f.Open[image] {
		if !slices.Contains(f.Fenced, client) {
			return fmt.Errorf("in use by %s: %w", client, volumes.ErrRefused)
		}
	}
	if f.Foreign[image] {
		return fmt.Errorf("of another Kubernetes cluster: %w", volumes.ErrRefused)
	}
	for ref := range f.Taken {
		if ref.ImageRef == image {
			return fmt.Errorf("has the snapshot %s: %w", ref.Snapshot, volumes.ErrRefused)
		}
	}
	delete(f.Sizes, image)
	delete(f.Kept, image)
	return nil
}

// Keep notes for which volume an image is kept, or answers Keeping.
func (f *Images) Keep(_ context.Context, image volumes.ImageRef, volume string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	fail := cmp.Or(f.Keeping, f.Fail)
	if _, there := f.Sizes[image]; there && fail == nil {
		f.Kept[image] = volume
	}
	return fail
}

// DeleteKept is Delete for an image that is kept for the volume.
func (f *Images) DeleteKept(ctx context.Context, image volumes.ImageRef, volume string) error {
	f.mu.Lock()
	kept, fail := f.Kept[image], f.Fail
	f.mu.Unlock()
	if kept != volume {
		return fail
	}
	return f.Delete(ctx, image)
}

// Clients returns who has an image open.
func (f *Images) Clients(_ context.Context, image volumes.ImageRef) ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.Open[image], f.Fail
}

// PoolBytes returns Pool, or answers PoolFails.
func (f *Images) PoolBytes(context.Context, string, string) (int64, error) {
	if f.Asked != nil {
		f.Asked()
	}
	if f.PoolFails != nil {
		return 0, f.PoolFails
	}
	return f.Pool, f.Fail
}

// Problems returns the text of Fail.
func (f *Images) Problems(context.Context) ([]string, bool) {
	if f.Fail != nil {
		return []string{f.Fail.Error()}, true
	}
	return nil, true
}
