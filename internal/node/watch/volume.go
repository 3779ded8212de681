package watch

import (
	"cmp"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/node/blockdev"
	"github.com/escache/escache-csi/internal/node/health"
)

// volume is the watch's memory of a connected volume. It can be lost at any time: the CacheVolume
// has all that was reported.
type volume struct {
	ref   escache.VolumeRef
	since time.Time
	// object is the CacheVolume as last read or written; nil until it was found. Only the watch's
	// goroutine uses it.
	object      *v1alpha1.CacheVolume
	lookupAfter time.Time
	// The watch's lock guards these three: newer is an object that another part of this process
	// wrote, name and status are for metrics.
	newer  *v1alpha1.CacheVolume
	name   string
	status escache.VolumeStatus

	problems map[health.Reason]*problem
	// candidates are findings of a newly connected volume that one poll has seen.
	candidates []health.Reason
	// emitted has the times of recent Events, by reason.
	emitted map[health.Reason][]time.Time

	progress   *blockdev.Progress
	progressAt time.Time

	wasDirty  bool
	flushedAt time.Time
	// numbersWritten is when numbers were last written to the API.
	numbersWritten time.Time
	// recordAfter is when to read the record again while I/O is frozen, or without a cache.
	recordAfter time.Time
	// outdatedAfter is when to read it again because of the list of outdated nodes; zero if both copies are current and it
	// was read since they are.
	outdatedAfter time.Time
}

// problem is a finding that was reported and is not over.
type problem struct {
	finding health.Finding
	since   time.Time
	// missed is how many polls in a row did not find it.
	missed     int
	suppressed bool
}

func newVolume(ref escache.VolumeRef, now time.Time) *volume {
	return &volume{ref: ref, since: now, problems: map[health.Reason]*problem{}, emitted: map[health.Reason][]time.Time{}}
}

// adopt takes over the problems that an earlier csi-node reported, so that they are not reported
// again.
func (v *volume) adopt(object *v1alpha1.CacheVolume) {
	v.object = object
	for _, c := range object.Status.Conditions {
		if c.Status != metav1.ConditionFalse || !slices.Contains(watched(), c.Type) {
			continue
		}
		v.problems[health.Reason(c.Reason)] = &problem{
			finding: health.Finding{Reason: health.Reason(c.Reason), Condition: c.Type, Message: c.Message},
			since:   c.LastTransitionTime.Time,
		}
	}
}

// watched are the conditions that the watch writes.
func watched() []string {
	return []string{v1alpha1.ConditionRedundant, v1alpha1.ConditionSynced, v1alpha1.ConditionHealthy}
}

// open returns the findings of the open problems that make these conditions false.
func (v *volume) open(conditions ...string) []health.Finding {
	var all []health.Finding
	for _, p := range v.problems {
		if slices.Contains(conditions, p.finding.Condition) {
			all = append(all, p.finding)
		}
	}
	return all
}

// confirmed returns the findings that the poll before had too, or that were reported already. A
// volume that was just connected may need a moment to find its peer.
func (v *volume) confirmed(findings []health.Finding) []health.Finding {
	var passed []health.Finding
	var now []health.Reason
	for _, f := range findings {
		now = append(now, f.Reason)
		if slices.Contains(v.candidates, f.Reason) || v.problems[f.Reason] != nil {
			passed = append(passed, f)
		}
	}
	v.candidates = now
	return passed
}

// misses is how many polls in a row must miss a problem before it is over, so that one that
// flickers is reported once.
const misses = 2

// change compares the findings with the open problems, and returns those that have begun and those
// that are over.
func (v *volume) change(findings []health.Finding, now time.Time) (begun, over []*problem) {
	for _, f := range findings {
		if p, ok := v.problems[f.Reason]; ok {
			p.finding, p.missed = f, 0
			continue
		}
		p := &problem{finding: f, since: now}
		v.problems[f.Reason] = p
		begun = append(begun, p)
	}
	for reason, p := range v.problems {
		if slices.ContainsFunc(findings, func(f health.Finding) bool { return f.Reason == reason }) {
			continue
		}
		if p.missed++; p.missed >= misses {
			delete(v.problems, reason)
			over = append(over, p)
		}
	}
	slices.SortFunc(over, func(a, b *problem) int {
		return cmp.Or(a.since.Compare(b.since), cmp.Compare(a.finding.Reason, b.finding.Reason))
	})
	return begun, over
}

const (
	eventLimit  = 3
	eventPeriod = 10 * time.Minute
)

// mayEmit limits how often one reason becomes an Event. Conditions and metrics have no such limit.
func (v *volume) mayEmit(reason health.Reason, now time.Time) bool {
	recent := slices.DeleteFunc(v.emitted[reason], func(t time.Time) bool { return now.Sub(t) > eventPeriod })
	v.emitted[reason] = recent
	if len(recent) >= eventLimit {
		return false
	}
	v.emitted[reason] = append(recent, now)
	return true
}
