package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/crashpoint"
	"github.com/escache/escache-csi/internal/escached/host"
	"github.com/escache/escache-csi/internal/escached/lvm"
	"github.com/escache/escache-csi/internal/escached/problem"
	"github.com/escache/escache-csi/internal/escached/volume"
	"github.com/escache/escache-csi/internal/traces"
)

// PutReplica creates this host's replica. If there is one already, it finishes it, confirms it or
// gives it another partner.
func (e *Engine) PutReplica(ctx context.Context, req escache.ReplicaRequest) error {
	ctx, done, err := e.BeginInTurn(ctx, req.VolumeRef, "put_replica")
	if err != nil {
		return err
	}
	defer done()
	if err := e.uncached.Yield(ctx, req.VolumeRef); err != nil {
		return err
	}
	want, err := e.fromRequest(req)
	if err != nil {
		return err
	}
	if have, ok := e.Volumes.Get(want.Name()); req.MustExist && (!ok || !have.Laid()) {
		return problem.On(req.VolumeRef, escache.CodeNotFound,
			"%s has no replica of it, and the request does not allow creating one", e.Config.Node)
	}
	if err := e.putReplica(ctx, want, req); err != nil {
		return err
	}
	e.faults.Delete(want.Name())
	return nil
}

func (e *Engine) putReplica(ctx context.Context, want volume.Volume, req escache.ReplicaRequest) error {
	have, ok := e.Volumes.Get(want.Name())
	if ok && have.Phase == volume.Deleting {
		if err := e.finishDelete(ctx, have); err != nil {
			return err
		}
		ok = false
	}
	if !ok {
		return e.newReplica(ctx, want, req.Secret)
	}
	if have.Phase == volume.Abandoning {
		if err := e.finishAbandon(ctx, have); err != nil {
			return err
		}
		have.Phase = volume.Ready
	}
	if err := sameReplica(have, want); err != nil {
		return err
	}
	if err := have.NotLate(want.Epoch); err != nil {
		return err
	}
	if have.Phase == volume.Creating {
		// Nothing was ever written through it, so the request overrides what is stored.
		want.Epoch = max(want.Epoch, have.Epoch)
		want.ImageID = cmp.Or(want.ImageID, have.ImageID)
		want.Joined = want.Joined || have.Joined
		if err := e.Retag(ctx, have, want); err != nil {
			return err
		}
		if err := e.Store.Activate(ctx, want.Name()); err != nil { // the host may have started since it was created
			return err
		}
		return e.layReplica(ctx, want, req.Secret)
	}
	return e.confirmReplica(ctx, have, want, req)
}

// fromRequest returns the volume that a request asks for. It checks what only this host can check.
func (e *Engine) fromRequest(req escache.ReplicaRequest) (volume.Volume, error) {
	v := volume.Volume{
		VolumeRef: req.VolumeRef, ImageID: req.ImageID, Epoch: req.Epoch, SizeBytes: req.SizeBytes, CacheBytes: req.CacheBytes,
		Engine: engineOf(req.Engine), Port: req.Port, Minor: req.Minor, Joined: req.Join, Keyed: req.Secret != "", Phase: volume.Creating,
	}
	switch e.Config.Node {
	case req.Nodes[0].Name:
		v.Self, v.Peer = req.Nodes[0], req.Nodes[1]
	case req.Nodes[1].Name:
		v.Self, v.Peer = req.Nodes[1], req.Nodes[0]
	default:
		return v, problem.New(escache.CodeInvalidRequest, "nodes: neither %q nor %q is this host, %q; send the request to one of them",
			req.Nodes[0].Name, req.Nodes[1].Name, e.Config.Node)
	}
	if !sameIP(v.Self.Address, e.Config.Address) {
		return v, problem.New(escache.CodeInvalidRequest, "nodes: %s has address %s on the replication network, not %s",
			e.Config.Node, e.Config.Address, v.Self.Address)
	}
	if !e.Config.DRBD.Ports.Contains(req.Port) {
		return v, problem.New(escache.CodeInvalidRequest, "port: %d is outside %d-%d, which this host is configured for",
			req.Port, e.Config.DRBD.Ports.First, e.Config.DRBD.Ports.Last)
	}
	if !e.Config.DRBD.Minors.Contains(req.Minor) {
		return v, problem.New(escache.CodeInvalidRequest, "minor: %d is outside %d-%d, which this host is configured for",
			req.Minor, e.Config.DRBD.Minors.First, e.Config.DRBD.Minors.Last)
	}
	if err := e.Resource(v, "").Check(); err != nil {
		return v, problem.New(escache.CodeInvalidRequest, "the names of pool, image and peer are together %v; use a shorter one", err)
	}
	return v, nil
}

