package volumes

import (
	"context"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/authority"
)

// Hosts reaches the escached of each node. An *escache.Problem is an error that escached returned.
// ErrUnavailable means that escached did not answer, ErrNotFound that Kubernetes has no such node.
type Hosts interface {
	Status(ctx context.Context, node string, volume escache.VolumeRef) (escache.VolumeStatus, error)
	// PutReplica returns the host's identity, "" if it does not give one.
	PutReplica(ctx context.Context, node string, request escache.ReplicaRequest) (hostID string, err error)
	// DeleteReplica removes a replica that is known to be clean. DiscardReplica also removes one
	// that is not, if its host has seen no attachment after this epoch.
	DeleteReplica(ctx context.Context, node string, volume escache.VolumeRef) error
	DiscardReplica(ctx context.Context, node string, volume escache.VolumeRef, epoch int64) error
	// DevConnect, Flush and Stop write back the cache of a volume that no pod has.
	DevConnect(ctx context.Context, node string, request escache.ConnectRequest) error
	Flush(ctx context.Context, node string, volume escache.VolumeRef, longest time.Duration) (*escache.FlushResponse, error)
	Stop(ctx context.Context, node string, volume escache.VolumeRef) error
	// Abandon gives up the device of a holder that lost the volume; epoch is the new attachment's.
	Abandon(ctx context.Context, node string, volume escache.VolumeRef, epoch int64) error
	// Hold suspends a volume's I/O with a clean cache, for at most longest (whole seconds), and
	// returns until when. Release ends it.
	Hold(ctx context.Context, node string, volume escache.VolumeRef, longest time.Duration) (time.Time, error)
	Release(ctx context.Context, node string, volume escache.VolumeRef) error
	// ReplicationAddress returns the IP address of the node's replication link.
	ReplicationAddress(ctx context.Context, node string) (string, error)
	// Death says whether, and why, Kubernetes has given the node up.
	Death(ctx context.Context, node string) (authority.Death, error)
}
