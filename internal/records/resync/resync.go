// Package resync says how far resyncs are, for people. It is pure.
package resync

import (
	"fmt"
	"time"

	"github.com/escache/escache-csi/api/v1alpha1"
)

// Progress is that of a resync that is running, in words; "-" stands for what is not known.
type Progress struct {
	// Onto is the node whose copy becomes current.
	Volume, Onto string
	Percent      int32
	// Left is what is still to be copied, Rate how fast that goes now, Remaining how long it takes at this rate.
	Left, Rate, Remaining string
	// Seen is when that was so.
	Seen time.Time
}

// old is the age from which on figures are told with their age. csi-node writes them every 10 s as long as
// they change.
const old = time.Minute

// Old reports whether the figures may not be those of now.
func (r Progress) Old(now time.Time) bool { return now.Sub(r.Seen) >= old }

// String is the progress as a part of a sentence, without the names.
func (r Progress) String() string {
	text := fmt.Sprintf("%d%%", r.Percent)
	if r.Left != unknown {
		text += fmt.Sprintf(", %s left at %s", r.Left, r.Rate)
	}
	if r.Remaining != unknown {
		text += ", " + r.Remaining + " remaining"
	}
	return text
}

const unknown = "-"

// Of returns how far the resync of a volume is. running is false if none is, as far as the record
// says: that of a volume without a host is left from an earlier attachment.
func Of(v *v1alpha1.CacheVolume) (r Progress, running bool) {
	is := v.Status.Resync
	if is == nil || v.Status.AttachedNode == "" {
		return Progress{}, false
	}
	r = Progress{
		Volume: v.Name, Onto: is.Node, Percent: is.Percent, Left: unknown, Rate: unknown, Remaining: unknown, Seen: is.Seen.Time,
	}
	if is.LeftBytes > 0 {
		r.Left, r.Rate = v1alpha1.HumanBytes(is.LeftBytes), v1alpha1.HumanBytes(is.BytesPerSecond)+"/s"
	}
	if is.BytesPerSecond > 0 {
		r.Remaining = (time.Duration(is.RemainingSeconds) * time.Second).String()
	}
	return r, true
}

// All returns those that are running, in the order of the volumes.
func All(volumes []v1alpha1.CacheVolume) []Progress {
	var all []Progress
	for i := range volumes {
		if r, running := Of(&volumes[i]); running {
			all = append(all, r)
		}
	}
	return all
}