func sameIP(a, b string) bool {
	x, y := net.ParseIP(a), net.ParseIP(b)
	return x != nil && x.Equal(y)
}

// sameReplica returns an error if the replica here cannot be the one that the request asks for.
func sameReplica(have, want volume.Volume) error {
	mismatch := func(what string, is, asked any) error {
		return want.Fail(escache.CodeReplicaMismatch, "the replica here has %s %v, not %v; delete it first if it must change",
			what, is, asked)
	}
	switch {
	case have.ImageID != "" && want.ImageID != "" && have.ImageID != want.ImageID:
		return want.Fail(escache.CodeIdentityMismatch,
			"the replica here belongs to image id %s, not %s; the image was replaced by another one of the same name",
			have.ImageID, want.ImageID)
	case have.CacheBytes != want.CacheBytes:
		return mismatch("cacheBytes", have.CacheBytes, want.CacheBytes)
	case have.Engine != want.Engine:
		return mismatch("the cache engine", have.Engine, want.Engine)
	case have.Port != want.Port:
		return mismatch("port", have.Port, want.Port)
	case have.Minor != want.Minor:
		return mismatch("minor", have.Minor, want.Minor)
	}
	return nil
}

func (e *Engine) newReplica(ctx context.Context, v volume.Volume, secret escache.Secret) error {
	if err := e.Caches.CanRun(ctx, v.Engine); err != nil {
		return v.About(fmt.Errorf("on %s: %w", e.Config.Node, err))
	}
	limit := e.Config.DRBD.Minors.Size()
	if e.Config.MaxVolumes > 0 {
		limit = min(limit, e.Config.MaxVolumes)
	}
	if _, used, err := e.Replica(v.Minor); err != nil {
		return err
	} else if used {
		return problem.New(escache.CodePortInUse, "minor %d is in use by a DRBD resource that is not escached's; choose another", v.Minor)
	}
	if err := e.Volumes.Reserve(v, limit); err != nil {
		return err
	}
	crashpoint.Reach("put_replica/begin")
	change := e.space.Change()
	if err := e.Store.Create(ctx, v.Name(), v.CacheBytes, v.Tags()); err != nil {
		return errors.Join(err, e.forgetUnless(ctx, v))
	}
	crashpoint.Reach("put_replica/lv_created")
	change.Done(ctx, v.CacheBytes)
	err := e.layReplica(ctx, v, secret)
	if err == nil {
		return nil
	}
	// Remove what was made of a replica that could not be created.
	if v, ok := e.Volumes.Get(v.Name()); ok {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), host.ChangeTimeout)
		defer cancel()
		if undo := e.finishDelete(ctx, v); undo != nil {
			err = errors.Join(err, fmt.Errorf("and removing what was made of it: %w", undo))
		}
	}
	return err
}

