// Package uncached maps images without a cache in front: the device is krbd's own. That is for a host
// outside the group of a volume, which has no replica of it.
//
// Such a volume has no logical volume, and so no tags. Its record is a file below the run directory. It
// is written before the image is mapped, and goes after it is unmapped. So a map without a record is not
// this package's. A record without a map is half of a call: the map may still come while a call runs, or
// while its program hangs in the kernel, even if that belongs to an escached that is gone. So is a record
// that cannot be read. Such a volume is never reported as absent, and Stop ends that. Once no map can
// come any more, Watch ends it, too.
//
// Nothing is ever only on this host: a write is answered when Ceph has it. So a device is given up as
// soon as the volume's record says that it is another node's, or nobody's.
package uncached

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/clientaddress"
	"github.com/escache/escache-csi/internal/crashpoint"
	"github.com/escache/escache-csi/internal/escached/host"
	"github.com/escache/escache-csi/internal/escached/krbd"
	"github.com/escache/escache-csi/internal/escached/problem"
	"github.com/escache/escache-csi/internal/escached/volume"
	"github.com/escache/escache-csi/internal/pause"
)

// Maps maps images without a cache, and knows which ones this host has.
type Maps struct {
	*host.Host

	records Records
	log     *slog.Logger
}

// New returns the maps of a host.
func New(h *host.Host, log *slog.Logger) *Maps {
	return &Maps{Host: h, records: In(h.Config.RunDir), log: log}
}

// verbConnect is the name under which Connect locks a volume.
const verbConnect = "dev_connect"

// connecting reports whether a call of Connect runs.
func (m *Maps) connecting(ref escache.VolumeRef) bool {
	return m.Running(volume.NameOf(ref)) == verbConnect
}

// Has reports whether an image is mapped without a cache, or may be, or is being mapped. It says nothing
// of a volume with a replica here.
func (m *Maps) Has(ref escache.VolumeRef) bool {
	connecting := m.connecting(ref) // before the record is read: a call that ends meanwhile has written it
	_, there, err := m.records.Get(ref)
	return connecting || there || err != nil
}

// Flush answers that nothing is dirty, if it is known that the image has no cache: then Ceph has every
// write that was answered.
func (m *Maps) Flush(req escache.FlushRequest) (escache.FlushResponse, error) {
	record, there, err := m.records.Get(req.VolumeRef)
	switch {
	case err == nil && !there:
		err = problem.On(req.VolumeRef, escache.CodeBusy, "the image is being mapped; repeat flush when that has ended")
	case err == nil:
		err = problem.IfLate(req.VolumeRef, req.Epoch, record.Epoch)
	}
	return escache.FlushResponse{Clean: err == nil}, err
}

// connectTimeout bounds Connect. A map takes less than a minute, and so does each try to undo one.
const connectTimeout = 3 * time.Minute

// Connect maps the image exclusively. A repeated call returns the map that is there, and stores the newer
// epoch. A map whose client is fenced is made again.
func (m *Maps) Connect(ctx context.Context, req escache.ConnectRequest) (escache.ConnectResponse, error) {
	none := escache.ConnectResponse{}
	ctx, done, err := m.Begin(ctx, req.VolumeRef, verbConnect, connectTimeout)
	if err != nil {
		return none, err
	}
	defer done()
	if err := m.hasNothingElse(ctx, req.VolumeRef); err != nil {
		return none, err
	}
	record, there, err := m.records.Get(req.VolumeRef)
	if err != nil {
		return none, err
	}
	if err := problem.IfLate(req.VolumeRef, req.Epoch, record.Epoch); err != nil {
		return none, err
	}
	if there {
		image, usable, err := m.usable(req)
		if err != nil {
			return none, err
		}
		if usable {
			record.Epoch = req.Epoch
			if err := m.records.Put(record); err != nil {
				return none, err
			}
			return m.answer(image)
		}
	}
	crashpoint.Reach("uncached/begin")
	answer, err := m.connect(ctx, req)
	if err == nil {
		return answer, nil
	}
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), host.ChangeTimeout)
	defer cancel()
	return none, errors.Join(err, m.undo(undo, req.VolumeRef, err))
}

// undo takes away what a failed Connect has left. It leaves the record if there is a map that is in use or
// that the next call may use, or if one may still come.
func (m *Maps) undo(ctx context.Context, ref escache.VolumeRef, failure error) error {
	code := problem.Of(failure).Code
	if code == escache.CodeDeviceOpen {
		return nil
	}
	if escache.StatusOf(code) >= http.StatusInternalServerError {
		mayCome := m.MapMayCome(ref)
		maps, err := m.Images.Find(ref.Pool, ref.Image)
		if err != nil || len(maps) > 0 || mayCome != nil {
			return nil //nolint:nilerr // the caller has the failure already
		}
	}
	return m.clear(ctx, ref)
}

