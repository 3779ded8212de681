package engine

import (
	"context"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/crashpoint"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/volume"
)

// takeSecret gives a complete replica the secret of a request, if the replica may take it, and returns
// whether its link has a secret now. The kernel learns of it later, in EnsureUp.
//
// The two hosts are told one after the other, and perhaps only one is told. As long as one has the old
// secret and the other the new one, a link that is up goes on, and a link that is lost stays down.
// So a volume in use keeps the secret of its link. A copy that is confirmed in a take-over (MustExist)
// keeps it too: its partner may be away, and would be kept out when it comes back.
func (e *Engine) takeSecret(ctx context.Context, have volume.Volume, req escache.ReplicaRequest) (keyed bool, err error) {
	old, err := e.Secrets.Get(have.Name())
	if err != nil {
		return have.Keyed, err
	}
	lost := have.Keyed && old == ""
	switch {
	case lost && req.MustExist && req.Secret == "":
		return true, have.Fail(escache.CodeSecretMissing,
			"%s has lost the secret of the link to %s, and the request has none; repeat PUT %s with the secret",
			e.Config.Node, have.Peer.Name, escache.PathReplica)
	case !lost && old == req.Secret, !lost && req.MustExist:
		return old != "", nil
	case !lost:
		st, _, err := e.Replica(have.Minor)
		if err != nil {
			return old != "", err
		}
		if st.Linked() && (st.Role == drbd.Primary || st.PeerRole == drbd.Primary) {
			return old != "", nil
		}
	}
	return req.Secret != "", e.setSecret(ctx, have, req.Secret)
}

// keptSecret returns the secret that a complete replica has, or the one of a request if this host has lost it.
func (e *Engine) keptSecret(have volume.Volume, req escache.ReplicaRequest) (keyed bool, secret escache.Secret, err error) {
	secret, err = e.Secrets.Get(have.Name())
	if have.Keyed && secret == "" {
		secret = req.Secret
	}
	return secret != "", secret, err
}

// setSecret stores the secret of a link.
func (e *Engine) setSecret(ctx context.Context, v volume.Volume, secret escache.Secret) error {
	if secret == "" && v.Keyed {
		e.log.WarnContext(ctx, "the link of a replica has no secret any more: the request has none", "pool", v.Pool, "image", v.Image)
	}
	if err := e.Secrets.Set(v.Name(), secret); err != nil {
		return err
	}
	e.lost.Delete(v.Name())
	crashpoint.Reach("put_replica/secret_stored")
	return nil
}

// noteLostSecret remembers that this host has lost the secret of a replica's link, for Status.
func (e *Engine) noteLostSecret(v volume.Volume) error {
	lost, err := e.LostSecret(v)
	if err != nil || !lost {
		return err
	}
	if _, known := e.lost.LoadOrStore(v.Name(), true); known {
		return nil
	}
	e.log.Error("the secret of a replica's link is lost; the replica has no peer until csi-controller gives the secret again, "+
		"which it does when the volume is attached the next time", "pool", v.Pool, "image", v.Image, "peer", v.Peer.Name)
	return nil
}
