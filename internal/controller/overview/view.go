package overview

import (
	"cmp"
	"net/url"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/records/choice"
	"github.com/escache/escache-csi/internal/records/resync"
	"github.com/escache/escache-csi/internal/records/trouble"
	"github.com/escache/escache-csi/internal/redundancy"
)

// How much is shown at once, so that a page is small however much there is.
const (
	mostVolumes  = 100
	mostHosts    = 60
	mostGroups   = 60
	mostProblems = 50
	mostOthers   = 20
)

// view is what one address shows of a board.
type view struct {
	Query                       query
	Orders                      []string
	Unknown                     string // why nothing fits the query
	Version, Identity, Escached string
	Leader, Grafana             string
	Problems                    []trouble.Line
	MoreProblems, AllProblems   int
	Totals                      totals
	Groups                      []group
	MoreGroups                  int
	Hosts                       []host
	WellHosts, MoreHosts        int
	Repairs                     []repair
	MoreRepairs                 int
	Resyncs                     []catchUp
	MoreResyncs                 int
	Flushes                     []flush
	MoreFlushes                 int
	Volumes                     []volume
	Shown                       string // which volumes
	Page, Pages                 int
	Snapshots                   []snapshot
	AllSnapshots                int
}

// totals sum up the volumes and hosts that are chosen.
type totals struct {
	Volumes, Of, Attached, OneCopy, Repairing, Hosts, Ready int
	Dirty                                                   string
}

type group struct {
	Name, Ready, Dirty string
	Cordoned           bool
}

type repair struct{ Volume, Step, Lost, Onto, Since, Progress string }

type catchUp struct {
	resync.Progress

	Seen string // "" if that is now
}

type flush struct {
	Name, Mode, Phase, Left, Rate, Remaining string
	Percent                                  int32
}

type snapshot struct{ Name, Volume, Taken, Size string }

// view chooses what an address asks for. It does not change the board.
func (b *board) view(c Config, q query) view {
	v := view{
		Query: q, Orders: choice.Orders(), Leader: b.leader, Identity: c.Identity, Version: c.Version, Grafana: c.Grafana,
		AllSnapshots: len(b.snapshots),
	}
	if err := q.Unknown(b.Objects); err != nil {
		v.Unknown = err.Error()
	}
	chosen := q.Choose(b.Objects, claimOf)
	volumes := slices.Clone(chosen.Volumes)
	if q.Text != "" {
		volumes = slices.DeleteFunc(volumes, func(one v1alpha1.CacheVolume) bool { return !q.has(&one) })
	}
	v.problems(chosen.Troubles)
	v.groups(chosen, b)
	v.hosts(chosen, b)
	v.totals(volumes, b)
	v.repairs(volumes)
	v.resyncs(volumes, b.made)
	v.flushes(chosen.Flushes)
	v.snapshots(volumes, b)
	v.volumes(volumes, b)
	return v
}

func (v *view) problems(all []trouble.Trouble) {
	v.Problems, v.AllProblems = trouble.Lines(all), len(all)
	v.Problems, v.MoreProblems = limited(v.Problems, mostProblems)
}

// limited returns the first rows, and how many more there are.
func limited[T any](rows []T, most int) ([]T, int) {
	if len(rows) <= most {
		return rows, 0
	}
	return rows[:most], len(rows) - most
}

// groups shows groups with a problem first.
func (v *view) groups(chosen choice.Objects, b *board) {
	groups := slices.Clone(chosen.Groups)
	slices.SortStableFunc(groups, func(x, y v1alpha1.NodeGroup) int {
		return worse(b.Faults.Of(trouble.Group, x.Name), b.Faults.Of(trouble.Group, y.Name))
	})
	groups, v.MoreGroups = limited(groups, mostGroups)
	for i := range groups {
		g := &groups[i]
		v.Groups = append(v.Groups, group{
			Name: g.Name, Ready: g.Status.Summary.Ready, Dirty: g.Status.Summary.Dirty, Cordoned: g.Spec.Cordoned,
		})
	}
}

// worse orders the graver fault first, and no fault last.
func worse(a, b trouble.Fault) int {
	order := func(f trouble.Fault) int {
		if len(f.Reasons) == 0 {
			return int(^uint(0) >> 1)
		}
		return f.Gravity
	}
	return cmp.Compare(order(a), order(b))
}

func (v *view) totals(volumes []v1alpha1.CacheVolume, b *board) {
	var dirty int64
	v.Totals.Volumes, v.Totals.Of = len(volumes), len(b.Volumes)
	for i := range volumes {
		one := &volumes[i]
		dirty += one.Status.DirtyBytes
		if one.Status.AttachedNode != "" {
			v.Totals.Attached++
		}
		if !redundancy.Of(one, b.groupOf[one.Spec.Group], redundancy.Evidence{}).Whole() {
			v.Totals.OneCopy++
		}
		if meta.IsStatusConditionTrue(one.Status.Conditions, v1alpha1.ConditionRepairing) {
			v.Totals.Repairing++
		}
	}
	v.Totals.Dirty = v1alpha1.HumanBytes(dirty)
}

