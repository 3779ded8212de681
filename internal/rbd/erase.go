package rbd

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/ceph/go-ceph/rados"
	librbd "github.com/ceph/go-ceph/rbd"
)

// Ceph's own purge asks an OSD to delete each object that an image could have, at full speed, from
// the start again after each interruption, and nothing can stop it. So the objects of all but small
// images are deleted here first. Then the image's size is 0, and Ceph's purge finds no object.

// eraseObjects is how many objects an image must have for that: 16 GiB of objects of 4 MiB. Ceph
// deletes fewer within about a second.
const eraseObjects = 1 << 12

// victim is an image in the trash whose objects are being deleted, under its exclusive lock.
type victim struct {
	image  TrashedImage
	io     *rados.IOContext // of the image's pool
	data   *rados.IOContext // of the pool that has its objects
	prefix string           // of its objects' names, with the dot
	stripe int64            // bytes in as many objects as data is striped over
	width  int64            // that many objects
	// objects is how many it can have. Those from that number on are gone.
	objects int64
	left    func(bytes int64) // is told how much of the image is left
}

// erase deletes the data objects of an image in the trash. It changes nothing of an image that is
// small, has an object map (with which Ceph skips what does not exist), is in use, is protected by a
// delay, or has what only Ceph's own purge can judge. A context that ends stops it, and a later call
// goes on from there.
func erase(ctx context.Context, conn *rados.Conn, io *rados.IOContext, e TrashedImage, left func(bytes int64)) (err error) {
	plan, err := erasable(io, e.ID)
	if err != nil || plan == nil {
		return err
	}
	if err := unused(conn, io, e.Name, e.ID); err != nil {
		return err
	}
	image, err := librbd.OpenImageById(io, e.ID, librbd.NoSnapshot)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, image.Close()) }()
	if err := image.LockAcquire(librbd.LockModeExclusive); err != nil {
		return err
	}
	if toCeph, err := keepInTrash(io, e.ID); toCeph || err != nil {
		return err
	}
	_, err = withDataPool(conn, plan.dataPool, func(data *rados.IOContext) (struct{}, error) {
		v := victim{
			image: e, io: io, data: data, prefix: plan.prefix, stripe: plan.stripe, width: plan.width, objects: plan.objects, left: left,
		}
		return struct{}{}, v.erase(ctx)
	})
	return err
}

// keepInTrash sees to it that nobody can take an image out of the trash any more. It reports true
// without a change if Ceph's purge has to judge the image: one that is protected by a delay, is still
// on its way to the trash or is on its way out of it. The image's lock must be held, so that nobody
// moves the image there again with another delay.
func keepInTrash(io *rados.IOContext, id string) (toCeph bool, err error) {
	entry, err := trashEntryOf(io, id)
	if err != nil || time.Now().Before(entry.keptUntil) {
		return true, err
	}
	err = setTrashState(io, id, trashRemoving, trashNormal)
	if errno(err) == syscall.ESTALE {
		return true, nil
	}
	return false, err
}

type erasePlan struct {
	prefix        string
	objects       int64
	stripe, width int64
	dataPool      int64
}

// erasable returns nil for an image that is left to Ceph's purge.
func erasable(io *rados.IOContext, id string) (*erasePlan, error) {
	// Most images are small, and need no more than this message.
	if size, order, _, err := headerExtent(io, headerOf(id)); err == nil && size>>order < eraseObjects-1 {
		return nil, nil //nolint:nilnil // as told
	}
	image, err := librbd.OpenImageByIdReadOnly(io, id, librbd.NoSnapshot)
	if errors.Is(translate(err), ErrNotFound) { // an interrupted purge has left no header
		return nil, nil //nolint:nilnil // as told
	}
	if err != nil {
		return nil, err
	}
	plan, err := planErase(io, image)
	return plan, errors.Join(err, image.Close())
}

