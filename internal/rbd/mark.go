package rbd

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"syscall"

	"github.com/ceph/go-ceph/rados"
)

// Mark says whose an image is. It is in the image's metadata, where `rbd image-meta list` shows it.
type Mark struct {
	// Kubernetes is the identity of a Kubernetes cluster. "" means that the image has no mark.
	Kubernetes string
	Volume     string
	// Note is what was last written about the volume, in the caller's form. It is a hint: no mark
	// depends on it.
	Note string
	// Released is the last note about the volume that gave the image up. Such an image is nobody's.
	Released string
	// Deleted is when the volume was deleted, if the image stays for its snapshots.
	Deleted string
	// Trashed is when the driver has last begun to move the image to the trash. It means nothing for an image
	// that is not there.
	Trashed string
}

// is reports whether both are the same Kubernetes cluster's and volume's.
func (m Mark) is(other Mark) bool {
	return m.Kubernetes == other.Kubernetes && m.Volume == other.Volume
}

// Keys of an image's metadata.
const (
	markPrefix     = "escache.io/"
	markKubernetes = markPrefix + "kubernetes-cluster"
	markVolume     = markPrefix + "volume"
	markNote       = markPrefix + "record"
	markReleased   = markPrefix + "released"
	markDeleted    = markPrefix + "deleted"
	markTrashed    = markPrefix + "trashed"
)

// MarkImage marks an image as this Kubernetes cluster's if it has no mark, and returns its ID.
// Errors: ErrNotFound, ErrPoolNotFound, ErrForeign, ErrExists if Options.MayMark is against it. An image that has its mark
// costs two messages.
//
// What changes the mark of one image is done one after the other, until each call has really ended. So an older
// note never replaces a newer one. An earlier leader's calls cannot come late: its clients are fenced (Options.Admit).
func (c *Cluster) MarkImage(ctx context.Context, ref ImageRef, volume string) (id string, err error) {
	return callAlone(ctx, c, "image_mark", ref.String(), ref, func(conn *rados.Conn) (string, error) {
		return withPool(conn, ref.Pool, func(io *rados.IOContext) (string, error) {
			id, err := imageID(io, ref.Name)
			if err != nil {
				return "", err
			}
			return id, c.markOnce(io, id, ref, volume)
		})
	})
}

// MarkOf reads an image's mark, in two messages. An image without one, or that is half made, has
// the zero Mark. Errors: ErrNotFound, ErrPoolNotFound.
func (c *Cluster) MarkOf(ctx context.Context, ref ImageRef) (Mark, error) {
	return call(ctx, c, "image_mark_read", ref.String(), func(conn *rados.Conn) (Mark, error) {
		return withPool(conn, ref.Pool, func(io *rados.IOContext) (Mark, error) {
			id, err := imageID(io, ref.Name)
			if err != nil {
				return Mark{}, err
			}
			mark, _, err := readMark(io, id)
			if errors.Is(err, rados.ErrNotFound) {
				return Mark{}, nil
			}
			return mark, err
		})
	})
}

// NoteImage writes a note about the volume beside the image's mark, and marks an image that has no
// mark. Errors: ErrNotFound, ErrPoolNotFound, ErrForeign, ErrExists for an image of another volume. It costs three
// messages.
func (c *Cluster) NoteImage(ctx context.Context, ref ImageRef, volume, note string) error {
	_, err := callAlone(ctx, c, "image_note", ref.String(), ref, func(conn *rados.Conn) (struct{}, error) {
		return withPool(conn, ref.Pool, func(io *rados.IOContext) (struct{}, error) {
			id, err := imageID(io, ref.Name)
			if err != nil || c.options.Kubernetes == "" {
				return struct{}{}, err
			}
			wanted := Mark{Kubernetes: c.options.Kubernetes, Volume: volume, Note: note}
			return struct{}{}, changeMark(io, id, func(has Mark) (metadataChange, error) {
				if err := c.foreign(has); err != nil {
					return metadataChange{}, err
				}
				return wanted.change(), has.ofAnother(volume)
			})
		})
	})
	return err
}

