package cache

// Disk is the disk of one volume's cache: the DRBD device, or the logical volume below it.
type Disk struct {
	// Name is the volume's name on this host. A command that is stuck in the kernel stops later
	// commands for the same name, not those of other volumes.
	Name string
	// Path is where the disk is now.
	Path string
}

// Spec describes a cache to assemble.
type Spec struct {
	Disk Disk
	// Origin is the path of the origin, or its number as State.Origin has it.
	Origin string
	// Bytes is the size of the origin. The device may be smaller by less than one block.
	Bytes   int64
	Options Options
}

// Mode says when a write is acknowledged.
type Mode string

const (
	// Writeback acknowledges a write when it is on the cache's disk. It is the default.
	Writeback Mode = "writeback"
	// Writethrough acknowledges a write when it is in the origin, so a write makes nothing dirty.
	Writethrough Mode = "writethrough"
)

// Options tunes a cache. A zero field means the engine's default. Files of the engine log have these names.
type Options struct {
	Mode Mode `json:"Mode"`
	// HighWatermark and LowWatermark are percent of the cache that is dirty: write-back starts
	// above the one and stops below the other.
	HighWatermark int `json:"HighWatermark"`
	LowWatermark  int `json:"LowWatermark"`
	// MaxAgeSeconds bounds how long a block stays dirty. Zero means no bound.
	MaxAgeSeconds int `json:"MaxAgeSeconds"`
	// StrictOrder keeps the origin a state that the device had at a flush, or, while what was written up to
	// the next one is on its way, what a disk may be that loses power between two flushes. Otherwise write-back
	// may leave out what was overwritten since.
	StrictOrder bool `json:"StrictOrder,omitempty"`
}

// State is one assembled cache at one moment.
type State struct {
	// Path is the device for users.
	Path string
	// Origin is the origin's device number, MAJOR:MINOR.
	Origin string
	// Bytes is the size of the device.
	Bytes int64
	// Options are those in effect, whatever was asked for; Mode is never empty. Without Known they are the last that are known.
	Options Options
	// Open is how many users have the device open.
	Open int

	// Known is false while the engine cannot say how much is dirty. Dirty, Free and WritingBack are
	// zero then and mean nothing.
	Known bool
	// All three are bytes. Dirty is not in the origin yet. Free can be written before writes wait
	// for the origin. WritingBack is being written to the origin.
	Dirty       int64
	Free        int64
	WritingBack int64
	// Failed is true after the origin refused a write. What is dirty stays in the cache. I/O to the
	// device may fail until Retry or Resume, and a WriteBack that then succeeds.
	Failed bool
	// Held is true during a hold, and after a change that was interrupted. I/O may stand still.
	// Resume ends both.
	Held bool
	// GoesOn is true while Held is, if I/O goes on during a hold: the origin lacks what was written since it began.
	GoesOn bool
	// Unserved says why nothing serves the device now, in words; empty if something does. I/O waits,
	// without an error, until Revive or Resume. Known is false meanwhile.
	Unserved string

	Counters Counters
	// Measures is nil if the engine does not measure, or does not answer now.
	Measures *Measures
}

// Clean reports whether the origin has everything, as far as the engine can know now.
func (s State) Clean() bool { return s.Known && !s.Failed && s.Dirty == 0 }

// Counters count blocks of 4 KiB since the cache was assembled.
type Counters struct {
	Reads     int64
	ReadHits  int64
	Writes    int64
	WriteHits int64
}
