package filesystem

import (
	"fmt"
)

// Record describes the filesystem that the driver makes. It is kept outside the device, on the
// CacheVolume.
type Record struct {
	State RecordState `json:"state"`
	Type  string      `json:"type"`
	// UUID is chosen before mkfs runs, and passed to it.
	UUID string `json:"uuid"`
	// ImageID, Node and Epoch name the image, the host and the attachment.
	ImageID string `json:"imageID"`
	Node    string `json:"node"`
	Epoch   int64  `json:"epoch"`
}

// RecordState is how far making the filesystem has got.
type RecordState string

// States of a Record.
const (
	// Formatting: the device was proven blank, and mkfs may have begun. Nothing was ever mounted in
	// this state.
	Formatting RecordState = "formatting"
	// Formatted: mkfs has succeeded and its data is on the device.
	Formatted RecordState = "formatted"
)

// Action is what may be done with a device.
type Action int

// Actions.
const (
	// Mount what is there.
	Mount Action = iota
	// Format a blank device.
	Format
	// Reformat over what an interrupted mkfs of the driver has left.
	Reformat
)

// Content is what is on a device: the signature that libblkid finds, and what the driver reads
// itself.
type Content struct {
	Signature Signature
	Surface   Surface
}

// Decide returns the action that leads to a mounted filesystem of the wanted type, or refuses and
// says why. Without a record the driver never began to make a filesystem here: everything on the
// device came with the image, as in a clone.
func Decide(c Content, want, imageID string, record *Record) (Action, error) {
	if record != nil && record.ImageID != "" && imageID != "" && record.ImageID != imageID {
		return Mount, fmt.Errorf("%w: the record of the filesystem is for image id %s, but the image has id %s: it was replaced; "+
			"nothing was written", ErrForeign, record.ImageID, imageID)
	}
	switch {
	case c.blank():
		if record != nil && record.State == Formatted {
			return Mount, fmt.Errorf("%w: %s with UUID %s was made on it, and now it reads as zeros. Nothing was written: check the "+
				"image in Ceph and the cache first", ErrVanished, record.Type, record.UUID)
		}
		return Format, nil
	case record != nil && record.State == Formatting:
		return decideHalfWritten(c, want, record)
	case c.Signature.is(want):
		return Mount, nil
	case c.Signature.Found:
		return Mount, fmt.Errorf("%w: the device holds %s and %s is wanted; nothing was written", ErrForeign, c.Signature, want)
	default:
		return Mount, fmt.Errorf("%w: the device holds data without a known signature at byte %d; nothing was written. If you do "+
			"not need it, zero the device and try again", ErrForeign, c.Surface.FirstData)
	}
}

// decideHalfWritten decides after an interrupted mkfs. The device was blank before, so it can hold
// only what that mkfs has written, all or part of it. If somebody has written to the image by other
// means since, the signature or the UUID differs, and decideHalfWritten refuses.
func decideHalfWritten(c Content, want string, record *Record) (Action, error) {
	super := c.Surface.Superblock
	switch {
	case record.Type != want:
		return Mount, fmt.Errorf("%w: making %s was interrupted here, and now %s is wanted; nothing was written", ErrForeign,
			record.Type, want)
	case c.Signature.is(want) && super != nil && super.UUID == record.UUID && super.NeverMounted:
		return Reformat, nil
	case c.Signature.is(want) && super != nil && super.UUID == record.UUID:
		return Mount, nil // mkfs had succeeded; only the record does not say so yet
	case c.Signature.Found:
		return Mount, fmt.Errorf("%w: making %s with UUID %s was interrupted here, but the device holds %s: "+
			"something else has written to it; nothing was written", ErrForeign, record.Type, record.UUID, c.Signature)
	default:
		return Reformat, nil
	}
}

func (c Content) blank() bool {
	return !c.Signature.Found && c.Surface.Scanned && c.Surface.Blank
}