func planErase(io *rados.IOContext, image *librbd.Image) (*erasePlan, error) {
	at, err := readUse(image)
	if err != nil {
		return nil, err
	}
	var errs [4]error
	var info *librbd.ImageInfo
	var group librbd.GroupInfo
	var count uint64
	p := erasePlan{dataPool: at.dataPool}
	info, errs[0] = image.Stat()
	group, errs[1] = image.GetGroup()
	count, errs[2] = image.GetStripeCount()
	p.prefix, errs[3] = objectPrefix(io, at.header())
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	const harmless = allFeatures&^(ObjectMap|FastDiff) | Features(librbd.FeatureDataPool|librbd.FeatureStripingV2|librbd.FeatureOperations)
	if at.features&^harmless != 0 || at.features&ExclusiveLock == 0 || len(at.snapshots) > 0 || group.Name != "" ||
		info.Num_objs < eraseObjects || !strings.HasPrefix(p.prefix, "rbd_data.") || !strings.HasSuffix(p.prefix, "."+at.id+".") {
		return nil, nil //nolint:nilnil // as told
	}
	p.objects, p.width, p.stripe = int64(info.Num_objs), int64(count), int64(count)*int64(info.Obj_size)
	return &p, nil
}

// objectPrefix reads what the names of an image's objects begin with. librbd's own answer is cut
// off if there is a data pool.
func objectPrefix(io *rados.IOContext, header string) (string, error) {
	answer, err := execRead(io, header, "get_object_prefix", nil)
	if err != nil {
		return "", err
	}
	in := decoder{left: answer}
	return in.text() + ".", in.err()
}

func (v *victim) erase(ctx context.Context) error {
	list, err := v.listIsCheaper()
	if err != nil {
		return err
	}
	if list {
		err = v.eraseListed(ctx)
	} else {
		err = v.eraseNumbered(ctx)
	}
	if err == nil {
		err = v.shrink(0)
	}
	return err
}

// listFactor is how many objects of a pool can be listed in the time in which one is deleted, or
// more: measured were about ten.
const listFactor = 4

// listIsCheaper: a pool that has few objects can be searched for those of the image sooner than the
// image's objects can be deleted one after the other, whether they exist or not.
func (v *victim) listIsCheaper() (bool, error) {
	stats, err := v.data.GetPoolStats()
	return int64(stats.Num_objects)/listFactor <= v.objects, err
}

// eraseListed deletes what a list of the pool's objects shows.
func (v *victim) eraseListed(ctx context.Context) error {
	names, err := v.data.Iter()
	if err != nil {
		return err
	}
	defer names.Close()
	pacer := pacer{since: time.Now()}
	return deleteAll(ctx, v.data, func(yield func(string) bool) error {
		for names.Next() {
			if name := names.Value(); strings.HasPrefix(name, v.prefix) && !yield(name) {
				return nil
			}
			if err := pacer.listed(ctx); err != nil {
				return err
			}
		}
		return names.Err()
	})
}

// eraseStep is after how many objects the size is written: what an interruption costs.
const eraseStep = 1 << 13

// eraseNumbered deletes each object that the image can have, the last ones first.
func (v *victim) eraseNumbered(ctx context.Context) error {
	for v.objects > 0 {
		from := max(0, v.objects-eraseStep)
		err := deleteAll(ctx, v.data, func(yield func(string) bool) error {
			more := true
			for n := from; n < v.objects && more; n++ {
				more = yield(fmt.Sprintf("%s%016x", v.prefix, n))
			}
			return nil
		})
		if err != nil {
			return err
		}
		if err := v.shrink(from); err != nil {
			return err
		}
	}
	return nil
}

// shrink writes down that the objects from a number on are gone. A size may mean more objects than
// that, since data is striped over several.
func (v *victim) shrink(objects int64) error {
	size := (objects + v.width - 1) / v.width * v.stripe
	if err := execHeader(v.io, headerOf(v.image.ID), "set_size", binary.LittleEndian.AppendUint64(nil, uint64(size))); err != nil {
		return err
	}
	v.objects = objects
	v.left(size)
	return nil
}
