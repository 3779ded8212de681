package rbd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/ceph/go-ceph/rados"
	librbd "github.com/ceph/go-ceph/rbd"
)

// SnapshotRef identifies a snapshot of an image.
type SnapshotRef struct {
	ImageRef

	Snapshot string
}

func (r SnapshotRef) String() string { return "snapshot " + r.Pool + "/" + r.Name + "@" + r.Snapshot }

// Snapshot describes a snapshot that exists in Ceph.
type Snapshot struct {
	Name      string
	ID        uint64
	SizeBytes int64 // of the image when it was taken
	Created   time.Time
}

// CreateSnapshot takes a snapshot of the data in Ceph. A cache in front of the image must be clean
// and stay clean, and if a node has the image mapped, it must do no I/O. If the name exists, that
// snapshot is returned with ErrExists; after an interrupted call it may have the wrong data and
// must be removed. ErrUnavailable: the node did not read the new header in time, and there is no
// snapshot. ErrBusy: the image is mapped and has object-map. ErrFull: it has as many snapshots as a
// kernel can read.
//
// What changes the snapshots of one image is done one after the other, until each call has really ended. So none that
// nobody waits for any more takes a snapshot that its successor has removed, or removes one that its successor has taken.
func (c *Cluster) CreateSnapshot(ctx context.Context, ref SnapshotRef) (Snapshot, error) {
	return callAlone(ctx, c, "snapshot_create", ref.String(), ref.ImageRef, func(conn *rados.Conn) (Snapshot, error) {
		return withPool(conn, ref.Pool, func(io *rados.IOContext) (Snapshot, error) {
			created := changeSnapshots(conn, io, ref, c.mayAdd(io, ref.Snapshot), func(image *librbd.Image) error {
				_, err := image.CreateSnapshot(ref.Snapshot)
				return err
			}, func(data *rados.IOContext, at use) error { return addSnapshot(io, data, at, ref.Snapshot) })
			if created != nil && !errors.Is(translate(created), ErrExists) {
				return Snapshot{}, created
			}
			s, err := findSnapshot(io, ref)
			if err != nil {
				return Snapshot{}, err
			}
			return s, created
		})
	})
}

// Settled waits until all earlier calls that change an image have really ended, and reads the image's ID, which is one message.
// Errors: ErrNotFound; ErrUnavailable if they have not ended in time.
func (c *Cluster) Settled(ctx context.Context, ref ImageRef) error {
	_, err := callAlone(ctx, c, "image_settled", ref.String(), ref, func(conn *rados.Conn) (string, error) {
		return withPool(conn, ref.Pool, func(io *rados.IOContext) (string, error) { return imageID(io, ref.Name) })
	})
	return err
}

// RemoveSnapshot removes a snapshot. A snapshot with clones stays in the image, hidden, until the
// last clone is gone; if a node has the image mapped then, until another snapshot or the image
// itself is removed. Errors: ErrNotFound if the image or the snapshot does not exist, whoever has the image; ErrBusy
// for a mapped image with object-map.
func (c *Cluster) RemoveSnapshot(ctx context.Context, ref SnapshotRef) error {
	_, err := callAlone(ctx, c, "snapshot_remove", ref.String(), ref.ImageRef, func(conn *rados.Conn) (struct{}, error) {
		return withPool(conn, ref.Pool, func(io *rados.IOContext) (struct{}, error) {
			return struct{}{}, changeSnapshots(conn, io, ref, c.mayRemove(io, ref.Snapshot), func(image *librbd.Image) error {
				return image.GetSnapshot(ref.Snapshot).Remove()
			}, func(data *rados.IOContext, at use) error { return removeSnapshot(io, data, at, ref) })
		})
	})
	return err
}

// maxSnapshots is how many snapshots an image may have, those with it that were removed and still
// have clones. By krbd's source a kernel reads no header with more than 510: it does not map such an
// image, and if it has mapped it, goes on without the later snapshots.
const maxSnapshots = 500

// mayAdd refuses a new snapshot of an image that is not this Kubernetes cluster's, or full. One that is there already is found.
func (c *Cluster) mayAdd(io *rados.IOContext, snapshot string) func(use) error {
	return func(at use) error {
		if err := c.refuseForeign(io, at.id); err != nil || len(at.snapshots) < maxSnapshots || at.has(snapshot) {
			return err
		}
		return fmt.Errorf("%w: it has %d snapshots, with those that its clones still need, and a node's kernel can read no more than 510: "+
			"delete snapshots, or volumes that were made of it", ErrFull, len(at.snapshots))
	}
}

// mayRemove looks for the snapshot first: a caller that was not allowed to take one has nothing to remove, and must learn that.
// A missing one may be hidden since an interrupted removal.
func (c *Cluster) mayRemove(io *rados.IOContext, snapshot string) func(use) error {
	return func(at use) error {
		refused := c.refuseForeign(io, at.id)
		unfinished := refused == nil && at.holder != "" && at.features&ObjectMap == 0 && len(at.snapshots) > 0
		if !at.has(snapshot) && !unfinished {
			return ErrNotFound
		}
		return refused
	}
}

