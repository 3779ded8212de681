package engine

import (
	"context"
	"errors"
	"fmt"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/volume"
)

// errOnlyCopy means that the peer has the volume's device and lives from the copy here.
var errOnlyCopy = errors.New("the copy here may be the only one that has all")

// spare fails if the peer is Primary over the link and its own disk does not have everything. Then all that
// it acknowledges is here, and at any moment more than was counted. A replica of which the removal was only
// decided is ready again: as long as DRBD runs it, nothing of it is gone.
func (e *Engine) spare(ctx context.Context, v volume.Volume) error {
	st, up, err := e.Replica(v.Minor)
	if err != nil {
		return err
	}
	if !up || !st.Linked() || st.PeerRole != drbd.Primary || st.PeerDisk == drbd.UpToDate {
		return nil
	}
	refusal := fmt.Errorf("%w: %w", errOnlyCopy, v.Fail(escache.CodeConnected,
		"it is connected on its peer %s, whose own disk is %s: the copy on %s may be the only one that has everything. Flush and stop it "+
			"there first; if %s has lost it to another node, see POST %s, or switch %s off",
		v.Peer.Name, st.PeerDisk, e.Config.Node, v.Peer.Name, escache.PathAbandon, v.Peer.Name))
	if v.Phase != volume.Deleting {
		return refusal
	}
	kept := v
	kept.Phase = volume.Ready
	return errors.Join(refusal, e.Retag(ctx, v, kept))
}
