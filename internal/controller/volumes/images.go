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

// String returns CLUSTERID/POOL/IMAGE.
func (r ImageRef) String() string { return r.ClusterID + "/" + r.Pool + "/" + r.Image }

// ImageSpec describes an image to make.
type ImageSpec struct {
	ImageRef

	DataPool  string
	SizeBytes int64
	Layout    *v1alpha1.ImageLayout
	// Volume is the volume's id, with which the image is marked. Note is written beside the mark.
	Volume string
	Note   Note
	// From is the snapshot that the image is a clone of. It is nil for an empty image.
	From *SnapshotRef
}

// SnapshotRef names a snapshot of an RBD image.
type SnapshotRef struct {
	ImageRef

	Snapshot string
}

// String returns CLUSTERID/POOL/IMAGE@SNAPSHOT.
func (r SnapshotRef) String() string { return r.ImageRef.String() + "@" + r.Snapshot }

// SnapshotOf returns where a snapshot is in Ceph.
func SnapshotOf(snapshot *v1alpha1.CacheSnapshot) SnapshotRef {
	return SnapshotRef{
		ImageRef: ImageRef{ClusterID: snapshot.Spec.ClusterID, Pool: snapshot.Spec.Pool, Image: snapshot.Spec.Image},
		Snapshot: snapshot.Spec.Snapshot,
	}
}

// Snapshot describes a snapshot in Ceph.
type Snapshot struct {
	SizeBytes int64 // of the image when it was taken
	Taken     time.Time
}

// Inspection describes an image that somebody else has made.
type Inspection struct {
	SizeBytes int64
	DataPool  string
	Layout    v1alpha1.ImageLayout
	// Refusals has a sentence for each reason why the image cannot become a volume.
	Refusals []string
	// Released is the note of the volume that was released last; zero if there was none.
	Released Note
}

// Remains is what an image says of a volume whose record is lost.
type Remains struct {
	// ID is Ceph's own id of the image; "" if there is no such image.
	ID        string
	SizeBytes int64
	// Kubernetes is the cluster with which the image is marked, and Volume the volume; "" without a mark.
	Kubernetes string
	Volume     string
	// Deleted is when the volume was deleted, if the image stays for its snapshots.
	Deleted string
	// Note is zero if there is none, or one of a later version of the driver. Unreadable says why it
	// cannot be read.
	Note       Note
	Unreadable error
	// Clients has a few words for each client that has the image open.
	Clients []string
	// Left are the addresses of clients that hold the image's lock without having it open. They have died, or
	// are cut off from Ceph.
	Left []string
}

// Found is what the metadata of an image say of whose it is.
type Found struct {
	ImageRef

	// Note is zero if there is none. Unreadable says why it cannot be read.
	Note       Note
	Unreadable error
	// Released: the volume that had the image was released, and nobody has it.
	Released bool
	// Deleted is when the volume was deleted, if the image stays for its snapshots.
	Deleted string
}

