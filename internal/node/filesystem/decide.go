package filesystem

import (
	"fmt"
)

// Record is what the driver keeps of the filesystem it makes, outside the device: on the CacheVolume.
type Record struct {
	State RecordState `json:"state"`
	Type  string      `json:"type"`
	// UUID was chosen before mkfs began, and mkfs was told to use it.
	UUID string `json:"uuid"`
	// ImageID, Node and Epoch say for which image, where and in which attachment.
	ImageID string `json:"imageID"`
	Node    string `json:"node"`
	Epoch   int64  `json:"epoch"`
}

// RecordState is how far making the filesystem has come.
type RecordState string

// States of a Record.
const (
	// Formatting: the device was proven blank, and mkfs may have begun. Nothing was ever mounted in this state.
	Formatting RecordState = "formatting"
	// Formatted: mkfs ended and its data is on the device.
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
	// Reformat over what an interrupted mkfs of our own has left.
	Reformat
)

// Content is what is on a device: libblkid's opinion and our own reading.
type Content struct {
	Signature Signature
	Surface   Surface
}

// Decide says what may be done to get a filesystem of the wanted type mounted, or refuses with a sentence. A nil record means
// that the driver never began to make a filesystem here: whatever is there came with the image, for example from a clone.
func Decide(c Content, want, imageID string, record *Record) (Action, error) {
	if record != nil && record.ImageID != "" && imageID != "" && record.ImageID != imageID {
		return Mount, fmt.Errorf("%w: the record of the filesystem is of image id %s, the image has %s: it was replaced; "+
			"nothing was written", ErrForeign, record.ImageID, imageID)
	}
	switch {
	case c.blank():
		if record != nil && record.State == Formatted {
			return Mount, fmt.Errorf("%w: %s with UUID %s was made on it, and it reads as zeros now. Nothing was written: look at the "+
				"image in Ceph and at the cache before anything else", ErrVanished, record.Type, record.UUID)
		}
		return Format, nil
	case record != nil && record.State == Formatting:
		return decideHalfWritten(c, want, record)
	case c.Signature.is(want):
		return Mount, nil
	case c.Signature.Found:
		return Mount, fmt.Errorf("%w: the device holds %s and %s is wanted; nothing was written", ErrForeign, c.Signature, want)
	default:
		return Mount, fmt.Errorf("%w: the device holds data without a known signature at byte %d; nothing was written. If it is "+
			"worthless, zero it and try again", ErrForeign, c.Surface.FirstData)
	}
}

// decideHalfWritten is asked when the device was blank, ours alone, and mkfs had begun. What is there can be that mkfs's work,
// whole or in part, and nothing else, unless somebody wrote to the image by hand meanwhile: that shows as another signature or
// another UUID, and is refused.
func decideHalfWritten(c Content, want string, record *Record) (Action, error) {
	super := c.Surface.Superblock
	switch {
	case record.Type != want:
		return Mount, fmt.Errorf("%w: making %s was interrupted here, and now %s is wanted; nothing was written", ErrForeign,
			record.Type, want)
	case c.Signature.is(want) && super != nil && super.UUID == record.UUID && super.NeverMounted:
		return Reformat, nil
	case c.Signature.is(want) && super != nil && super.UUID == record.UUID:
		return Mount, nil // mkfs ended; only the note of it is missing
	case c.Signature.Found:
		return Mount, fmt.Errorf("%w: making %s with UUID %s was interrupted here, but the device holds %s: somebody else wrote to it; "+
			"nothing was written", ErrForeign, record.Type, record.UUID, c.Signature)
	default:
		return Reformat, nil
	}
}

func (c Content) blank() bool {
	return !c.Signature.Found && c.Surface.Scanned && c.Surface.Blank
}