// repairs shows the volumes that get a second copy, those first that are being copied.
func (v *view) repairs(volumes []v1alpha1.CacheVolume) {
	for i := range volumes {
		c := meta.FindStatusCondition(volumes[i].Status.Conditions, v1alpha1.ConditionRepairing)
		if c == nil || c.Status != metav1.ConditionTrue {
			continue
		}
		one := repair{Volume: volumes[i].Name, Step: c.Reason, Progress: c.Message}
		if r := volumes[i].Status.Repair; r != nil {
			one.Lost, one.Onto, one.Since = r.Lost, r.Substitute, moment(r.Since.Time)
		}
		v.Repairs = append(v.Repairs, one)
	}
	slices.SortStableFunc(v.Repairs, func(a, b repair) int {
		return cmp.Compare(choice.RepairStep(b.Step), choice.RepairStep(a.Step))
	})
	v.Repairs, v.MoreRepairs = limited(v.Repairs, mostOthers)
}

// resyncs shows the copies that become current now, after an interruption or in a repair.
func (v *view) resyncs(volumes []v1alpha1.CacheVolume, now time.Time) {
	all, more := limited(resync.All(volumes), mostOthers)
	for _, r := range all {
		one := catchUp{Progress: r}
		if r.Old(now) {
			one.Seen = moment(r.Seen)
		}
		v.Resyncs = append(v.Resyncs, one)
	}
	v.MoreResyncs = more
}

// flushes shows those first that are not finished.
func (v *view) flushes(all []v1alpha1.CacheFlush) {
	finished := func(f v1alpha1.CacheFlush) int {
		if f.Status.Phase == v1alpha1.FlushComplete {
			return 1
		}
		return 0
	}
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b v1alpha1.CacheFlush) int { return cmp.Compare(finished(a), finished(b)) })
	all, v.MoreFlushes = limited(all, mostOthers)
	for i := range all {
		f := &all[i]
		v.Flushes = append(v.Flushes, flush{
			Name: f.Name, Mode: string(f.Spec.Mode), Phase: cmp.Or(string(f.Status.Phase), string(v1alpha1.FlushPending)),
			Percent: f.Status.Percent, Left: f.Status.Summary.Left, Rate: f.Status.Summary.Rate, Remaining: f.Status.Summary.Remaining,
		})
	}
}

// snapshots shows the newest ones of the chosen volumes, those first that are not taken yet.
func (v *view) snapshots(volumes []v1alpha1.CacheVolume, b *board) {
	chosen := map[string]bool{}
	for i := range volumes {
		chosen[volumes[i].Name] = true
	}
	var all []*v1alpha1.CacheSnapshot
	for i := range b.snapshots {
		if v.Query.everything() || chosen[b.snapshots[i].Spec.Volume] {
			all = append(all, &b.snapshots[i])
		}
	}
	v.AllSnapshots = len(all)
	slices.SortStableFunc(all, func(a, b *v1alpha1.CacheSnapshot) int {
		switch {
		case a.Status.Taken == nil || b.Status.Taken == nil:
			return cmp.Compare(b2i(a.Status.Taken != nil), b2i(b.Status.Taken != nil))
		default:
			return b.Status.Taken.Compare(a.Status.Taken.Time)
		}
	})
	all, _ = limited(all, mostOthers)
	for _, s := range all {
		one := snapshot{Name: s.Name, Volume: s.Spec.Volume, Size: s.Status.Summary.Size, Taken: "not yet"}
		if s.Status.Taken != nil {
			one.Taken = moment(s.Status.Taken.Time)
		}
		v.Snapshots = append(v.Snapshots, one)
	}
}

func b2i(is bool) int {
	if is {
		return 1
	}
	return 0
}

// moment is a time for people. It does not say how long ago that is, which would be news every second.
func moment(t time.Time) string { return t.UTC().Format(time.DateTime) + " UTC" }

// graphs returns the address of a dashboard that shows one volume; "" if there is no dashboard.
func graphs(dashboard, volume string) string {
	if dashboard == "" {
		return ""
	}
	u, err := url.Parse(dashboard)
	if err != nil {
		return ""
	}
	values := u.Query()
	values.Set("var-volume", volume)
	u.RawQuery = values.Encode()
	return u.String()
}

// share returns a percentage. It is 0 only if the part is 0, so that a small part is visible.
func share(part, whole int64) int {
	if whole <= 0 || part <= 0 {
		return 0
	}
	return int(min(max(percent*float64(part)/float64(whole), 1), percent))
}

const percent = 100

func count(n int, what string) string { return trouble.Count(n, what) }

func joined(names []string) string { return strings.Join(names, ",") }
