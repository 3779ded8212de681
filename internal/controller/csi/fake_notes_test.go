package csi_test

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/escache/escache-csi/internal/controller/volumes"
)

func (f *fakeImages) Note(_ context.Context, image volumes.ImageRef, note volumes.Note) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail == nil && f.noting == nil {
		f.notes[image] = note
	}
	return cmp.Or(f.noting, f.fail)
}

func (f *fakeImages) Noted(_ context.Context, image volumes.ImageRef) (volumes.Note, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, made := f.images[image]
	if _, there := f.seen[image]; !made && !there && f.fail == nil {
		return volumes.Note{}, volumes.ErrNotFound
	}
	return f.notes[image], cmp.Or(f.reading, f.fail)
}

func (f *fakeImages) Release(_ context.Context, image volumes.ImageRef, note volumes.Note) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail == nil {
		delete(f.notes, image)
		delete(f.marks, image)
		f.released[image] = note
		f.see(image, note)
	}
	return f.fail
}

func (f *fakeImages) Inspect(_ context.Context, image volumes.ImageRef, _ string) (volumes.Inspection, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	seen, there := f.seen[image]
	if !there && f.fail == nil {
		return seen, volumes.ErrNotFound
	}
	return seen, f.fail
}

func (f *fakeImages) Adopt(_ context.Context, image volumes.ImageRef, note volumes.Note) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if has := f.marks[image]; has != "" && has != note.Volume {
		return "", fmt.Errorf("it is volume %s's: %w", has, volumes.ErrRefused)
	}
	if f.fail == nil {
		f.images[image], f.marks[image], f.notes[image] = f.seen[image].SizeBytes, note.Volume, note
		delete(f.released, image)
		f.see(image, volumes.Note{}) // the mark replaces it
	}
	return "adopted", f.fail
}

func (f *fakeImages) Retake(_ context.Context, image volumes.ImageRef, from string, note volumes.Note) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if has := f.marks[image]; has != note.Volume || f.foreign[image] && from == "" {
		return "", fmt.Errorf("it is volume %s's: %w", has, volumes.ErrRefused)
	}
	if f.fail == nil {
		f.notes[image] = note
		delete(f.foreign, image)
	}
	return strings.ReplaceAll("idof"+image.Image, "-", ""), f.fail
}

// see changes what Inspect finds of the volume that gave an image up.
func (f *fakeImages) see(image volumes.ImageRef, released volumes.Note) {
	if seen, there := f.seen[image]; there {
		seen.Released = released
		f.seen[image] = seen
	}
}
