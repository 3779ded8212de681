// Package volumes does things to one volume: it reads and writes its record, lays and drops its
// replicas, fences its clients, writes its cache back, substitutes a lost replica, discards.
//
// It holds no state. Each step can be repeated, and a crash between two of them leaves nothing
// unknown, because the record (the CacheVolume) is written before the first side effect. The rules
// of who may write are in the package authority, the rules of where a volume goes in placement;
// this package carries their decisions out.
//
// Steps does not lock. The CSI service calls it under the volume's lock; reconcilers call Locked,
// which takes that lock itself.
package volumes

import (
	"context"
	"log/slog"
	"time"

	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/controller/reservation"
	"github.com/escache/escache-csi/internal/operation"
)

// Config holds what Steps needs.
type Config struct {
	// Cached reads from a cache of the API server's objects, and writes to the API server.
	Cached client.Client
	// Live reads from the API server itself.
	Live client.Reader

	Images Images
	Hosts  Hosts
	Book   *reservation.Book
	Groups Groups
	Links  Links

	// Events go to the volumes.
	Events events.EventRecorder
	// Log gets the decisions that an operator may have to account for: fencing and discarding.
	Log *slog.Logger
	Now func() time.Time
}

// Groups keeps NodeGroups that have volumes.
type Groups interface {
	// Keep makes sure that a group is not gone while volumes are in it. It is called before the record
	// of a volume that has a place there is written.
	Keep(ctx context.Context, group string) error
}

// Links knows the secrets of replication links.
type Links interface {
	// Secret returns the secret of a volume's link in one generation of its replicas.
	Secret(volume string, generation int64) escache.Secret
}

// Steps holds the steps of the CSI calls and of repairs on one volume. It does not lock: its caller
// holds the lock of the volume.
type Steps struct {
	Config
}

// NewSteps returns the steps.
func NewSteps(config Config) *Steps { return &Steps{Config: config} }

// Locked takes the lock of a volume and then does the steps, for callers other than the CSI
// service. A volume that is in use by another operation is ErrBusy.
type Locked struct {
	steps      *Steps
	operations *operation.Locks
}

// NewLocked returns the steps behind the locks, which are shared with the CSI service.
func NewLocked(steps *Steps, operations *operation.Locks) *Locked {
	return &Locked{steps: steps, operations: operations}
}

// Operations that only write something into the record, which takes a moment.
const (
	moveReport    = "move report"
	releaseReport = "release report"
	resizeReport  = "report of the cache's size"
	comparison    = "comparison with the image's metadata"
)

// WritingBack is the operation in which csi-controller has a volume written back that no pod has. It takes
// seconds, and then another one may have its turn.
const WritingBack = "write-back without a pod"

// Reports are the names of those operations.
func Reports() []string { return []string{moveReport, releaseReport, resizeReport, comparison} }

// under runs a step under the volume's lock. A caller that is refused meanwhile learns the
// operation's name.
func under[R any](l *Locked, volume, operation string, run func() (R, error)) (R, error) {
	done, err := l.operations.Begin(volume, operation)
	if err != nil {
		var none R
		return none, err
	}
	defer done()
	return run()
}
