// Package ceph implements volumes.Images with package rbd, and translates its errors.
package ceph

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/clientaddress"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/internal/rbd"
)

// checkedFor is how long the result of a good pool check, and a pool's size, is reused.
const checkedFor = time.Minute

// Images are the RBD images of all configured clusters.
type Images struct {
	clusters *rbd.Clusters
	dir      string
	now      func() time.Time

	mu      sync.Mutex
	checked map[[2]string]time.Time // by cluster and pool
	sizes   map[[2]string]poolSize
}

var _ volumes.Images = (*Images)(nil)

// New returns the images of the clusters whose directories are under dir.
func New(clusters *rbd.Clusters, dir string, now func() time.Time) *Images {
	return &Images{clusters: clusters, dir: dir, now: now, checked: map[[2]string]time.Time{}, sizes: map[[2]string]poolSize{}}
}

// MayMark is for rbd.Options: it refuses an image whose note is of another volume that has this very image.
func MayMark(image rbd.ImageRef, volume, note string) error {
	return volumes.MayMark(volumes.ImageRef{Pool: image.Pool, Image: image.Name}, volume, note)
}

// EnsurePool checks a pool, and with create makes it.
func (i *Images) EnsurePool(ctx context.Context, clusterID, pool string, create bool) error {
	key := [2]string{clusterID, pool}
	if i.wasChecked(key) {
		return nil
	}
	cluster, err := i.cluster(clusterID)
	if err != nil {
		return err
	}
	check := cluster.CheckPool
	if create {
		check = cluster.EnsurePool
	}
	if err := check(ctx, pool); err != nil {
		return translate(ctx, err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.checked[key] = i.now()
	return nil
}

func (i *Images) wasChecked(key [2]string) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	at, ok := i.checked[key]
	return ok && i.now().Sub(at) < checkedFor
}

// Create makes an image, empty or from a snapshot, or finds the one that an earlier call made.
func (i *Images) Create(ctx context.Context, spec volumes.ImageSpec) (made bool, err error) {
	cluster, err := i.cluster(spec.ClusterID)
	if err != nil {
		return false, err
	}
	wanted, err := specOf(spec)
	if err != nil {
		return false, translate(ctx, err)
	}
	if spec.From != nil {
		err = cluster.CloneImage(ctx, snapshotOf(*spec.From), wanted)
	} else {
		err = cluster.CreateImage(ctx, wanted)
	}
	var exists *rbd.ExistsError
	if !errors.As(err, &exists) {
		return err == nil, translate(ctx, err)
	}
	if has := exists.Image.Mark; has.Deleted != "" && has.Volume == spec.Volume {
		return false, fmt.Errorf("image %s/%s is what is left of a volume of this name that was deleted, and stays for its snapshots; "+
			"delete these first, or choose another name: %w", spec.Pool, spec.Image, volumes.ErrRefused)
	}
	if spec.From == nil && exists.Image.SizeBytes != spec.SizeBytes {
		return false, fmt.Errorf("image %s/%s exists with %d bytes, not %d, so it is not this volume's; rename or remove it: %w",
			spec.Pool, spec.Image, exists.Image.SizeBytes, spec.SizeBytes, volumes.ErrRefused)
	}
	return false, nil
}

func specOf(spec volumes.ImageSpec) (rbd.ImageSpec, error) {
	note, err := spec.Note.Text()
	if err != nil {
		return rbd.ImageSpec{}, err
	}
	out := rbd.ImageSpec{
		ImageRef: refOf(spec.ImageRef), SizeBytes: spec.SizeBytes, DataPool: spec.DataPool, Volume: spec.Volume, Note: note,
	}
	layout := spec.Layout
	if layout == nil {
		layout = &v1alpha1.ImageLayout{}
	}
	features, err := rbd.ParseFeatures(layout.Features)
	out.Features = features
	out.ObjectSizeBytes, out.StripeUnitBytes, out.StripeCount = layout.ObjectSizeBytes, layout.StripeUnitBytes, layout.StripeCount
	return out, err
}

// Mark marks an image that has no mark, and returns Ceph's id of it.
func (i *Images) Mark(ctx context.Context, image volumes.ImageRef, volume string) (id string, err error) {
	cluster, err := i.cluster(image.ClusterID)
	if err != nil {
		return "", err
	}
	id, err = cluster.MarkImage(ctx, refOf(image), volume)
	return id, translate(ctx, err)
}

// Note writes a note about its volume into an image's metadata.
func (i *Images) Note(ctx context.Context, image volumes.ImageRef, note volumes.Note) error {
	cluster, text, err := i.clusterAndText(image, note)
	if err != nil {
		return err
	}
	return translate(ctx, cluster.NoteImage(ctx, refOf(image), note.Volume, text))
}

// Noted reads an image's note.
func (i *Images) Noted(ctx context.Context, image volumes.ImageRef) (volumes.Note, error) {
	cluster, err := i.cluster(image.ClusterID)
	if err != nil {
		return volumes.Note{}, err
	}
	mark, err := cluster.MarkOf(ctx, refOf(image))
	if err != nil {
		return volumes.Note{}, translate(ctx, err)
	}
	return volumes.ParseNote(mark.Note)
}

// Find returns what the images of this name say of whose they are, in one cluster, or in all if clusterID is empty.
func (i *Images) Find(ctx context.Context, clusterID, pool, image string) ([]volumes.Found, error) {
	ids := []string{clusterID}
	if clusterID == "" {
		var err error
		if ids, err = i.clusters.IDs(); err != nil {
			return nil, err
		}
	}
	if len(ids) == 0 { // that the image is gone would be a guess
		return nil, fmt.Errorf("%w: no Ceph cluster is configured", volumes.ErrRefused)
	}
	var out []volumes.Found
	for _, id := range ids {
		ref := volumes.ImageRef{ClusterID: id, Pool: pool, Image: image}
		cluster, err := i.cluster(id)
		if err != nil {
			return nil, fmt.Errorf("look for image %s: %w: %w", ref, volumes.ErrRefused, err)
		}
		mark, err := cluster.MarkOf(ctx, refOf(ref))
		switch {
		case errors.Is(err, rbd.ErrNotFound) || errors.Is(err, rbd.ErrPoolNotFound):
		case err != nil:
			return nil, fmt.Errorf("look for image %s: %w", ref, translate(ctx, err))
		default:
			out = append(out, foundOf(ref, mark))
		}
	}
	return out, nil
}

func foundOf(image volumes.ImageRef, mark rbd.Mark) volumes.Found {
	out := volumes.Found{ImageRef: image, Released: mark.Kubernetes == "" && mark.Released != "", Deleted: mark.Deleted}
	out.Note, out.Unreadable = volumes.ParseNote(mark.Note)
	return out
}

// Release gives the image of the note's volume up.
func (i *Images) Release(ctx context.Context, image volumes.ImageRef, note volumes.Note) error {
	cluster, text, err := i.clusterAndText(image, note)
	if err != nil {
		return err
	}
	return translate(ctx, cluster.ReleaseImage(ctx, refOf(image), note.Volume, text))
}

// Resize makes an image at least so large, and returns the size that it has then.
func (i *Images) Resize(ctx context.Context, image volumes.ImageRef, sizeBytes int64) (int64, error) {
	cluster, err := i.cluster(image.ClusterID)
	if err != nil {
		return 0, err
	}
	size, err := cluster.GrowImage(ctx, refOf(image), sizeBytes)
	return size, translate(ctx, err)
}

// Delete moves an image to the trash. If the image or its pool is gone, that is success.
func (i *Images) Delete(ctx context.Context, image volumes.ImageRef) error {
	cluster, err := i.cluster(image.ClusterID)
	if err != nil {
		// Unlike a missing image, this does not prove that nothing is left.
		return fmt.Errorf("%w: %w", volumes.ErrRefused, err)
	}
	err = cluster.DeleteImage(ctx, refOf(image))
	if errors.Is(err, rbd.ErrNotFound) || errors.Is(err, rbd.ErrPoolNotFound) {
		return nil
	}
	return translate(ctx, err)
}

// Clients returns the addresses of the clients that have the image open, or hold its lock. Nodes
// map images with the exclusive lock, so there is at most one writer.
func (i *Images) Clients(ctx context.Context, image volumes.ImageRef) ([]string, error) {
	cluster, err := i.cluster(image.ClusterID)
	if err != nil {
		return nil, err
	}
	watchers, err := cluster.Watchers(ctx, refOf(image))
	if errors.Is(err, rbd.ErrNotFound) || errors.Is(err, rbd.ErrPoolNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, translate(ctx, err)
	}
	owner, err := cluster.LockOwner(ctx, refOf(image))
	if err != nil && !errors.Is(err, rbd.ErrNotFound) {
		return nil, translate(ctx, err)
	}
	var out []string
	for _, w := range watchers {
		out = append(out, w.Address)
	}
	if owner != nil {
		out = append(out, owner.Address)
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// Blocklist returns the clients on the blocklist by their canonical addresses, with the ends of their entries.
func (i *Images) Blocklist(ctx context.Context, clusterID string) (map[string]time.Time, error) {
	cluster, err := i.cluster(clusterID)
	if err != nil {
		return nil, err
	}
	entries, err := cluster.Blocklist(ctx)
	out := map[string]time.Time{}
	for _, e := range entries {
		out[clientaddress.Canonical(e.Address)] = e.Until
	}
	return out, translate(ctx, err)
}

// Fence puts a client on the blocklist.
func (i *Images) Fence(ctx context.Context, clusterID, address string, duration time.Duration) error {
	cluster, err := i.cluster(clusterID)
	if err != nil {
		return err
	}
	return translate(ctx, cluster.BlocklistAdd(ctx, address, duration))
}

// Unfence takes a client off the blocklist.
func (i *Images) Unfence(ctx context.Context, clusterID, address string) error {
	cluster, err := i.cluster(clusterID)
	if err != nil {
		return err
	}
	return translate(ctx, cluster.BlocklistRemove(ctx, address))
}

// Problems asks every configured cluster. If one answers, there is no problem.
func (i *Images) Problems(ctx context.Context) (problems []string, curable bool) {
	ids, err := i.clusters.IDs()
	if err != nil {
		return []string{fmt.Sprintf("read the directory of Ceph clusters: %v; mount it, with one directory for each clusterID", err)}, false
	}
	if len(ids) == 0 {
		return []string{fmt.Sprintf("%s has no directory with ceph.conf and keyring; add one for each clusterID", i.dir)}, false
	}
	failures := i.ping(ctx, ids)
	if len(failures) < len(ids) {
		return nil, true
	}
	for _, id := range slices.Sorted(maps.Keys(failures)) {
		problems = append(problems, fmt.Sprintf("cluster %s: %v", id, failures[id]))
		curable = curable || errors.Is(failures[id], rbd.ErrUnavailable)
	}
	return problems, curable
}

func (i *Images) ping(ctx context.Context, ids []string) map[string]error {
	const patience = 3 * time.Second
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var (
		wait     sync.WaitGroup
		mu       sync.Mutex
		failures = map[string]error{}
	)
	for _, id := range ids {
		wait.Go(func() {
			cluster, err := i.clusters.Get(id)
			if err == nil {
				err = cluster.Ping(ctx)
			}
			if err != nil {
				mu.Lock()
				defer mu.Unlock()
				failures[id] = err
			}
		})
	}
	wait.Wait()
	return failures
}

func (i *Images) cluster(id string) (*rbd.Cluster, error) {
	cluster, err := i.clusters.Get(id)
	if err != nil {
		return nil, translate(context.Background(), err)
	}
	return cluster, nil
}

// clusterAndText returns the image's cluster, and the note in the form of its metadata.
func (i *Images) clusterAndText(image volumes.ImageRef, note volumes.Note) (*rbd.Cluster, string, error) {
	cluster, err := i.cluster(image.ClusterID)
	if err != nil {
		return nil, "", err
	}
	text, err := note.Text()
	return cluster, text, err
}

func refOf(image volumes.ImageRef) rbd.ImageRef {
	return rbd.ImageRef{Pool: image.Pool, Name: image.Image}
}

func snapshotOf(snapshot volumes.SnapshotRef) rbd.SnapshotRef {
	return rbd.SnapshotRef{ImageRef: refOf(snapshot.ImageRef), Snapshot: snapshot.Snapshot}
}

var meanings = []struct{ from, to error }{
	{rbd.ErrUnavailable, volumes.ErrUnavailable},
	{rbd.ErrClusterNotFound, volumes.ErrNotFound},
	{rbd.ErrPoolNotFound, volumes.ErrNotFound},
	{rbd.ErrNotFound, volumes.ErrNotFound},
	{rbd.ErrConfig, volumes.ErrRefused},
	{rbd.ErrPermission, volumes.ErrRefused},
	{rbd.ErrPoolNotReady, volumes.ErrRefused},
	{rbd.ErrBusy, volumes.ErrRefused},
	{rbd.ErrForeign, volumes.ErrRefused},
	{rbd.ErrReleased, volumes.ErrRefused},
	{rbd.ErrHasSnapshots, volumes.ErrRefused},
	{rbd.ErrExists, volumes.ErrRefused},
	{rbd.ErrInvalid, volumes.ErrInvalid},
	{rbd.ErrFull, volumes.ErrNoRoom},
}

func translate(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	for _, m := range meanings {
		if errors.Is(err, m.from) {
			return fmt.Errorf("%w: %w", m.to, err)
		}
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	return err
}