// forgetUnless forgets a volume whose LV could not be created, unless the LV exists after all:
// lvcreate may have succeeded although it timed out. Either way less may be free than was known.
func (e *Engine) forgetUnless(ctx context.Context, v volume.Volume) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), host.ChangeTimeout)
	defer cancel()
	_ = e.space.Refresh(ctx) // it keeps the error
	lvs, err := e.Store.Volumes(ctx, true)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(lvs, func(lv lvm.Volume) bool { return lv.Name == v.Name() }) {
		e.Volumes.Drop(v.Name())
	}
	return nil
}

// layReplica makes a replica from an active LV in phase creating. Nothing was ever written through it, so
// every step can be repeated.
func (e *Engine) layReplica(ctx context.Context, v volume.Volume, secret escache.Secret) (err error) {
	ctx, step := traces.Begin(ctx, "create the replica")
	defer step.Done(&err)
	name := v.Name()
	if err := errors.Join(e.FailedDisks.Drop(name), e.Permits.Drop(name)); err != nil {
		return err
	}
	// The LV may contain an old cache. Header and superblock must be blank, and the same on both
	// hosts.
	if err := e.Cache(v).Wipe(ctx, e.LocalDisk(v)); err != nil {
		return err
	}
	crashpoint.Reach("put_replica/wiped")
	if err := e.setSecret(ctx, v, secret); err != nil {
		return err
	}
	if _, err := e.WriteResource(v); err != nil {
		return err
	}
	crashpoint.Reach("put_replica/resource_written")
	if err := e.Replicator.CreateMetadata(ctx, name); err != nil {
		return err
	}
	crashpoint.Reach("put_replica/metadata_created")
	ready := v
	ready.Phase = volume.Ready
	if err := e.Retag(ctx, v, ready); err != nil {
		return err
	}
	crashpoint.Reach("put_replica/ready")
	if err := e.Replicator.Up(ctx, name); err != nil {
		return err
	}
	crashpoint.Reach("put_replica/up")
	return nil
}

// confirmReplica changes a ready replica to what the request asks: it is up, has this peer and this
// secret, and knows size and id of the image.
func (e *Engine) confirmReplica(ctx context.Context, have, want volume.Volume, req escache.ReplicaRequest) error {
	next := have
	next.SizeBytes = max(have.SizeBytes, want.SizeBytes) // the caller may not know yet that the image has grown
	next.ImageID = cmp.Or(have.ImageID, want.ImageID)
	inUse, err := e.inUse(ctx, have)
	if err != nil {
		return err
	}
	if !inUse { // the epoch of a device, and of a map, is that of its own attachment
		next.Epoch = max(have.Epoch, want.Epoch)
	}
	if want.Joined && !have.Joined {
		// The replica was created before, and the caller has learned since that it has to be filled. A
		// copy that was used keeps its data.
		unused, err := e.Unused(ctx, have)
		if err != nil {
			return err
		}
		next.Joined = unused
	}
	if have.Peer != want.Peer || have.Self != want.Self {
		readdress, err := e.mayReaddress(ctx, have, want)
		if err != nil {
			return err
		}
		if !readdress {
			if sameHosts(have, want) && req.MustExist { // as its partner does, which may be readdressed
				if want.Keyed, req.Secret, err = e.keptSecret(have, req); err != nil {
					return err
				}
			}
			return e.repeer(ctx, have, next, want, req.Secret)
		}
		next.Self, next.Peer = want.Self, want.Peer
	}
	if next.Keyed, err = e.takeSecret(ctx, have, req); err != nil {
		return err
	}
	if err := e.Retag(ctx, have, next); err != nil {
		return err
	}
	crashpoint.Reach("put_replica/confirmed")
	return e.EnsureUp(ctx, next)
}

// inUse reports whether this host has the volume's device or a map of its image.
func (e *Engine) inUse(ctx context.Context, v volume.Volume) (bool, error) {
	_, connected, err := e.Device(ctx, v.Name())
	if err != nil || connected {
		return connected, err
	}
	maps, err := e.Images.Find(v.Pool, v.Image)
	return len(maps) > 0, err
}