// ReleaseImage gives the image of a volume up: it removes its mark, and leaves a note in its place. Repeated, it
// does nothing. Errors: ErrNotFound, ErrPoolNotFound, ErrForeign, ErrExists for an image of another volume.
func (c *Cluster) ReleaseImage(ctx context.Context, ref ImageRef, volume, note string) error {
	_, err := callAlone(ctx, c, "image_release", ref.String(), ref, func(conn *rados.Conn) (struct{}, error) {
		return withPool(conn, ref.Pool, func(io *rados.IOContext) (struct{}, error) {
			id, err := imageID(io, ref.Name)
			if err != nil {
				return struct{}{}, err
			}
			return struct{}{}, changeMark(io, id, func(has Mark) (metadataChange, error) {
				if has.Kubernetes == "" && has.Released != "" {
					return metadataChange{}, nil
				}
				if err := c.foreign(has); err != nil {
					return metadataChange{}, err
				}
				return metadataChange{
					set:    map[string]string{markReleased: note},
					remove: []string{markKubernetes, markVolume, markNote, markDeleted, markTrashed},
				}, has.ofAnother(volume)
			})
		})
	})
	return err
}

// KeepImage notes that an image's volume was deleted, at that time, and that the image stays for its
// snapshots. Repeated, it does nothing. A later note about the volume takes that back. Errors:
// ErrNotFound, ErrPoolNotFound, ErrForeign, ErrExists for an image of another volume.
func (c *Cluster) KeepImage(ctx context.Context, ref ImageRef, volume, at string) error {
	_, err := callAlone(ctx, c, "image_keep", ref.String(), ref, func(conn *rados.Conn) (struct{}, error) {
		return withPool(conn, ref.Pool, func(io *rados.IOContext) (struct{}, error) {
			id, err := imageID(io, ref.Name)
			if err != nil {
				return struct{}{}, err
			}
			set := map[string]string{markKubernetes: c.options.Kubernetes, markVolume: volume, markDeleted: at}
			return struct{}{}, changeMark(io, id, func(has Mark) (metadataChange, error) {
				if err := c.foreign(has); err != nil {
					return metadataChange{}, err
				}
				if err := has.ofAnother(volume); err != nil {
					return metadataChange{}, err
				}
				if has.Deleted != "" {
					return metadataChange{}, nil
				}
				return metadataChange{set: set}, nil
			})
		})
	})
	return err
}

// ofAnother returns ErrExists if the mark is another volume's.
func (m Mark) ofAnother(volume string) error {
	if m.Kubernetes != "" && m.Volume != volume {
		return fmt.Errorf("%w: it is volume %s's", ErrExists, m.Volume)
	}
	return nil
}

// markOnce marks an image that has no mark, or a mark that it has been copied with.
func (c *Cluster) markOnce(io *rados.IOContext, id string, ref ImageRef, volume string) error {
	wanted := Mark{Kubernetes: c.options.Kubernetes, Volume: volume}
	if wanted.Kubernetes == "" {
		return nil
	}
	return changeMark(io, id, func(has Mark) (metadataChange, error) {
		if err := c.foreign(has); err != nil || has.is(wanted) {
			return metadataChange{}, err
		}
		if err := has.ofAnother(volume); err != nil && c.options.MayMark != nil {
			if why := c.options.MayMark(ref, volume, has.Note); why != nil {
				return metadataChange{}, fmt.Errorf("%w: %w", err, why)
			}
		}
		wanted.Note = has.Note
		return wanted.change(), nil
	})
}

// changeMark reads a mark and writes what decide makes of it; nothing, if that is nothing. The write
// counts only if the image's header is still what was read, so it never replaces a mark that decide
// has not seen.
func changeMark(io *rados.IOContext, id string, decide func(has Mark) (metadataChange, error)) error {
	for range headerTries {
		has, version, err := readMark(io, id)
		if err != nil {
			return err
		}
		change, err := decide(has)
		if err != nil || change.empty() {
			return err
		}
		err = change.write(io, id, func(op *rados.WriteOp) { op.AssertVersion(version) })
		if n := errno(err); n != syscall.ERANGE && n != syscall.EOVERFLOW { // older, newer than asserted
			return err
		}
	}
	return fmt.Errorf("%w: its header changes all the time", ErrBusy)
}

