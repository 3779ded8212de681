package orphans

import (
	"fmt"
	"strings"
)

// Mark is what an image's metadata says.
type Mark struct {
	// Kubernetes is the identity of the Kubernetes cluster whose image it is; "" if it has no mark.
	Kubernetes string
	// Released: its volume gave it up, and it is nobody's.
	Released bool
	Note     Note
}

// Note is what an image's metadata says of its volume, as of the last attachment. The zero Note says nothing:
// there is none, or an older version has written it.
type Note struct {
	Volume string
	Claim  string
	// Epoch is the volume's last attachment; 0 if it was never attached.
	Epoch int64
	// Hosts are the two that have the cache.
	Hosts []string
	// InCeph: no cache has had newer data than Ceph since the note.
	InCeph bool
	// Adopted: the image was there before the volume. Copy: it was made of a snapshot or of another volume.
	Adopted, Copy bool
	// Deleted is when the volume was deleted, if the image stays for its snapshots.
	Deleted string
	// ReadOnly: it is the image that one node has of a read-only volume.
	ReadOnly bool
	// Unreadable says why nothing else is known.
	Unreadable string
}

// losses says what may be lost with the image; "" if nothing can be.
func (n Note) losses() string {
	switch {
	case n.Deleted != "":
		return "" // with all that its caches had
	case n.Unreadable != "":
		return "it is not known whether it was used: " + n.Unreadable
	case n.Volume == "":
		return "it is not known whether it was used: its metadata has no record of that"
	case n.ReadOnly:
		return "" // the data is in the snapshot
	case n.Epoch > 0 && n.InCeph:
		return fmt.Sprintf("used until epoch %d, and all its data was in Ceph then", n.Epoch)
	case n.Epoch > 0:
		return fmt.Sprintf("used until epoch %d, and the caches on %s may have data that Ceph does not have", n.Epoch,
			strings.Join(n.Hosts, " and "))
	case n.Adopted:
		return "never attached, but it was adopted with the data that it had"
	case n.Copy:
		return "never attached, but it is a copy of a snapshot or of another volume"
	}
	return ""
}

// Lost is an image without a record, and what it says of its volume.
type Lost struct {
	Image

	Note Note
}

// MayLose reports whether data may be lost with the image.
func (l Lost) MayLose() bool { return l.Note.losses() != "" }

// State says what may be lost with the image, or why nothing can be.
func (l Lost) State() string {
	if losses := l.Note.losses(); losses != "" {
		return losses
	}
	switch {
	case l.Note.Deleted != "":
		return "its volume was deleted at " + l.Note.Deleted
	case l.Note.ReadOnly:
		return "a node's image of a read-only volume, whose data is in the snapshot"
	}
	return "never attached"
}
