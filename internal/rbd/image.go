package rbd

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"time"

	"github.com/ceph/go-ceph/rados"
	librbd "github.com/ceph/go-ceph/rbd"

	"github.com/escache/escache-csi/internal/crashpoint"
)

// ImageRef identifies an image.
type ImageRef struct {
	Pool string
	Name string
}

func (r ImageRef) String() string { return "image " + r.Pool + "/" + r.Name }

// ImageSpec describes the image to create.
type ImageSpec struct {
	ImageRef

	SizeBytes int64 // a multiple of 512
	// Features come from ParseFeatures. 0 means DefaultFeatures.
	Features Features
	// DataPool gets the data, and Pool only the metadata. If it is "", Pool gets both.
	DataPool string
	// ObjectSizeBytes is a power of two from 4 KiB to 32 MiB. 0 means Ceph's default, 4 MiB.
	ObjectSizeBytes int64
	// StripeUnitBytes and StripeCount must be set together. 0 means no striping over objects.
	StripeUnitBytes int64
	StripeCount     int64
	// Volume is the volume's ID, for the image's mark, and Note is written beside it.
	Volume string
	Note   string
}

// ImageInfo describes an image that exists in Ceph.
type ImageInfo struct {
	ImageRef

	ID              string
	SizeBytes       int64
	Features        Features
	DataPool        string // "" if it is the image's pool
	ObjectSizeBytes int64
	StripeUnitBytes int64
	StripeCount     int64
	Created         time.Time
	// Parent is the snapshot that the image is a clone of, or nil.
	Parent *SnapshotRef
	Mark   Mark
}

// Limits of an image's layout, from librbd.
const (
	minObjectSize = 4 << 10
	maxObjectSize = 32 << 20
	minStripeUnit = 4 << 10
	sectorSize    = 512
)

// Validate returns ErrInvalid, with the reason, for a layout that Ceph or the nodes' kernels do not
// accept.
func (s ImageSpec) Validate() error {
	powerOfTwo := func(n int64) bool { return n > 0 && bits.OnesCount64(uint64(n)) == 1 }
	object := s.ObjectSizeBytes
	if object == 0 {
		object = 4 << 20
	}
	switch {
	case s.Pool == "" || s.Name == "":
		return fmt.Errorf("an image needs a pool and a name: %w", ErrInvalid)
	case s.SizeBytes <= 0 || s.SizeBytes%sectorSize != 0:
		return fmt.Errorf("size %d: must be a positive multiple of %d bytes: %w", s.SizeBytes, sectorSize, ErrInvalid)
	case !powerOfTwo(object) || object < minObjectSize || object > maxObjectSize:
		return fmt.Errorf("object size %d: must be a power of two from 4 KiB to 32 MiB: %w", s.ObjectSizeBytes, ErrInvalid)
	case (s.StripeUnitBytes == 0) != (s.StripeCount == 0):
		return fmt.Errorf("stripe unit and stripe count come together: %w", ErrInvalid)
	case s.StripeUnitBytes != 0 && (!powerOfTwo(s.StripeUnitBytes) || s.StripeUnitBytes < minStripeUnit || s.StripeUnitBytes > object):
		return fmt.Errorf("stripe unit %d: must be a power of two from 4 KiB to the object size: %w", s.StripeUnitBytes, ErrInvalid)
	case s.StripeCount < 0:
		return fmt.Errorf("stripe count %d: must be positive: %w", s.StripeCount, ErrInvalid)
	}
	_, err := ParseFeatures(s.Features.Names())
	return err
}

// CreateImage creates an image. If the name exists, the error is an *ExistsError that describes the
// image; the caller decides whether it is its own from an earlier call, and if so, calls MarkImage:
// that call may have ended before it marked the image. Other errors: ErrForeign if the name is that
// of another Kubernetes cluster's image, ErrInvalid, ErrPoolNotFound, ErrFull.
func (c *Cluster) CreateImage(ctx context.Context, s ImageSpec) error {
	if err := s.Validate(); err != nil {
		return fmt.Errorf("create %s: %w", s.ImageRef, err)
	}
	_, err := callAlone(ctx, c, "image_create", "create "+s.String(), s.ImageRef, func(conn *rados.Conn) (struct{}, error) {
		return withPool(conn, s.Pool, func(io *rados.IOContext) (struct{}, error) {
			if err := c.trash.prepare(io, s.Pool); err != nil {
				return struct{}{}, err
			}
			return struct{}{}, c.createImage(conn, io, s)
		})
	})
	return err
}

