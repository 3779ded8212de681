package status

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/records/trouble"
	"github.com/escache/escache-csi/internal/redundancy"
)

func (v *View) volumeRows(row func(...string), wide bool) {
	head := []string{"VOLUME", "CLAIM", "HOST", "TRUTH", "DIRTY", "REDUNDANT", "HEALTHY"}
	if wide {
		head = append(head, "GROUP", "SIZE", "CACHE", "REPLICAS", "OUTDATED", "EPOCH", "ENGINE", "IMAGE", "AGE")
	}
	if wide || v.filter.Problems {
		head = append(head, "PROBLEM")
	}
	rows := v.Volumes
	left, most := "", len(v.Volumes)
	switch {
	case !v.short || len(v.Volumes) <= maxVolumes:
	case v.sorted:
		most = maxVolumes
	default:
		rows = v.gravest()
		left, most = fmt.Sprintf("%d volumes without a problem are left out", len(v.Volumes)-len(rows)), maxVolumes
	}
	cells := make([][]string, 0, min(most, len(rows)))
	for i := range rows[:min(most, len(rows))] {
		cells = append(cells, v.volumeRow(&rows[i], wide))
	}
	v.limited(row, head, cells, len(rows)-len(cells), left)
}

// gravest returns the volumes with a problem, those with the most serious first.
func (v *View) gravest() []v1alpha1.CacheVolume {
	well := func(of v1alpha1.CacheVolume) bool { return !v.faults.Wrong(trouble.Volume, of.Name) }
	rows := slices.DeleteFunc(slices.Clone(v.Volumes), well)
	slices.SortStableFunc(rows, func(a, b v1alpha1.CacheVolume) int {
		return cmp.Compare(v.faults.Of(trouble.Volume, a.Name).Gravity, v.faults.Of(trouble.Volume, b.Name).Gravity)
	})
	return rows
}

func (v *View) volumeRow(of *v1alpha1.CacheVolume, wide bool) []string {
	is := &of.Status
	cells := []string{
		of.Name, v.Uses.ClaimOf(of), cmp.Or(is.AttachedNode, "-"), cmp.Or(string(is.Authority), string(v1alpha1.AuthorityCeph)),
		v1alpha1.HumanBytes(is.DirtyBytes), redundant(of, redundancy.Of(of, v.Group(of), redundancy.Evidence{}), v.Now),
		conditionOf(of, v1alpha1.ConditionHealthy),
	}
	if wide {
		cells = append(cells, of.Spec.Group, v1alpha1.HumanBytes(of.Spec.SizeBytes), of.Spec.CacheText(),
			strings.Join(of.Spec.Replicas, ","), cmp.Or(strings.Join(is.Outdated, ","), "-"), fmt.Sprint(is.Epoch),
			string(of.Spec.Engine()), of.Spec.Pool+"/"+of.Spec.Image, age(of.CreationTimestamp, v.Now))
	}
	if wide || v.filter.Problems {
		cells = append(cells, cmp.Or(strings.Join(v.faults.Of(trouble.Volume, of.Name).Reasons, ","), "-"))
	}
	return cells
}

func age(t metav1.Time, now time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return duration.HumanDuration(now.Sub(t.Time))
}

// redundant is the condition and, if acknowledged writes are on one host only, why and for how long.
func redundant(v *v1alpha1.CacheVolume, f redundancy.Finding, now time.Time) string {
	switch {
	case f.Whole() || f.InCeph:
		return conditionOf(v, v1alpha1.ConditionRedundant)
	case f.Since.IsZero():
		return string(metav1.ConditionFalse) + " (" + f.Reason + ")"
	default:
		return fmt.Sprintf("%s (%s, %s)", metav1.ConditionFalse, f.Reason, now.Sub(f.Since).Truncate(time.Second))
	}
}

func conditionOf(v *v1alpha1.CacheVolume, kind string) string {
	if c := meta.FindStatusCondition(v.Status.Conditions, kind); c != nil && v.Status.AttachedNode != "" {
		return string(c.Status)
	}
	return "-"
}