// hasNothingElse refuses a host that has a replica of the volume, or the device of one that is gone.
func (m *Maps) hasNothingElse(ctx context.Context, ref escache.VolumeRef) error {
	name := volume.NameOf(ref)
	if m.hasReplica(ref) {
		return problem.On(ref, escache.CodeReplicaMismatch, "%s has a replica of it; connect it with its cache, or delete the replica "+
			"first", m.Config.Node)
	}
	devices, err := m.Caches.States(ctx, name)
	if err != nil {
		return err
	}
	if _, connected := devices[name]; connected {
		return problem.On(ref, escache.CodeConnected, "%s still has its device, and no replica any more; reboot this host", m.Config.Node)
	}
	return nil
}

func (m *Maps) hasReplica(ref escache.VolumeRef) bool {
	_, replica := m.Volumes.Get(volume.NameOf(ref))
	return replica
}

// usable returns the map that an earlier call has made, if the request may have it.
func (m *Maps) usable(req escache.ConnectRequest) (image krbd.Device, usable bool, err error) {
	maps, err := m.Images.Find(req.Pool, req.Image)
	if err != nil || len(maps) != 1 || clientaddress.In(req.Fenced, maps[0].ClientAddress) {
		return krbd.Device{}, false, err
	}
	return maps[0], true, isImage(req, maps[0])
}

func isImage(req escache.ConnectRequest, image krbd.Device) error {
	if req.ImageID == image.ImageID {
		return nil
	}
	return problem.On(req.VolumeRef, escache.CodeIdentityMismatch,
		"Ceph's image has id %s, not %s; the image was replaced by a new one of this name", image.ImageID, req.ImageID)
}

func (m *Maps) connect(ctx context.Context, req escache.ConnectRequest) (escache.ConnectResponse, error) {
	none := escache.ConnectResponse{}
	// An attempt that was killed half way may have left a map, and a fenced one is of no use.
	if err := m.unmap(ctx, req.VolumeRef); err != nil {
		return none, err
	}
	if err := m.records.Put(Record{VolumeRef: req.VolumeRef, ImageID: req.ImageID, Epoch: req.Epoch}); err != nil {
		return none, err
	}
	crashpoint.Reach("uncached/recorded")
	image, err := m.Images.MapForFilesystem(ctx, volume.NameOf(req.VolumeRef), req.Pool, req.Image)
	if err != nil {
		return none, err
	}
	crashpoint.Reach("uncached/mapped")
	if err := isImage(req, image); err != nil {
		return none, err
	}
	return m.answer(image)
}

// answer makes the link, which comes last: a user who finds it may use the device.
func (m *Maps) answer(image krbd.Device) (escache.ConnectResponse, error) {
	ref := escache.VolumeRef{Pool: image.Pool, Image: image.Image}
	link, err := m.Link(volume.Volume{VolumeRef: ref}, image.Path())
	crashpoint.Reach("uncached/linked")
	return escache.ConnectResponse{Device: link, ImageID: image.ImageID, ClientAddress: image.ClientAddress}, err
}

// unmapTries bounds how often an image is unmapped, once each host.Poll.
const unmapTries = 25