func (c *Cluster) createImage(conn *rados.Conn, io *rados.IOContext, s ImageSpec) error {
	if s.DataPool != "" {
		if _, err := conn.GetPoolByName(s.DataPool); errors.Is(err, rados.ErrNotFound) {
			return fmt.Errorf("data pool %s: %w", s.DataPool, ErrPoolNotFound)
		}
	}
	options, err := s.options()
	if err != nil {
		return err
	}
	defer options.Destroy()
	return c.makeNew(conn, io, s, func() error { return librbd.CreateImage(io, s.Name, uint64(s.SizeBytes), options) })
}

// makeNew runs a create and marks the image, and turns "exists already" into what exists. A process
// that dies within a create leaves an image's name without an image, which Ceph then neither makes
// nor opens: that is removed, and the create repeated. Nobody else of this Kubernetes cluster can
// be just making it: callAlone keeps others of this process away, and only one process leads.
func (c *Cluster) makeNew(conn *rados.Conn, io *rados.IOContext, s ImageSpec, create func() error) error {
	err := create()
	if err == nil {
		crashpoint.Reach("create_volume/image_unmarked")
		return c.markNew(io, s)
	}
	if !errors.Is(translate(err), ErrExists) {
		return err
	}
	info, err := imageInfo(conn, io, s.ImageRef)
	if err == nil {
		if err := c.foreign(info.Mark); err != nil {
			return err
		}
		return &ExistsError{Image: info}
	}
	if half, failed := halfMade(io, s.Name); failed != nil || !half {
		return fmt.Errorf("%w: it exists, but cannot be looked at: %s", ErrCeph, errors.Join(err, failed).Error())
	}
	if err := removeHalfMade(io, s.Name); err != nil {
		return err
	}
	if err := create(); err != nil {
		return err
	}
	return c.markNew(io, s)
}

// halfMade says whether there is less than an image under a name: a name without an ID, or an ID
// without a header. An image that cannot be opened for another reason, as a missing data pool, is
// not half made.
func halfMade(io *rados.IOContext, name string) (bool, error) {
	id, err := imageID(io, name)
	if err == nil {
		_, err = io.Stat(headerOf(id))
	}
	if errors.Is(err, rados.ErrNotFound) {
		return true, nil
	}
	return false, err
}

// openError keeps ErrNotFound for images that are not there, or half made: librbd says the same of
// one whose data pool or parent is missing, and taken for deleted that would be forgotten.
func openError(io *rados.IOContext, name string, err error) error {
	if !errors.Is(translate(err), ErrNotFound) {
		return err
	}
	if half, failed := halfMade(io, name); failed == nil && half {
		return err
	}
	return fmt.Errorf("%w: the image is there, but cannot be opened: its data pool or its parent may be missing", ErrCeph)
}

// removeHalfMade must be sure of what it removes: an image that cannot be opened may hold data all
// the same.
func removeHalfMade(io *rados.IOContext, name string) error {
	half, err := halfMade(io, name)
	if err != nil {
		return err
	}
	if !half {
		return fmt.Errorf("%w: the image is there, but cannot be opened", ErrCeph)
	}
	if err := librbd.RemoveImage(io, name); err != nil && !errors.Is(translate(err), ErrNotFound) {
		return fmt.Errorf("remove what an earlier call left half made: %w", translate(err))
	}
	return nil
}

func (s ImageSpec) options() (*librbd.ImageOptions, error) {
	o := librbd.NewRbdImageOptions()
	var failed error
	set := func(option librbd.ImageOption, value uint64) {
		if value != 0 {
			failed = errors.Join(failed, o.SetUint64(option, value))
		}
	}
	features := s.Features
	if features == 0 {
		features = DefaultFeatures
	}
	set(librbd.ImageOptionFeatures, uint64(features))
	if s.ObjectSizeBytes != 0 {
		set(librbd.ImageOptionOrder, uint64(bits.TrailingZeros64(uint64(s.ObjectSizeBytes))))
	}
	set(librbd.ImageOptionStripeUnit, uint64(s.StripeUnitBytes))
	set(librbd.ImageOptionStripeCount, uint64(s.StripeCount))
	if s.DataPool != "" {
		failed = errors.Join(failed, o.SetString(librbd.ImageOptionDataPool, s.DataPool))
	}
	if failed != nil {
		o.Destroy()
		return nil, failed
	}
	return o, nil
}

