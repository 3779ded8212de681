package engine

import (
	"context"

	"github.com/escache/escache-csi/internal/crashpoint"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/volume"
)

// mayReaddress reports whether a request is for the same two hosts at other addresses, and the replica can just
// take these. It does not matter how current the copy is: its partner stays the same, and so does what DRBD has
// on the disks about the two copies. DRBD compares that when the link is up, as after any start of a host.
func (e *Engine) mayReaddress(ctx context.Context, have, want volume.Volume) (bool, error) {
	if !sameHosts(have, want) {
		return false, nil
	}
	return e.leaveAddresses(ctx, have)
}

// sameHosts reports whether a request is for the two hosts that a replica has, at whatever addresses.
func sameHosts(have, want volume.Volume) bool {
	return have.Self.Name == want.Self.Name && have.Peer.Name == want.Peer.Name
}

// leaveAddresses has DRBD stop trying to reach the peer, if the replica is Secondary and has no link. left is
// false for all others: they keep their addresses. The next EnsureUp makes a link again, also if escached dies
// first: with the addresses that the tags have then.
//
// The file may have an address that this host does not have any more, with which drbdadm brings nothing up. So
// a replica that is down stays down until it has the new ones.
func (e *Engine) leaveAddresses(ctx context.Context, v volume.Volume) (left bool, err error) {
	st, up, err := e.Replica(v.Minor)
	switch {
	case err != nil:
		return false, err
	case !up:
		return true, nil
	case st.Role != drbd.Secondary || st.Linked():
		return false, nil
	case st.Disk.Lost():
		return true, nil // a replica without disk and link counts as one that has left; EnsureUp adjusts it in any case
	}
	err = e.Replicator.Disconnect(ctx, v.Name())
	crashpoint.Reach("readdress/left")
	return err == nil, err
}

// takeOwnAddress gives a replica the address that this host has now. It returns the replica as it is then. Without
// this, a host that was booted with another address could not bring its replicas up, and would not be healthy.
// The peer learns the address with the next request.
func (e *Engine) takeOwnAddress(ctx context.Context, v volume.Volume) (volume.Volume, error) {
	if sameIP(v.Self.Address, e.Config.Address) {
		return v, nil
	}
	if left, err := e.leaveAddresses(ctx, v); err != nil || !left {
		return v, err
	}
	next := v
	next.Self.Address = e.Config.Address
	if sameIP(next.Peer.Address, next.Self.Address) {
		// The peer has another one, too, and nobody has said which. drbdadm refuses two ends with one address. Who
		// is at the old one does not know the link's secret, which is made of the addresses of both ends.
		next.Peer.Address = v.Self.Address
	}
	if err := e.Retag(ctx, v, next); err != nil {
		return v, err
	}
	crashpoint.Reach("start/address_taken")
	e.log.Warn("a replica has this host's new address", "pool", v.Pool, "image", v.Image, "old", v.Self.Address, "new", next.Self.Address)
	return next, nil
}