// unmap unmaps the image. It tries for a while, because udev opens a device for a moment after its last
// writer has closed it. The error wraps krbd.ErrBusy if it stays open.
func (m *Maps) unmap(ctx context.Context, ref escache.VolumeRef) error {
	maps, err := m.Images.Find(ref.Pool, ref.Image)
	if err != nil {
		return err
	}
	for _, image := range maps {
		for range unmapTries {
			if err = m.Images.Unmap(ctx, volume.NameOf(ref), image.ID); !errors.Is(err, krbd.ErrBusy) {
				break
			}
			if stop := pause.For(ctx, host.Poll); stop != nil {
				return stop
			}
		}
		if errors.Is(err, krbd.ErrBusy) {
			return problem.On(ref, escache.CodeDeviceOpen, "the device %s is open; unmount it first", image.Path())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// clear takes map, link and record away, in this order. It refuses while a map may still come.
func (m *Maps) clear(ctx context.Context, ref escache.VolumeRef) error {
	if err := m.MapMayCome(ref); err != nil {
		return err
	}
	if err := m.unmap(ctx, ref); err != nil {
		return err
	}
	crashpoint.Reach("uncached/unmapped")
	if err := m.Unlink(volume.Volume{VolumeRef: ref}); err != nil {
		return err
	}
	crashpoint.Reach("uncached/unlinked")
	return m.records.Drop(ref)
}

// Stop unmaps the image. It refuses while the device is open. It needs no record for that: nothing is ever
// only on this host.
func (m *Maps) Stop(ctx context.Context, req escache.StopRequest) error {
	return m.with(ctx, req.VolumeRef, "stop", func(ctx context.Context, record Record) error {
		if err := problem.IfLate(req.VolumeRef, req.Epoch, record.Epoch); err != nil {
			return err
		}
		return m.clear(ctx, req.VolumeRef)
	})
}

// Yield makes room for a replica on this host. It refuses while the image is mapped. Beside a replica that
// is there already, a map is that of its cache. The caller has locked the volume.
func (m *Maps) Yield(ctx context.Context, ref escache.VolumeRef) error {
	if m.hasReplica(ref) || !m.Has(ref) {
		return nil
	}
	maps, err := m.Images.Find(ref.Pool, ref.Image)
	if err != nil {
		return err
	}
	if len(maps) > 0 {
		return problem.On(ref, escache.CodeConnected, "%s has mapped it without a cache; stop it first", m.Config.Node)
	}
	return m.clear(ctx, ref)
}

// Abandon unmaps the image of a volume that another node has, or nobody. It needs the arbiter's record
// for that. If nothing has the device open any more, nothing is lost: Ceph has all that was answered.
func (m *Maps) Abandon(ctx context.Context, req escache.AbandonRequest) error {
	return m.with(ctx, req.VolumeRef, "abandon", func(ctx context.Context, record Record) error {
		if err := m.superseded(ctx, record, req.Epoch); err != nil {
			return err
		}
		if err := m.clear(ctx, req.VolumeRef); err != nil {
			return err
		}
		m.log.Warn("gave up the map of a volume that this host has not any more", "pool", req.Pool, "image", req.Image, "epoch", req.Epoch)
		return nil
	})
}

func (m *Maps) superseded(ctx context.Context, here Record, epoch int64) error {
	not := func(format string, args ...any) error {
		return problem.On(here.VolumeRef, escache.CodeNotSuperseded, format+"; the device stays", args...)
	}
	if epoch < here.Epoch {
		return not("epoch %d is older than %d, which was seen here", epoch, here.Epoch)
	}
	ctx, cancel := context.WithTimeout(ctx, m.Config.ArbiterTimeout)
	defer cancel()
	record, err := m.Records.Record(ctx, here.VolumeRef)
	switch {
	case err != nil:
		return not("the arbiter did not return the record (%v); repeat the call when it answers", err)
	case record.Epoch < epoch:
		return not("the record is of epoch %d, the request of %d", record.Epoch, epoch)
	case record.ImageID != "" && here.ImageID != "" && record.ImageID != here.ImageID:
		return not("the record is of image id %s, the map of %s", record.ImageID, here.ImageID)
	case record.AttachedNode == m.Config.Node:
		return not("on record it is attached to %s itself in epoch %d", m.Config.Node, record.Epoch)
	}
	return nil
}

// Resize waits until the device has become as large as the image, which krbd does by itself.
func (m *Maps) Resize(ctx context.Context, req escache.ResizeRequest) error {
	ctx, done, err := m.Begin(ctx, req.VolumeRef, "resize", host.ChangeTimeout)
	if err != nil {
		return err
	}
	defer done()
	record, _, err := m.records.Get(req.VolumeRef)
	if err != nil {
		record = Record{VolumeRef: req.VolumeRef} // its size can be read all the same
	}
	if err := problem.IfLate(req.VolumeRef, req.Epoch, record.Epoch); err != nil {
		return err
	}
	maps, err := m.Images.Find(req.Pool, req.Image)
	switch {
	case err != nil:
		return err
	case len(maps) == 0:
		return problem.On(req.VolumeRef, escache.CodeNotConnected, "it is not connected on %s", m.Config.Node)
	case req.SizeBytes < maps[0].Bytes:
		return problem.New(escache.CodeInvalidRequest, "sizeBytes: %s/%s has %d bytes already; a device never shrinks",
			req.Pool, req.Image, maps[0].Bytes)
	}
	return m.WaitForSize(ctx, req.VolumeRef, req.SizeBytes)
}

// with runs do under the volume's lock. Without a record there is nothing to do. For a record that cannot be
// read, do gets one that has only the name.
func (m *Maps) with(ctx context.Context, ref escache.VolumeRef, verb string, do func(context.Context, Record) error) error {
	ctx, done, err := m.Begin(ctx, ref, verb, host.ChangeTimeout)
	if err != nil {
		return err
	}
	defer done()
	record, there, err := m.records.Get(ref)
	switch {
	case err != nil:
		record = Record{VolumeRef: ref}
	case !there:
		return nil
	}
	return do(ctx, record)
}