// changeSnapshots does it by librbd where nobody has the image's lock, and through its header where
// a node has; and not at all if it may not. Through the header it takes two pools: each pool counts the numbers of snapshots for itself,
// and its OSDs forget a number in all its objects at once. So a number must be of the pool that has the data, as with librbd.
func changeSnapshots(
	conn *rados.Conn, io *rados.IOContext, ref SnapshotRef, may func(use) error,
	free func(*librbd.Image) error, held func(data *rados.IOContext, at use) error,
) error {
	at, err := useOf(conn, io, ref.Name)
	if err == nil {
		err = may(at)
	}
	switch {
	case err != nil:
		return err
	case at.holder == "":
		_, err = withImage(io, ref.Name, readWrite, func(image *librbd.Image) (struct{}, error) { return struct{}{}, free(image) })
		return err
	case at.features&ObjectMap != 0:
		return fmt.Errorf("%w: %s has it mapped, and the snapshots of an image with object-map cannot change then; detach the volume first",
			ErrBusy, at.holder)
	}
	_, err = withDataPool(conn, at.dataPool, func(data *rados.IOContext) (struct{}, error) { return struct{}{}, held(data, at) })
	return err
}

// snapshotTries is how often somebody else may take a snapshot between the number's and the
// header's change.
const snapshotTries = 4

// addSnapshot takes a snapshot under the lock of a node, which keeps all I/O at rest and has to
// take note before any goes on: what it wrote without would change the snapshot.
func addSnapshot(io, data *rados.IOContext, at use, name string) error {
	for range snapshotTries {
		id, err := newSnapshotID(data)
		if err != nil {
			return err
		}
		if err := addHeaderSnapshot(io, at.header(), name, id); err != nil {
			dropped := dropSnapshotID(data, id)
			if errno(err) == syscall.ESTALE && dropped == nil {
				continue
			}
			return errors.Join(err, dropped)
		}
		done, err := notifyWatchers(io, at.header())
		if err == nil && slices.Contains(done, at.client) {
			return nil
		}
		if err == nil {
			err = fmt.Errorf("%w: %s has it mapped and did not take note of the snapshot within %s", ErrUnavailable, at.holder, notifyTime)
		}
		return errors.Join(err, dropSnapshot(io, data, at, id))
	}
	return fmt.Errorf("%w: its snapshots change all the time", ErrBusy)
}

// removeSnapshot removes a snapshot under the lock of a node, or hides it for its clones; hidden
// ones whose clones are gone go along, also if the snapshot itself is not there. A node that has not
// taken note yet writes as if there were a snapshot, which costs Ceph some room for a while and nothing else.
func removeSnapshot(io, data *rados.IOContext, at use, ref SnapshotRef) error {
	s, missing := findSnapshot(io, ref)
	if missing != nil && !errors.Is(missing, ErrNotFound) {
		return missing
	}
	if missing == nil {
		if err := dropSnapshot(io, data, at, s.ID); err != nil {
			return err
		}
	}
	hidden, err := withImage(io, ref.Name, readOnly, hiddenSnapshots)
	for _, s := range hidden {
		err = errors.Join(err, dropSnapshot(io, data, at, s.ID))
	}
	_, notified := notifyWatchers(io, at.header())
	if err = errors.Join(err, notified); err != nil {
		return err
	}
	return missing
}

// dropSnapshot removes a snapshot and what the OSDs have kept for it, or hides it if it has clones. A hidden one gets no more clones.
// Only then its number goes back, and it leaves the header last: nobody else knows the number, and an interrupted call is repeated.
func dropSnapshot(io, data *rados.IOContext, at use, id uint64) error {
	if err := hideHeaderSnapshot(io, at.header(), id); err != nil && errno(err) != syscall.EEXIST {
		return err
	}
	clones, err := hasClones(io, at.header(), id)
	if err != nil || clones {
		return err
	}
	if err := dropSnapshotID(data, id); err != nil {
		return err
	}
	return removeHeaderSnapshot(io, at.header(), id)
}

// ListSnapshots returns an image's snapshots, without those that were removed and still have
// clones.
func (c *Cluster) ListSnapshots(ctx context.Context, ref ImageRef) ([]Snapshot, error) {
	return onImage(ctx, c, "snapshot_list", ref.String(), ref, readOnly, snapshots)
}

func onImage[T any](
	ctx context.Context, c *Cluster, op, what string, ref ImageRef, isReadOnly bool, fn func(*librbd.Image) (T, error),
) (T, error) {
	return call(ctx, c, op, what, func(conn *rados.Conn) (T, error) {
		return withPool(conn, ref.Pool, func(io *rados.IOContext) (T, error) { return withImage(io, ref.Name, isReadOnly, fn) })
	})
}

// snapshots are those that were not removed.
func snapshots(image *librbd.Image) ([]Snapshot, error) {
	return snapshotsIn(image, librbd.SnapNamespaceTypeUser)
}

// hiddenSnapshots are those that were removed while they had clones.
func hiddenSnapshots(image *librbd.Image) ([]Snapshot, error) {
	return snapshotsIn(image, librbd.SnapNamespaceTypeTrash)
}

func snapshotsIn(image *librbd.Image, namespace librbd.SnapNamespaceType) ([]Snapshot, error) {
	all, err := image.GetSnapshotNames()
	if err != nil {
		return nil, err
	}
	var out []Snapshot
	for _, s := range all {
		has, err := image.GetSnapNamespaceType(s.Id)
		if err != nil {
			return nil, err
		}
		if has != namespace {
			continue
		}
		created, err := image.GetSnapTimestamp(s.Id)
		if err != nil {
			return nil, err
		}
		out = append(out, Snapshot{Name: s.Name, ID: s.Id, SizeBytes: int64(s.Size), Created: time.Unix(created.Sec, created.Nsec)})
	}
	return out, nil
}

func findSnapshot(io *rados.IOContext, ref SnapshotRef) (Snapshot, error) {
	all, err := withImage(io, ref.Name, readOnly, snapshots)
	if err != nil {
		return Snapshot{}, err
	}
	for _, s := range all {
		if s.Name == ref.Snapshot {
			return s, nil
		}
	}
	return Snapshot{}, ErrNotFound
}
