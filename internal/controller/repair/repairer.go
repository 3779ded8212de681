package repair

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/pace"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/internal/operation"
)

// Volumes changes replicas; *volumes.Locked.
type Volumes interface {
	Substitutes(v *v1alpha1.CacheVolume, lost string, place volumes.Place) ([]string, error)
	Substitute(ctx context.Context, id string, epoch int64, lost, substitute string, place volumes.Place) error
	Copy(ctx context.Context, id string, epoch int64) (volumes.Copying, error)
	WriteBackDetached(ctx context.Context, id string, longest time.Duration) error
}

// Drainer makes volumes write through; *drain.Drainer.
type Drainer interface {
	Turn(ctx context.Context, volume, owner string) (*v1alpha1.CacheVolume, error)
	Settle(ctx context.Context, volume string) (bool, escache.VolumeStatus, error)
	Restore(ctx context.Context, volume, owner string) error
}

// Hosts asks an escached whether it answers, and what it has of a volume.
type Hosts interface {
	Node(ctx context.Context, node string) (*escache.Node, error)
	Status(ctx context.Context, node string, volume escache.VolumeRef) (escache.VolumeStatus, error)
}

// Config holds what a Repairer needs.
type Config struct {
	Policy

	Client  client.Client // reads from a cache
	Live    client.Reader
	Volumes Volumes
	Drainer Drainer
	Hosts   Hosts
	Locks   *operation.Locks
	Events  events.EventRecorder
	Log     *slog.Logger
	Now     func() time.Time

	// Every is the time between two polls. Longest bounds one step of a volume, and Ask the
	// question to a host that seems gone.
	Every   time.Duration
	Longest time.Duration
	Ask     time.Duration
}

// workers bounds the volumes that are worked on at once. Each step is a few calls.
const workers = 8

// Repairer repairs volumes while this process leads.
type Repairer struct {
	Config

	mu     sync.Mutex
	said   map[string]time.Time // when a volume's progress was last written
	paused map[string]string    // by group, why it is paused
	// unlinked is since when a copy that is not current was seen without a link, by volume.
	unlinked map[string]apartness
	// unable are the hosts that cannot create a volume's copy, by volume.
	unable map[string]inability
	// flushed is when a volume without a pod was last to be written back.
	flushed map[string]time.Time
	// paces measure how fast volumes are drained, by volume.
	paces map[string]*pace.Meter
}

// New returns a Repairer.
func New(config Config) *Repairer {
	return &Repairer{
		Config: config, said: map[string]time.Time{}, paused: map[string]string{}, unlinked: map[string]apartness{},
		unable: map[string]inability{}, flushed: map[string]time.Time{}, paces: map[string]*pace.Meter{},
	}
}

// NeedLeaderElection returns true: only the leader repairs.
func (*Repairer) NeedLeaderElection() bool { return true }

// Start polls until the context ends.
func (r *Repairer) Start(ctx context.Context) error {
	for {
		if err := r.Poll(ctx); err != nil && ctx.Err() == nil {
			r.Log.WarnContext(ctx, "search for volumes to repair failed; trying again", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(r.Every):
		}
	}
}

// Poll takes every volume that needs it one step further.
func (r *Repairer) Poll(ctx context.Context) error {
	groups := &v1alpha1.NodeGroupList{}
	if err := r.Client.List(ctx, groups); err != nil {
		return fmt.Errorf("list groups: %w", err)
	}
	volumes := &v1alpha1.CacheVolumeList{}
	if err := r.Client.List(ctx, volumes, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list volumes: %w", err)
	}
	drains := &v1alpha1.CacheFlushList{}
	if err := r.Client.List(ctx, drains); err != nil {
		return fmt.Errorf("list flushes: %w", err)
	}
	sights := r.look(ctx, groups.Items)
	r.tellPauses(groups.Items, sights)
	found := r.examine(ctx, volumes.Items, sights, drains.Items)
	works := r.judge(volumes.Items, found)
	var group errgroup.Group
	group.SetLimit(workers)
	for _, w := range works {
		group.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, r.Longest)
			defer cancel()
			r.work(ctx, w)
			return nil
		})
	}
	_ = group.Wait() // work reports its failures itself
	r.reportGroups(ctx, groups.Items, works, sights)
	return nil
}

