package watch

import (
	"maps"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/node/health"
)

// numbersInterval is the least time between two writes of numbers, such as dirty bytes, to the API.
// That a resync begins or ends is written at once, with the condition that says so.
const numbersInterval = 10 * time.Second

// numbers returns the fields of the status with numbers that are to be written now. status is nil if
// escached does not answer.
func (w *Watch) numbers(v *volume, status *escache.VolumeStatus, now time.Time) map[string]any {
	if status == nil {
		return nil
	}
	due := now.Sub(v.numbersWritten) >= numbersInterval
	fields := w.resync(v, status, now, due)
	maps.Copy(fields, v.dirty(status, now, due))
	return fields
}

// wroteNumbers remembers that the API has them.
func (v *volume) wroteNumbers(fields map[string]any, now time.Time) {
	if len(fields) > 0 {
		v.numbersWritten = now
	}
	if _, told := fields["lastFlushTime"]; told {
		v.flushedAt = time.Time{}
	}
}

// dirty returns the dirty bytes, and when the cache was last clean after it had been dirty.
func (v *volume) dirty(status *escache.VolumeStatus, now time.Time, due bool) map[string]any {
	if status.DirtyBytes == nil {
		return nil
	}
	dirty := *status.DirtyBytes
	if dirty == 0 && v.wasDirty {
		v.flushedAt = now
	}
	v.wasDirty = dirty > 0
	flushed := !v.flushedAt.IsZero()
	if (dirty == v.object.Status.DirtyBytes && !flushed) || !due {
		return nil
	}
	fields := map[string]any{"dirtyBytes": dirty, "summary": map[string]any{"dirty": v1alpha1.HumanBytes(dirty)}}
	if flushed {
		fields["lastFlushTime"] = metav1.NewTime(v.flushedAt)
	}
	return fields
}

// resync returns how far a resync is, or null in its place once it is over.
func (w *Watch) resync(v *volume, status *escache.VolumeStatus, now time.Time, due bool) map[string]any {
	fields, is := map[string]any{}, v.object.Status.Resync
	switch running := v.problems[health.Resyncing] != nil; {
	case !running && is != nil:
		fields["resync"] = nil
	case running && health.IsResyncing(*status) && (is == nil || due):
		next := w.resyncOf(status)
		if is != nil {
			next.Seen = is.Seen
		}
		if is == nil || *is != next {
			next.Seen = metav1.NewTime(now)
			fields["resync"] = next
		}
	}
	return fields
}

// resyncOf returns what a status says of a resync that is running. Of it only the percentage may be known.
func (w *Watch) resyncOf(status *escache.VolumeStatus) v1alpha1.VolumeResync {
	out := v1alpha1.VolumeResync{Node: status.Peers[0].Name, Percent: int32(status.SyncedPercent)}
	if status.DiskState != escache.DiskUpToDate {
		out.Node = w.Node
	}
	if r := status.Resync; r != nil {
		out.LeftBytes, out.BytesPerSecond, out.RemainingSeconds = r.LeftBytes, r.BytesPerSecond, r.RemainingSeconds
	}
	return out
}