// Images reaches Ceph. Errors wrap ErrNotFound (cluster, pool or image), ErrRefused (wrong key,
// image in use, another size), ErrNoRoom, ErrUnavailable or context.DeadlineExceeded. Every call
// returns soon after its context ends. No call changes an image that is marked as another
// Kubernetes cluster's: that is ErrRefused, too.
type Images interface {
	// EnsurePool checks that the pool exists and is initialised. With create it creates and
	// initialises the pool.
	EnsurePool(ctx context.Context, clusterID, pool string, create bool) error
	// Create makes the image and marks it. An image that exists is success too, with made false. An existing
	// empty image must have the same size. Of a clone nobody knows how far an interrupted call has
	// got.
	Create(ctx context.Context, spec ImageSpec) (made bool, err error)
	// Mark marks the image as this Kubernetes cluster's and the volume's if it has no mark: an
	// older version has made it, or a call that was interrupted. It returns Ceph's own id of the
	// image.
	Mark(ctx context.Context, image ImageRef, volume string) (id string, err error)
	// Note writes a note about its volume into the image's metadata, and marks an image that has no
	// mark.
	Note(ctx context.Context, image ImageRef, note Note) error
	// Noted reads the image's note. An image without one, or with one of a later version of the
	// driver, has the zero Note.
	Noted(ctx context.Context, image ImageRef) (Note, error)
	// Find returns what the images of this name say of whose they are, in one Ceph cluster, or in all if
	// clusterID is empty. There are none only if each cluster says so. A cluster that is not configured is
	// ErrRefused.
	Find(ctx context.Context, clusterID, pool, image string) ([]Found, error)
	// Release gives the image up: the note takes the place of its mark, and no call changes the image
	// any more. Repeated, it does nothing. An image of another volume than the note's is ErrRefused.
	Release(ctx context.Context, image ImageRef, note Note) error
	// Inspect describes an image that somebody else has made, for this volume.
	Inspect(ctx context.Context, image ImageRef, volume string) (Inspection, error)
	// Adopt marks an image that nobody has marked, or that is marked as this volume's already, and
	// returns Ceph's own id of it. An image of another volume is ErrRefused.
	Adopt(ctx context.Context, image ImageRef, note Note) (id string, err error)
	// Retake marks an image, which is the note's volume's already, as this Kubernetes cluster's, and
	// returns Ceph's own id of it. from is another cluster whose mark it may have; "" allows none. Any
	// other mark is ErrRefused.
	Retake(ctx context.Context, image ImageRef, from string, note Note) (id string, err error)
	// Resize makes the image at least so large, and returns the size that it has then.
	Resize(ctx context.Context, image ImageRef, sizeBytes int64) (int64, error)
	// Delete moves the image to the trash, which is emptied in the background. An image that is
	// gone is success. An image that a client has open, or that has snapshots, is ErrRefused.
	Delete(ctx context.Context, image ImageRef) error
	// Keep notes in the image's metadata that its volume is deleted, and that the image stays for its
	// snapshots. Create refuses to make an image for that volume then. An image that is gone is success.
	Keep(ctx context.Context, image ImageRef, volume string) error
	// DeleteKept is Delete for an image of which Keep has noted that. Any other one stays, which is
	// success.
	DeleteKept(ctx context.Context, image ImageRef, volume string) error
	// Settled waits until no earlier call that nobody waits for any more can change the image's snapshots. TakeSnapshot would
	// wait for that, too.
	Settled(ctx context.Context, image ImageRef) error
	// TakeSnapshot takes a snapshot of what the image has in Ceph. It replaces a snapshot of that
	// name, which an interrupted call has left. If a node has the image mapped, all I/O to it must
	// be suspended.
	TakeSnapshot(ctx context.Context, snapshot SnapshotRef) (Snapshot, error)
	// SnapshotTime returns when Ceph took a snapshot; the zero time if there is none, or no image.
	SnapshotTime(ctx context.Context, snapshot SnapshotRef) (time.Time, error)
	// DeleteSnapshot removes a snapshot. One that is gone is success. Ceph keeps what clones need
	// of it.
	DeleteSnapshot(ctx context.Context, snapshot SnapshotRef) error
	// Clients returns the addresses of the Ceph clients that have the image open or hold its lock.
	// If there is no image, there is no client.
	Clients(ctx context.Context, image ImageRef) ([]string, error)
	// Blocklist returns the clients on Ceph's blocklist, with the ends of their entries. The addresses are
	// canonical (package clientaddress).
	Blocklist(ctx context.Context, clusterID string) (map[string]time.Time, error)
	// Fence puts a client on Ceph's blocklist for at least duration.
	Fence(ctx context.Context, clusterID, address string, duration time.Duration) error
	// Unfence takes a client off the blocklist. A client that is not on it is success. If its map
	// still exists, the client can write again.
	Unfence(ctx context.Context, clusterID, address string) error
	// PoolBytes returns the size of a pool: what it holds and what it can still hold. It is up to
	// a minute old.
	PoolBytes(ctx context.Context, clusterID, pool string) (int64, error)
	// Problems returns a sentence for each reason why no Ceph cluster can be used. It reports with
	// curable whether waiting may help.
	Problems(ctx context.Context) (problems []string, curable bool)
}