// work is a volume with what it needs next.
type work struct {
	volume *v1alpha1.CacheVolume // as the cache has it; not to be changed
	seen   Seen
	step   Step
	// hold says why it may not be copied yet. It is empty if it may.
	hold string
	// to is the node that gets the copy. nowhere says why there is none.
	to      string
	nowhere error
}

// judge finds out what each volume needs, and which of those that need a copy may have it now.
func (r *Repairer) judge(volumes []v1alpha1.CacheVolume, found map[string]Seen) []*work {
	var works []*work
	var candidates []Candidate
	for i := range volumes {
		v := &volumes[i]
		w := &work{volume: v, seen: found[v.Name]}
		w.step = Judge(v, w.seen, r.Policy, r.Now())
		if w.step.Action != Nothing || repairing(v) || w.seen.Asked || w.explains() || w.redundant(v) != nil {
			works = append(works, w)
		}
		if w.step.Action != Substitute && w.step.Action != Copy {
			continue
		}
		if c, err := r.candidate(v, w.step); err == nil {
			candidates = append(candidates, c)
		} else {
			w.nowhere = err
		}
	}
	slices.SortFunc(candidates, func(a, b Candidate) int {
		return cmp.Or(a.Failed.Compare(b.Failed), a.Since.Compare(b.Since), strings.Compare(a.Name, b.Name))
	})
	admitted, waiting := Admit(candidates, r.Parallel)
	maps.Copy(waiting, r.admitFlushes(works))
	for _, w := range works {
		w.to, w.hold = admitted[w.volume.Name], waiting[w.volume.Name]
	}
	return works
}

// admitFlushes says which volumes without a pod are not written back now, and why. Those that were tried
// longest ago come first.
func (r *Repairer) admitFlushes(works []*work) (waiting map[string]string) {
	var begun, others []string
	for _, w := range works {
		switch {
		case w.step.Action != Flush:
		case w.step.Holder != "":
			begun = append(begun, w.volume.Name)
		default:
			others = append(others, w.volume.Name)
		}
	}
	r.mu.Lock()
	slices.SortFunc(others, func(a, b string) int {
		return cmp.Or(r.flushed[a].Compare(r.flushed[b]), strings.Compare(a, b))
	})
	r.mu.Unlock()
	return AdmitFlushes(begun, others, r.Parallel)
}

// candidate says which nodes can get a volume's copy. One that is on record stays the one, unless it
// cannot get the copy any more before that has begun. A host that has failed for long is tried after the others,
// and after the other volumes. So is one that refuses, or a holder that does, but no other host takes its place.
func (r *Repairer) candidate(v *v1alpha1.CacheVolume, step Step) (Candidate, error) {
	onRecord := v.Status.Repair.Substitute
	c := Candidate{Name: v.Name, Holder: step.Holder, Since: v.Status.Repair.Since.Time, Able: []string{onRecord}, Copying: true}
	is, cannot := r.cannot(v.Name, onRecord, step.Holder)
	if cannot {
		c.Copying, c.Failed = false, is.tried
	}
	if step.Action == Copy {
		return c, nil
	}
	able, err := r.Volumes.Substitutes(v, step.Lost, step.Place)
	others := slices.DeleteFunc(slices.Clone(able), func(node string) bool { return node == onRecord })
	if len(others) == len(able) || cannot && is.leave(onRecord) && len(others) > 0 {
		c.Able, c.Copying, c.Failed = others, false, time.Time{}
	}
	return c, err
}
