package volumes

import (
	"context"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/authority"
)

// Hosts is what the service needs of the escached on each node. An *escache.Problem says what it answered, ErrUnavailable
// that it did not, ErrNotFound that Kubernetes has no such node.
type Hosts interface {
	Status(ctx context.Context, node string, volume escache.VolumeRef) (escache.VolumeStatus, error)
	PutReplica(ctx context.Context, node string, request escache.ReplicaRequest) error
	DeleteReplica(ctx context.Context, node string, volume escache.VolumeRef, discard bool) error
	// DevConnect, Flush and Stop write a volume's cache back where no pod has it.
	DevConnect(ctx context.Context, node string, request escache.ConnectRequest) error
	Flush(ctx context.Context, node string, volume escache.VolumeRef, longest time.Duration) (*escache.FlushResponse, error)
	Stop(ctx context.Context, node string, volume escache.VolumeRef) error
	// Hold suspends a volume's I/O with a clean cache, at the longest for so many whole seconds, and returns until when; Release ends it.
	Hold(ctx context.Context, node string, volume escache.VolumeRef, longest time.Duration) (time.Time, error)
	Release(ctx context.Context, node string, volume escache.VolumeRef) error
	// ReplicationAddress is the IP address of the node's replication link.
	ReplicationAddress(ctx context.Context, node string) (string, error)
	// Death is what Kubernetes says of the node.
	Death(ctx context.Context, node string) (authority.Death, error)
}
