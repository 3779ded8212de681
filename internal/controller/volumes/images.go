package volumes

import (
	"context"
	"time"

	"github.com/escache/escache-csi/api/v1alpha1"
)

// ImageRef names an RBD image of a Ceph cluster.
type ImageRef struct {
	ClusterID string
	Pool      string
	Image     string
}

// String is CLUSTERID/POOL/IMAGE.
func (r ImageRef) String() string { return r.ClusterID + "/" + r.Pool + "/" + r.Image }

// ImageSpec says how an image is made.
type ImageSpec struct {
	ImageRef

	DataPool  string
	SizeBytes int64
	Layout    *v1alpha1.ImageLayout
	// From is the snapshot that it is a clone of; nil for an empty image.
	From *SnapshotRef
}

// SnapshotRef names a snapshot of an RBD image.
type SnapshotRef struct {
	ImageRef

	Snapshot string
}

// String is CLUSTERID/POOL/IMAGE@SNAPSHOT.
func (r SnapshotRef) String() string { return r.ImageRef.String() + "@" + r.Snapshot }

// Snapshot is what Ceph has of one.
type Snapshot struct {
	SizeBytes int64 // of the image when it was taken
	Taken     time.Time
}

// Images is what the service needs of Ceph. Errors wrap ErrNotFound (cluster, pool or image), ErrRefused (wrong key, watched,
// another size), ErrNoRoom, ErrUnavailable or context.DeadlineExceeded. Every call returns soon after its context ends.
type Images interface {
	// EnsurePool checks that the pool is there and initialised, and with create makes it so.
	EnsurePool(ctx context.Context, clusterID, pool string, create bool) error
	// Create makes the image. One that is there is success too, but then it was not made now. An empty one has to have the same size;
	// how far an interrupted call has got with a clone nobody knows.
	Create(ctx context.Context, spec ImageSpec) (made bool, err error)
	// ID is Ceph's own id of the image.
	ID(ctx context.Context, image ImageRef) (string, error)
	// Resize grows the image; one that has the size is success.
	Resize(ctx context.Context, image ImageRef, sizeBytes int64) error
	// Delete moves the image to the trash and has it emptied in the background; one that is gone is success. An image that a
	// client has open, or that has snapshots, is ErrRefused.
	Delete(ctx context.Context, image ImageRef) error
	// TakeSnapshot takes a snapshot of what the image has in Ceph; one of that name, left by an interrupted call, is replaced. Where a
	// node has the image mapped, all I/O to it must rest.
	TakeSnapshot(ctx context.Context, snapshot SnapshotRef) (Snapshot, error)
	// DeleteSnapshot removes a snapshot; one that is gone is success. What clones need of it stays.
	DeleteSnapshot(ctx context.Context, snapshot SnapshotRef) error
	// Clients returns the addresses of the Ceph clients that have the image open or hold its lock. No image is no client.
	Clients(ctx context.Context, image ImageRef) ([]string, error)
	// Fence puts a client on the blocklist.
	Fence(ctx context.Context, clusterID, address string, duration time.Duration) error
	// Unfence takes a client off the blocklist; one that is not on it is success. If its map still exists, it can write again.
	Unfence(ctx context.Context, clusterID, address string) error
	// AvailableBytes is how much more the pool can hold.
	AvailableBytes(ctx context.Context, clusterID, pool string) (int64, error)
	// Problems says, a sentence each, what keeps all of Ceph from being used; curable reports whether waiting may help.
	Problems(ctx context.Context) (problems []string, curable bool)
}
