package orphans

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"
)

// reads is how many marks are read at once.
const reads = 8

// divide sorts the images that no CacheVolume names by their marks. Images whose marks cannot
// be read are in no list, and the error names the first.
func (s Search) divide(ctx context.Context, images []Image, found *Found) error {
	marks, failures := make([]Mark, len(images)), make([]error, len(images))
	var group errgroup.Group
	group.SetLimit(reads)
	for n, i := range images {
		group.Go(func() error {
			marks[n], failures[n] = s.Images.MarkOf(ctx, i.ClusterID, i.Pool.Pool, i.Image)
			return nil
		})
	}
	_ = group.Wait()
	var first error
	unread := 0
	for n, i := range images {
		switch {
		case failures[n] != nil:
			if unread++; first == nil {
				first = fmt.Errorf("image %s: %w", i, failures[n])
			}
		case marks[n].Released:
			found.Released = append(found.Released, i)
		case marks[n].Kubernetes == "":
			found.Unmarked = append(found.Unmarked, Lost{i, marks[n].Note})
		case marks[n].Kubernetes == s.Kubernetes:
			found.Images = append(found.Images, Lost{i, marks[n].Note})
		default:
			found.Foreign = append(found.Foreign, i)
		}
	}
	if first != nil {
		return fmt.Errorf("read the marks of %d images: %w", unread, first)
	}
	return nil
}
