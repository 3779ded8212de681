package volumes

import (
	"context"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/cachevolume"
)

// Hosts reaches the escached of each node. An *escache.Problem is an error that escached returned.
// ErrUnavailable means that escached did not answer, ErrNotFound that Kubernetes has no such node.
type Hosts interface {
	Status(ctx context.Context, node string, volume escache.VolumeRef) (escache.VolumeStatus, error)
	// PutReplica returns the host's identity, "" if it does not give one. hostID is that of the machine that is
	// meant, "" for whichever has the node's name.
	PutReplica(ctx context.Context, node, hostID string, request escache.ReplicaRequest) (created string, err error)
	// DeleteReplica removes a replica that is known to be clean. DiscardReplica also removes one
	// that is not, if its host has seen no attachment after this epoch. Both clear the node's place: any
	// machine of that name is meant, because a new one may have taken the place of the one on record.
	DeleteReplica(ctx context.Context, node string, volume escache.VolumeRef) error
	DiscardReplica(ctx context.Context, node string, volume escache.VolumeRef, epoch int64) error
	// DevConnect, Flush and Stop write back the cache of a volume that no pod has.
	DevConnect(ctx context.Context, node, hostID string, request escache.ConnectRequest) error
	Flush(ctx context.Context, at cachevolume.Attachment, longest time.Duration) (*escache.FlushResponse, error)
	Stop(ctx context.Context, at cachevolume.Attachment) error
	// Abandon gives up the device of a holder that lost the volume; the epoch is the new attachment's.
	Abandon(ctx context.Context, at cachevolume.Attachment) error
	// Hold suspends a volume's I/O with a clean cache, for at most longest (whole seconds). Without
	// pause its I/O may go on in the cache; the answer says whether it does. Release ends it.
	Hold(ctx context.Context, at cachevolume.Attachment, longest time.Duration, pause bool) (*escache.HoldResponse, error)
	Release(ctx context.Context, at cachevolume.Attachment) error
	// Trim has the filesystem of a volume's device discard its free space from a byte on, and says how far it got.
	Trim(
		ctx context.Context, at cachevolume.Attachment, filesystem Filesystem, start int64, longest time.Duration,
	) (*escache.TrimResponse, error)
	// ReplicationAddress returns the IP address of the node's replication link.
	ReplicationAddress(ctx context.Context, node string) (string, error)
	// Death says whether, and why, Kubernetes has given the node up.
	Death(ctx context.Context, node string) (authority.Death, error)
}