// markNew marks an image that this call has just made. A clone has its parent's metadata so far.
func (c *Cluster) markNew(io *rados.IOContext, s ImageSpec) error {
	if c.options.Kubernetes == "" {
		return nil
	}
	id, err := imageID(io, s.Name)
	if err != nil {
		return err
	}
	mark := Mark{Kubernetes: c.options.Kubernetes, Volume: s.Volume, Note: s.Note}
	return mark.change().write(io, id, (*rados.WriteOp).AssertExists)
}

// refuseForeign returns ErrForeign for an image of another Kubernetes cluster. It costs a message.
func (c *Cluster) refuseForeign(io *rados.IOContext, id string) error {
	if c.options.Kubernetes == "" {
		return nil
	}
	has, _, err := readMark(io, id)
	if err != nil {
		return err
	}
	return c.foreign(has)
}

func (c *Cluster) foreign(has Mark) error {
	own := c.options.Kubernetes
	if own != "" && has.Kubernetes == "" && has.Released != "" {
		return fmt.Errorf("%w (its metadata has %s): nothing is done with it unless it is adopted", ErrReleased, markReleased)
	}
	if own == "" || has.Kubernetes == "" || has.Kubernetes == own {
		return nil
	}
	return fmt.Errorf("%w: its metadata has %s=%s, and this one is %s; if the other one is gone and the image is this one's now, "+
		"change that with `rbd image-meta set`", ErrForeign, markKubernetes, has.Kubernetes, own)
}

// readMark reads a mark, and the version of the header that says so. Without a header it is an
// error with ENOENT.
func readMark(io *rados.IOContext, id string) (Mark, uint64, error) {
	const keys = 8 // more than begin with the prefix
	in := binary.LittleEndian.AppendUint64(appendText(nil, markPrefix), keys)
	answer, err := execRead(io, headerOf(id), "metadata_list", in) // those that follow the prefix in the order of the alphabet
	if err != nil {
		return Mark{}, 0, err
	}
	all, err := parseMetadata(answer)
	if err != nil {
		return Mark{}, 0, fmt.Errorf("read the metadata of %s: %w", headerOf(id), err)
	}
	version, err := io.GetLastVersion()
	mark := Mark{
		Kubernetes: all[markKubernetes], Volume: all[markVolume], Note: all[markNote],
		Released: all[markReleased], Deleted: all[markDeleted], Trashed: all[markTrashed],
	}
	return mark, version, err
}

// metadataChange is a change of an image's metadata.
type metadataChange struct {
	set    map[string]string
	remove []string
}

// change is what makes this the image's mark.
func (m Mark) change() metadataChange {
	set := map[string]string{markKubernetes: m.Kubernetes, markVolume: m.Volume}
	if m.Note == "" {
		return metadataChange{set: set, remove: []string{markNote, markReleased, markDeleted, markTrashed}}
	}
	set[markNote] = m.Note
	return metadataChange{set: set, remove: []string{markReleased, markDeleted, markTrashed}}
}

func (m metadataChange) empty() bool { return len(m.set)+len(m.remove) == 0 }

// write changes the metadata in one message, as librbd does, which needs no lock for that.
func (m metadataChange) write(io *rados.IOContext, id string, assert func(*rados.WriteOp)) error {
	op := rados.CreateWriteOp()
	defer op.Release()
	assert(op)
	if len(m.set) > 0 {
		in := binary.LittleEndian.AppendUint32(nil, uint32(len(m.set)))
		for _, key := range slices.Sorted(maps.Keys(m.set)) {
			in = appendText(appendText(in, key), m.set[key])
		}
		op.Exec("rbd", "metadata_set", in)
	}
	for _, key := range m.remove {
		op.Exec("rbd", "metadata_remove", appendText(nil, key))
	}
	return op.Operate(io, headerOf(id), rados.OperationNoFlag)
}

// parseMetadata decodes a map: the number of its entries, then keys and values.
func parseMetadata(text []byte) (map[string]string, error) {
	in := decoder{left: text}
	out := map[string]string{}
	for n := in.uint32(); n > 0 && !in.cutOff; n-- {
		key := in.text()
		out[key] = in.text()
	}
	if err := in.err(); err != nil {
		return nil, err
	}
	return out, nil
}