// ImageInfo opens an image and describes it. This costs Ceph a dozen messages. Errors: ErrNotFound,
// ErrPoolNotFound.
func (c *Cluster) ImageInfo(ctx context.Context, ref ImageRef) (ImageInfo, error) {
	return call(ctx, c, "image_info", ref.String(), func(conn *rados.Conn) (ImageInfo, error) {
		return withPool(conn, ref.Pool, func(io *rados.IOContext) (ImageInfo, error) { return imageInfo(conn, io, ref) })
	})
}

func imageInfo(conn *rados.Conn, io *rados.IOContext, ref ImageRef) (ImageInfo, error) {
	return withImage(io, ref.Name, readOnly, func(image *librbd.Image) (ImageInfo, error) {
		info := ImageInfo{ImageRef: ref}
		var errs [8]error
		var stat *librbd.ImageInfo
		var features, stripeUnit, stripeCount uint64
		var created librbd.Timespec
		var dataPool int64
		stat, errs[0] = image.Stat()
		info.ID, errs[1] = image.GetId()
		features, errs[2] = image.GetFeatures()
		stripeUnit, errs[3] = image.GetStripeUnit()
		stripeCount, errs[4] = image.GetStripeCount()
		created, errs[5] = image.GetCreateTimestamp()
		dataPool, errs[6] = image.GetDataPoolID()
		info.Mark, _, errs[7] = readMark(io, info.ID)
		if err := errors.Join(errs[:]...); err != nil {
			return ImageInfo{}, err
		}
		info.SizeBytes, info.ObjectSizeBytes, info.Features = int64(stat.Size), int64(stat.Obj_size), Features(features)
		info.StripeUnitBytes, info.StripeCount = int64(stripeUnit), int64(stripeCount)
		info.Created = time.Unix(created.Sec, created.Nsec)
		if dataPool != io.GetPoolID() {
			var err error
			if info.DataPool, err = conn.GetPoolByID(dataPool); err != nil {
				return ImageInfo{}, fmt.Errorf("%w: data pool %d of the image: %s", ErrCeph, dataPool, err.Error())
			}
		}
		return info, addParent(image, &info)
	})
}

// ImageID reads an image's internal ID in one message, without opening it. Errors: ErrNotFound,
// ErrPoolNotFound.
func (c *Cluster) ImageID(ctx context.Context, ref ImageRef) (string, error) {
	return call(ctx, c, "image_id", ref.String(), func(conn *rados.Conn) (string, error) {
		return withPool(conn, ref.Pool, func(io *rados.IOContext) (string, error) { return imageID(io, ref.Name) })
	})
}

// imageID decodes the object rbd_id.NAME: a string with its length in front, as krbd reads it.
func imageID(io *rados.IOContext, name string) (string, error) {
	var object [256]byte
	n, err := io.Read("rbd_id."+name, object[:], 0)
	if err != nil {
		return "", err
	}
	const header = 4
	if n < header || int(binary.LittleEndian.Uint32(object[:]))+header > n {
		return "", fmt.Errorf("%w: object rbd_id.%s has %d bytes and no ID", ErrCeph, name, n)
	}
	return string(object[header : header+binary.LittleEndian.Uint32(object[:])]), nil
}

// ListImages returns the names of all images in a pool. Errors: ErrPoolNotFound.
func (c *Cluster) ListImages(ctx context.Context, pool string) ([]string, error) {
	return call(ctx, c, "image_list", "pool "+pool, func(conn *rados.Conn) ([]string, error) {
		names, err := withPool(conn, pool, librbd.GetImageNames)
		slices.Sort(names)
		return names, err
	})
}

const (
	readOnly  = true
	readWrite = false
)

// withImage opens an image for fn. Opened read-only it leaves no watcher, so that looking never
// makes an image look used.
func withImage[T any](io *rados.IOContext, name string, isReadOnly bool, fn func(*librbd.Image) (T, error)) (T, error) {
	var none T
	open := librbd.OpenImage
	if isReadOnly {
		open = librbd.OpenImageReadOnly
	}
	image, err := open(io, name, librbd.NoSnapshot)
	if err != nil {
		return none, openError(io, name, err)
	}
	value, err := fn(image)
	if closed := image.Close(); err == nil && closed != nil {
		return none, closed
	}
	return value, err
}
