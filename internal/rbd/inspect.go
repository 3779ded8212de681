package rbd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/ceph/go-ceph/rados"
	librbd "github.com/ceph/go-ceph/rbd"
)

// Inspection describes an image that somebody else has made, and what keeps it from being a volume.
type Inspection struct {
	ImageInfo

	// Clients has a few words for each client that has the image open, or holds its lock by itself.
	Clients []string
	// Left are the clients that hold the exclusive lock without having the image open. They have died, or
	// are cut off from Ceph.
	Left []Lock
	// Encrypted: the image begins with a LUKS header, or ceph-csi has noted that it is encrypted.
	Encrypted bool
	// foreign: the image is marked as another Kubernetes cluster's.
	foreign bool
}

// Lock is who holds an image's exclusive lock.
type Lock struct{ Client, Address, Cookie string }

func (l Lock) String() string {
	return fmt.Sprintf("%s at %s holds its lock (%s)", l.Client, l.Address, l.Cookie)
}

// automatic begins the cookie of a lock that librbd or the kernel has taken by itself.
const automatic = "auto "

// Inspect describes an image. Opened read-only, it leaves no trace. Errors: ErrNotFound,
// ErrPoolNotFound; ErrInvalid for an image in the trash, and for one of the old format 1.
func (c *Cluster) Inspect(ctx context.Context, ref ImageRef) (Inspection, error) {
	return call(ctx, c, "image_inspect", ref.String(), func(conn *rados.Conn) (Inspection, error) {
		return withPool(conn, ref.Pool, func(io *rados.IOContext) (Inspection, error) {
			if _, err := imageID(io, ref.Name); err != nil {
				return Inspection{}, whyMissing(io, ref, err)
			}
			info, err := imageInfo(conn, io, ref)
			if err != nil {
				return Inspection{}, err
			}
			out := Inspection{ImageInfo: info, foreign: errors.Is(c.foreign(info.Mark), ErrForeign)}
			_, err = withImage(io, ref.Name, readOnly, func(image *librbd.Image) (struct{}, error) { return struct{}{}, out.look(image) })
			return out, err
		})
	})
}

// whyMissing tells an image that cannot be used by its name from one that is not there.
func whyMissing(io *rados.IOContext, ref ImageRef, missing error) error {
	if !errors.Is(missing, rados.ErrNotFound) {
		return missing
	}
	if _, err := io.Stat(ref.Name + ".rbd"); err == nil {
		return fmt.Errorf("%w: it has the old format 1; copy it into a new image (`rbd cp`)", ErrInvalid)
	}
	trash, err := listTrash(io)
	if err != nil {
		return err
	}
	for _, e := range trash {
		if e.name == ref.Name {
			return fmt.Errorf("%w: it is in the trash; `rbd trash restore --pool %s %s` takes it out", ErrInvalid, ref.Pool, e.id)
		}
	}
	return missing
}

// look reads who uses the image, and whether it is encrypted.
func (i *Inspection) look(image *librbd.Image) error {
	watchers, err := image.ListWatchers()
	if err != nil {
		return err
	}
	for _, w := range watchers {
		i.Clients = append(i.Clients, fmt.Sprintf("client.%d at %s has it open", w.Id, w.Addr))
	}
	_, lockers, err := image.ListLockers()
	if err != nil {
		return err
	}
	for _, l := range lockers {
		lock := Lock{Client: l.Client, Address: l.Addr, Cookie: l.Cookie}
		opened := slices.ContainsFunc(watchers, func(w librbd.ImageWatcher) bool { return w.Addr == l.Addr })
		if !opened && strings.HasPrefix(l.Cookie, automatic) {
			i.Left = append(i.Left, lock)
		} else {
			i.Clients = append(i.Clients, lock.String())
		}
	}
	all, err := image.ListMetadata()
	if err != nil {
		return err
	}
	for key := range all {
		i.Encrypted = i.Encrypted || strings.HasSuffix(key, "rbd.csi.ceph.com/encrypted")
	}
	if i.SizeBytes < sectorSize {
		return nil
	}
	head := make([]byte, sectorSize)
	if _, err := image.ReadAt(head, 0); err != nil {
		return err
	}
	// cryptsetup's header, and what librbd makes of it in a clone.
	i.Encrypted = i.Encrypted || bytes.HasPrefix(head, []byte("LUKS\xba\xbe")) || bytes.HasPrefix(head, []byte("RBDL\xba\xbe"))
	return nil
}

// Limits of what can be a volume: those of the record.
const (
	minVolume   = 1 << 20
	maxVolume   = 1 << 50
	volumeBlock = 4 << 10
)

