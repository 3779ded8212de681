package faileddisk

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/problem"
	"github.com/escache/escache-csi/internal/pause"
)

// Replica is one whose disk has failed.
type Replica struct {
	// Name is that of its DRBD resource.
	Name string
	// Request is what the arbiter is told.
	Request escache.OutdateSelfRequest
}

// Records puts this host's replica on record as outdated. OutdateSelf returns nil only if the record
// says so.
type Records interface {
	OutdateSelf(ctx context.Context, req escache.OutdateSelfRequest) error
}

// Reporter reports failed disks.
type Reporter struct {
	Marks   Marks
	Records Records
	// LivesOnPeer reports whether the link is up and the peer has all that was written, by what DRBD
	// says after this host's disk has failed.
	LivesOnPeer func() bool
	Log         *slog.Logger
}

// ErrRefused means that the arbiter has answered, and does not put this copy on record as outdated:
// it is the only current one, or the volume is not there any more.
var ErrRefused = errors.New("the arbiter does not put this copy on record as outdated")

// Report puts a replica on record as outdated, and notes that in its mark. It fails with ErrRefused
// if asking again is of no use.
func (r Reporter) Report(ctx context.Context, replica Replica) error {
	log := r.Log.With("pool", replica.Request.Pool, "image", replica.Request.Image, "peer", replica.Request.Peer)
	if err := r.Records.OutdateSelf(ctx, replica.Request); err != nil {
		if status := escache.StatusOf(problem.Of(err).Code); status == http.StatusConflict || status == http.StatusNotFound {
			err = errors.Join(ErrRefused, err)
		}
		log.Warn("the disk has failed, and this copy is not on record as outdated", "error", err)
		return err
	}
	log.Warn("the disk has failed: this copy is on record as outdated")
	return r.Marks.Set(replica.Name, Recorded)
}

// again is the pause between two reports of a Primary.
const again = time.Second

// ReportUntilHeard reports until the arbiter answers or ctx ends. It is for a Primary: DRBD sends
// nothing to the peer before its handler ends, and the local disk takes no writes any more, so no
// write is acknowledged meanwhile.
//
// The arbiter may say that the copy here is the only current one although the peer has everything: the
// peer was outdated, and csi-node has not counted it again yet. csi-node soon does, in one step with
// this copy's loss, and until then ReportUntilHeard goes on.
func (r Reporter) ReportUntilHeard(ctx context.Context, replica Replica) error {
	for {
		err := r.Report(ctx, replica)
		if err == nil {
			return nil
		}
		uncounted := problem.Of(err).Code == escache.CodeOutdated && r.LivesOnPeer()
		if errors.Is(err, ErrRefused) && !uncounted {
			return err
		}
		if stop := pause.For(ctx, again); stop != nil {
			return errors.Join(err, stop)
		}
	}
}

// patience is how long a Secondary waits for the arbiter. Its peer acknowledges writes with one copy
// until this one is on record as outdated, or has left.
const patience = time.Second

// ReportOrLeave reports once. If this copy is not on record as outdated after patience, it leaves
// the peer: a Primary is then frozen until its own arbiter has put this copy on record. It is for a
// Secondary.
func (r Reporter) ReportOrLeave(ctx context.Context, replica Replica, leave func(context.Context, string) error) error {
	asking, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := r.Report(asking, replica)
	if err == nil {
		return nil
	}
	return errors.Join(err, leave(ctx, replica.Name))
}
