package csitest

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/escache/escache-csi/internal/controller/volumes"
)

// Note keeps the note of an image, or answers Noting.
func (f *Images) Note(_ context.Context, image volumes.ImageRef, note volumes.Note) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if has := f.Marks[image]; has != "" && has != note.Volume {
		return fmt.Errorf("it is volume %s's: %w", has, volumes.ErrRefused)
	}
	if f.Fail == nil && f.Noting == nil {
		f.Notes[image] = note
	}
	return cmp.Or(f.Noting, f.Fail)
}

// Noted returns the note of an image, or answers Reading.
func (f *Images) Noted(_ context.Context, image volumes.ImageRef) (volumes.Note, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, made := f.Sizes[image]
	if _, there := f.Seen[image]; !made && !there && f.Fail == nil {
		return volumes.Note{}, volumes.ErrNotFound
	}
	return f.Notes[image], cmp.Or(f.Reading, f.Fail)
}

// Release takes mark and note from an image, unless they are another volume's.
func (f *Images) Release(_ context.Context, image volumes.ImageRef, note volumes.Note) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if has := f.Marks[image]; has != "" && has != note.Volume {
		return fmt.Errorf("it is volume %s's: %w", has, volumes.ErrRefused)
	}
	if f.Fail == nil {
		delete(f.Notes, image)
		delete(f.Marks, image)
		f.Released[image] = note
		f.see(image, note)
	}
	return f.Fail
}

// Inspect returns what is in Seen.
func (f *Images) Inspect(_ context.Context, image volumes.ImageRef, _ string) (volumes.Inspection, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	seen, there := f.Seen[image]
	if !there && f.Fail == nil {
		return seen, volumes.ErrNotFound
	}
	return seen, f.Fail
}

// Adopt makes an image of Seen the volume's.
func (f *Images) Adopt(_ context.Context, image volumes.ImageRef, note volumes.Note) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if has := f.Marks[image]; has != "" && has != note.Volume {
		return "", fmt.Errorf("it is volume %s's: %w", has, volumes.ErrRefused)
	}
	if f.Fail == nil {
		f.Sizes[image], f.Marks[image], f.Notes[image] = f.Seen[image].SizeBytes, note.Volume, note
		delete(f.Released, image)
		f.see(image, volumes.Note{}) // the mark replaces it
	}
	return idOf(image), f.Fail
}

// Retake takes an image that another cluster has marked.
func (f *Images) Retake(_ context.Context, image volumes.ImageRef, from string, note volumes.Note) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if has := f.Marks[image]; has != note.Volume || f.Foreign[image] && from == "" {
		return "", fmt.Errorf("it is volume %s's: %w", has, volumes.ErrRefused)
	}
	if f.Fail == nil {
		f.Notes[image] = note
		delete(f.Foreign, image)
	}
	return idOf(image), f.Fail
}

// Find returns what the images of this name say, in one cluster or in all.
func (f *Images) Find(_ context.Context, clusterID, pool, image string) ([]volumes.Found, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []volumes.Found
	for ref := range f.Sizes {
		if clusterID != "" && ref.ClusterID != clusterID || ref.Pool != pool || ref.Image != image {
			continue
		}
		found := volumes.Found{ImageRef: ref, Note: f.Notes[ref]}
		_, found.Released = f.Released[ref]
		if f.Kept[ref] != "" {
			found.Deleted = "then"
		}
		out = append(out, found)
	}
	return out, cmp.Or(f.Reading, f.Fail)
}

// MarkOf returns the volume of an image's mark.
func (f *Images) MarkOf(image volumes.ImageRef) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.Marks[image]
}

// see changes what Inspect finds of the volume that gave an image up.
func (f *Images) see(image volumes.ImageRef, released volumes.Note) {
	if seen, there := f.Seen[image]; there {
		seen.Released = released
		f.Seen[image] = seen
	}
}

// List returns the names of all images.
func (f *Images) List(context.Context, string, string, string) ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var names []string
	for image := range f.Sizes {
		names = append(names, image.Image)
	}
	return names, f.Fail
}

// Remains returns what is there of an image.
func (f *Images) Remains(_ context.Context, image volumes.ImageRef) (volumes.Remains, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	size, there := f.Sizes[image]
	if !there {
		return volumes.Remains{}, f.Fail
	}
	out := volumes.Remains{
		ID: idOf(image), SizeBytes: size, Volume: f.Marks[image], Note: f.Notes[image],
		Left: f.Left[image],
	}
	for _, client := range f.Open[image] {
		if !slices.Contains(out.Left, client) {
			out.Clients = append(out.Clients, client)
		}
	}
	if out.Volume != "" {
		out.Kubernetes = "us"
	}
	if f.Foreign[image] {
		out.Kubernetes = "them"
	}
	return out, f.Fail
}