// Refusals returns a sentence for each reason why the image cannot become this volume, with what to
// do about it. A mark of the same volume is no reason: an interrupted call has left it.
func (i *Inspection) Refusals(volume string) []string {
	var out []string
	refuse := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	image := i.Pool + "/" + i.Name
	if len(i.Clients) > 0 {
		refuse("it is in use: %s; unmap or close it there", strings.Join(i.Clients, ", "))
	}
	for _, l := range i.Left {
		refuse("%s, and does not have it open: it has died, or is cut off from Ceph; shut it out with `ceph osd blocklist add %s`, then "+
			"remove its lock with `rbd lock rm %s %q %s`", l, l.Address, image, l.Cookie, l.Client)
	}
	if p := i.Parent; p != nil {
		refuse("it is a clone of %s/%s@%s: `rbd flatten %s`", p.Pool, p.Name, p.Snapshot, image)
	}
	for _, name := range i.Features.Names() {
		if why, bad := unmappable[name]; bad {
			refuse("it has the feature %s, %s", name, strings.ReplaceAll(why, "IMAGE", image))
		}
	}
	if i.Features&ExclusiveLock == 0 {
		refuse("it has no exclusive-lock, which keeps a second host from writing: `rbd feature enable %s exclusive-lock`", image)
	}
	if i.Encrypted {
		refuse("it is encrypted, and the driver has no key: copy its data into a new volume")
	}
	switch {
	case i.SizeBytes < minVolume, i.SizeBytes > maxVolume:
		refuse("it has %d bytes, and volumes have from 1 MiB to 1 PiB", i.SizeBytes)
	case i.SizeBytes%volumeBlock != 0:
		refuse("its size, %d bytes, is no multiple of 4096: grow it with `rbd resize`", i.SizeBytes)
	}
	return slices.Concat(out, i.marked(image, volume))
}

func (i *Inspection) marked(image, volume string) []string {
	const remove = "`rbd image-meta remove %s escache.io/kubernetes-cluster`"
	switch m := i.Mark; {
	case m.Kubernetes == "":
		return nil
	case i.foreign:
		return []string{fmt.Sprintf("it is volume %s of another Kubernetes cluster, whose namespace kube-system has the UID %s; "+
			"release it there. If that cluster is gone for good: `kubectl escache adopt --all` re-creates the record; "+
			"or, if no host has a cache of the image: "+remove,
			m.Volume, m.Kubernetes, image)}
	case m.Deleted != "":
		return []string{fmt.Sprintf("volume %s, whose image it is, was deleted at %s, and the image is deleted with its last snapshot; "+
			"to keep it: `rbd image-meta remove %s %s`", m.Volume, m.Deleted, image, markDeleted)}
	case m.Volume != volume:
		return []string{fmt.Sprintf("it is marked as volume %s of this Kubernetes cluster. If no CacheVolume has that name "+
			"any more, hosts may still have data of it that Ceph does not have: `kubectl escache adopt --all` re-creates the record; "+
			"or, if you are certain that none has: "+remove,
			m.Volume, image)}
	}
	return nil
}

// unmappable are the features with which a node's kernel cannot use an image, or must not.
var unmappable = map[string]string{
	"journaling":  "with which the kernel cannot map it: `rbd feature disable IMAGE journaling`",
	"migrating":   "so it is being migrated: `rbd migration commit IMAGE` or `abort` ends that",
	"non-primary": "so another cluster mirrors into it: `rbd mirror image promote IMAGE`, once that one has been demoted",
	"dirty-cache": "so a client's own write-back cache may have data of it: " +
		"end that client in an orderly way, or `rbd persistent-cache flush IMAGE`",
}

// AdoptImage marks an image, which nobody has marked, as this Kubernetes cluster's and the volume's,
// with a note, and returns its ID. A mark of the same volume is success. Errors: ErrNotFound,
// ErrPoolNotFound, ErrForeign, ErrExists for an image of another volume.
func (c *Cluster) AdoptImage(ctx context.Context, ref ImageRef, volume, note string) (id string, err error) {
	return c.takeImage(ctx, "image_adopt", ref, volume, note, func(has Mark) error {
		switch err := c.foreign(has); {
		case errors.Is(err, ErrForeign):
			return err
		case has.Kubernetes != "" && (has.Volume != volume || has.Deleted != ""):
			return fmt.Errorf("%w: it is volume %s's", ErrExists, has.Volume)
		}
		return nil
	})
}

// RetakeImage marks an image that is this volume's already as this Kubernetes cluster's, with a note,
// and returns its ID. from is another Kubernetes cluster with whose mark it may be; "" allows none.
// The mark of any other cluster or volume is left alone. Errors: ErrNotFound, ErrPoolNotFound,
// ErrForeign, ErrExists for an image of another or a deleted volume, or of none.
func (c *Cluster) RetakeImage(ctx context.Context, ref ImageRef, from, volume, note string) (id string, err error) {
	return c.takeImage(ctx, "image_retake", ref, volume, note, func(has Mark) error {
		switch err := c.foreign(has); {
		case errors.Is(err, ErrForeign) && has.Kubernetes == from: // as asked for
		case err != nil:
			return err
		}
		if has.Kubernetes == "" || has.Volume != volume || has.Deleted != "" {
			return fmt.Errorf("%w: its mark is of volume %q, deleted at %q, not of volume %s", ErrExists, has.Volume, has.Deleted, volume)
		}
		return nil
	})
}

// takeImage marks an image as this Kubernetes cluster's and the volume's, with a note, and returns its ID,
// unless refuse has something against the mark that the image has.
func (c *Cluster) takeImage(
	ctx context.Context, operation string, ref ImageRef, volume, note string, refuse func(has Mark) error,
) (id string, err error) {
	return callAlone(ctx, c, operation, ref.String(), ref, func(conn *rados.Conn) (string, error) {
		return withPool(conn, ref.Pool, func(io *rados.IOContext) (string, error) {
			id, err := imageID(io, ref.Name)
			if err != nil {
				return "", err
			}
			wanted := Mark{Kubernetes: c.options.Kubernetes, Volume: volume, Note: note}
			return id, changeMark(io, id, func(has Mark) (metadataChange, error) {
				if err := refuse(has); err != nil {
					return metadataChange{}, err
				}
				return wanted.change(), nil
			})
		})
	})
}
