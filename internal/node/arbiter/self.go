package arbiter

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/node/kube"
)

func (a *Arbiter) serveSelf(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), decideTime)
	defer cancel()
	var request escache.OutdateSelfRequest
	if !decode(w, r, &request) {
		return
	}
	log := a.logger.With("pool", request.Pool, "image", request.Image, "node", request.Node, "peer", request.Peer)
	why := "this node's disk has failed"
	if request.Booted {
		why = "this node was booted"
	}
	a.conclude(ctx, w, log, a.OutdateSelf(ctx, request), why+": its replica is on record as outdated",
		why+", and its replica is not put on record as outdated")
}

// OutdateSelf returns nil only if this node is on record as outdated. Like Decide it reads the
// record again for every try, so it never overwrites what somebody else has written. A refusal is an
// *authority.RefusedError.
func (a *Arbiter) OutdateSelf(ctx context.Context, r escache.OutdateSelfRequest) error {
	if err := a.asksForItself(r.Node); err != nil {
		return err
	}
	for range tries {
		v, err := a.kube.VolumeOf(ctx, r.VolumeRef)
		if err != nil {
			return err
		}
		grant, err := authority.MayBeOutdated(v, r, a.now())
		if refused, ok := errors.AsType[*authority.RefusedError](err); ok && refused.Code == escache.CodeOutdated && !r.Booted {
			a.look()
		}
		if err != nil {
			return err
		}
		changed, err := a.kube.PatchStatus(ctx, v, map[string]any{"outdated": grant.Outdated, "conditions": grant.Conditions})
		if errors.Is(err, kube.ErrConflict) {
			continue
		}
		if err != nil {
			return fmt.Errorf("put %s on record as outdated: %w", r.Node, err)
		}
		if !changed.Status.IsOutdated(r.Node) {
			return fmt.Errorf("put %s on record as outdated: the record does not show it: %w", r.Node, kube.ErrUnavailable)
		}
		return nil
	}
	return fmt.Errorf("put %s on record as outdated: %w", r.Node, kube.ErrConflict)
}
