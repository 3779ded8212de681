package cacheflush

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/cachevolume"
	"github.com/escache/escache-csi/internal/controller/drain"
	"github.com/escache/escache-csi/internal/controller/pace"
	"github.com/escache/escache-csi/internal/controller/volumes"
)

// each calls do for 0 to n-1, with at most parallel calls at once.
func each(n, parallel int, do func(i int)) {
	var group errgroup.Group
	group.SetLimit(max(parallel, 1))
	for i := range n {
		group.Go(func() error {
			do(i)
			return nil
		})
	}
	_ = group.Wait() // do cannot fail
}

// pass works on the volumes of all nodes until its time is up or all are done.
func (r *Reconciler) pass(ctx context.Context, f *v1alpha1.CacheFlush) {
	end := time.Now().Add(r.Pass)
	nodes := map[string][]int{}
	for i, v := range f.Status.Volumes {
		if !ended(v.Phase) {
			nodes[v.Node] = append(nodes[v.Node], i)
		}
	}
	m := r.remember(f.UID)
	var wait sync.WaitGroup
	for node, volumes := range nodes {
		m.order(f.Status.Volumes, volumes)
		wait.Go(func() { r.node(ctx, f, m, node, volumes, end) })
	}
	wait.Wait()
	m.measure(&f.Status, r.Now())
}

// node gives the node's volumes their turns, as many at once as the CacheFlush allows.
func (r *Reconciler) node(ctx context.Context, f *v1alpha1.CacheFlush, m *memory, node string, volumes []int, end time.Time) {
	mu := &m.status
	next := func() (int, bool) {
		mu.Lock()
		defer mu.Unlock()
		if len(volumes) == 0 || ctx.Err() != nil || !time.Now().Before(end) {
			return 0, false
		}
		i := volumes[0]
		if f.Status.Volumes[i].Phase == v1alpha1.FlushPending && !r.withinRate(f, node) {
			return 0, false
		}
		volumes = volumes[1:]
		return i, true
	}
	workers := int(max(f.Spec.Parallel, 1))
	if f.Spec.BytesPerSecond > 0 {
		workers = 1 // what two at once would write nobody can bound
	}
	var wait sync.WaitGroup
	for range workers {
		wait.Go(func() {
			for i, ok := next(); ok; i, ok = next() {
				r.slots <- struct{}{}
				mu.Lock()
				v := f.Status.Volumes[i]
				mu.Unlock()
				left := v.LeftBytes
				// At least a second, so that the call is worth its cost for a volume late in the
				// pass.
				v = r.step(ctx, f, v, max(time.Until(end).Truncate(time.Second), time.Second))
				stalled := m.took(v.Name, v.LeftBytes < left || ended(v.Phase) || v.Phase == v1alpha1.FlushDrained, r.Now())
				if v.Message == "" && stalled > patience && f.Spec.Mode != v1alpha1.FlushModeTrim {
					v.Message = fmt.Sprintf("not less dirty than %s ago: Ceph takes nothing, or only as much as is written meanwhile; "+
						"look at Ceph's health and at what the pod writes", stalled.Round(time.Second))
				}
				mu.Lock()
				f.Status.Volumes[i] = v
				mu.Unlock()
				<-r.slots
			}
		})
	}
	wait.Wait()
}

// withinRate reports whether the node's volumes were written back no faster than allowed. The
// caller holds m.status.
func (r *Reconciler) withinRate(f *v1alpha1.CacheFlush, node string) bool {
	if f.Spec.BytesPerSecond <= 0 {
		return true
	}
	var written int64
	for _, v := range f.Status.Volumes {
		if v.Node == node {
			written += max(0, v.TotalBytes-v.LeftBytes)
		}
	}
	return float64(written) <= float64(f.Spec.BytesPerSecond)*r.Now().Sub(f.Status.StartTime.Time).Seconds()
}

// patience is how long a volume may make no progress before the CacheFlush says why.
const patience = 20 * time.Second

// step takes one volume as far as it gets in that time, and returns how far that is.
func (r *Reconciler) step(
	ctx context.Context, f *v1alpha1.CacheFlush, was v1alpha1.FlushedVolume, longest time.Duration,
) v1alpha1.FlushedVolume {
	now := was
	now.Message = ""
	v := &v1alpha1.CacheVolume{}
	err := r.Live.Get(ctx, client.ObjectKey{Name: was.Name}, v)
	if apierrors.IsNotFound(err) {
		return done(now, "it was deleted meanwhile")
	}
	if err != nil {
		return waiting(now, fmt.Errorf("read its record: %w", err))
	}
	if f.Spec.Mode == v1alpha1.FlushModeTrim {
		return r.trim(ctx, v, now, longest)
	}
	at := v.Status.AttachedNode
	switch {
	case at == "" && authority.InCeph(v):
		return done(now, "it is not attached, and everything is in Ceph")
	case v.Status.UncachedAttached():
		return r.uncached(ctx, f.Spec.Mode, v, now)
	case at == "" || v.Status.FlushAttached():
		return r.writeBack(ctx, now, at, longest)
	}
	owner := v1alpha1.FlushOwner(f.Name)
	if f.Spec.Node != "" && !f.Spec.SelectsOnNode(v) {
		if now, over := r.left(ctx, v, owner, now); over {
			return now
		}
	}
	if was.Phase == v1alpha1.FlushDrained {
		return moving(f.Spec, v, r.verify(ctx, v, owner, now))
	}
	now.Node = at
	if f.Spec.Mode == v1alpha1.FlushModeDrain {
		if _, err := r.Drain.Turn(ctx, v.Name, owner); err != nil {
			return waiting(now, err)
		}
	} else if authority.InCeph(v) {
		return done(now, "")
	} else if drainers := authority.Claims(v); len(drainers) > 0 {
		// They cannot turn the volume to write-through while it is being flushed.
		now.Phase, now.Message = v1alpha1.FlushRunning, "it is drained for "+strings.Join(drainers, " and ")+", which writes it back too"
		return now
	}
	flushed, err := r.Hosts.Flush(ctx, cachevolume.On(v, at), longest)
	if err != nil {
		return waiting(now, err)
	}
	now.Phase, now.LeftBytes = v1alpha1.FlushRunning, flushed.DirtyBytes
	now.TotalBytes = max(now.TotalBytes, now.LeftBytes)
	if !flushed.Clean {
		return now
	}
	if f.Spec.Mode == v1alpha1.FlushModeFlush {
		return done(now, "")
	}
	return r.settle(ctx, now)
}

// writeBack takes a bite of the write-back of a volume that no pod has. A host with a current copy does it.
func (r *Reconciler) writeBack(
	ctx context.Context, now v1alpha1.FlushedVolume, at string, longest time.Duration,
) v1alpha1.FlushedVolume {
	err := r.Flusher.WriteBackDetached(ctx, now.Name, longest)
	unfinished, goesOn := errors.AsType[*volumes.UnfinishedError](err)
	now.Phase, now.Node = v1alpha1.FlushRunning, at // also of one that was drained before
	switch {
	case err == nil:
		return done(now, "no node has it, and everything is in Ceph now")
	case goesOn:
		now.Node, now.LeftBytes = unfinished.Node, unfinished.LeftBytes
		now.TotalBytes = max(now.TotalBytes, now.LeftBytes)
		return now
	default:
		return waiting(now, err)
	}
}

func (r *Reconciler) settle(ctx context.Context, now v1alpha1.FlushedVolume) v1alpha1.FlushedVolume {
	inCeph, status, err := r.Drain.Settle(ctx, now.Name)
	if status.DirtyBytes != nil {
		now.LeftBytes = *status.DirtyBytes
	}
	if err != nil {
		return waiting(now, err)
	}
	if inCeph {
		now.Phase, now.LeftBytes = v1alpha1.FlushDrained, 0
	}
	return now
}

// verify checks that a drained volume is still drained. A volume that moved has lost its claim. If
// the host does not answer, nothing changes: the record still holds.
func (r *Reconciler) verify(ctx context.Context, v *v1alpha1.CacheVolume, owner string, now v1alpha1.FlushedVolume) v1alpha1.FlushedVolume {
	if !slices.Contains(authority.Claims(v), owner) {
		return done(now, "it has moved to node "+v.Status.AttachedNode)
	}
	inCeph, status, err := r.Drain.Settle(ctx, v.Name)
	switch {
	case errors.Is(err, drain.ErrNotAttached):
		return done(now, "it was detached")
	case apierrors.IsConflict(err):
		return now
	case err != nil:
		now.Message = "everything is in Ceph, but that cannot be checked now: " + err.Error()
	case !inCeph && status.Device != "":
		now.Phase = v1alpha1.FlushRunning
		now.Message = "it no longer writes through, and is drained again"
	case !inCeph:
		now.Message = "everything is in Ceph; its device is not there now"
	}
	return now
}

func done(v v1alpha1.FlushedVolume, message string) v1alpha1.FlushedVolume {
	v.Phase, v.LeftBytes, v.Message = v1alpha1.FlushComplete, 0, message
	return v
}

func waiting(v v1alpha1.FlushedVolume, err error) v1alpha1.FlushedVolume {
	if v.Phase != v1alpha1.FlushDrained {
		v.Phase = v1alpha1.FlushRunning
	}
	if !apierrors.IsConflict(err) { // then somebody else has just written the record, and the next turn begins with what it is now
		v.Message = err.Error()
	}
	return v
}

// memory is what is known of a CacheFlush beyond its status. If it is lost, the turns are unfair
// for a moment and the rate is unknown.
type memory struct {
	status sync.Mutex // of the volumes of a running pass

	mu    sync.Mutex
	turns map[string]turn
	turn  int

	pace pace.Meter
}

// turn says when a volume last had a turn, and whether it made progress.
type turn struct {
	number int
	moved  bool
	since  time.Time // when it last got on
}

// took remembers a volume's turn, and returns for how long the volume has made no progress.
func (m *memory) took(volume string, moved bool, now time.Time) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.turn++
	since := m.turns[volume].since
	if moved || since.IsZero() {
		since = now
	}
	m.turns[volume] = turn{number: m.turn, moved: moved, since: since}
	return now.Sub(since)
}

// order sorts the volumes for their turns. First come those that are being written back and make
// progress, so that each node has as few unfinished volumes as allowed. Then come those that had no
// turn yet, then those that are stuck. Drained ones, which are only checked, come last.
func (m *memory) order(volumes []v1alpha1.FlushedVolume, of []int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	class := func(i int) int {
		t, had := m.turns[volumes[i].Name]
		switch {
		case volumes[i].Phase == v1alpha1.FlushDrained:
			return 3
		case had && !t.moved:
			return 2
		case volumes[i].Phase == v1alpha1.FlushRunning:
			return 0
		default:
			return 1
		}
	}
	slices.SortStableFunc(of, func(a, b int) int {
		return cmp.Or(cmp.Compare(class(a), class(b)),
			cmp.Compare(m.turns[volumes[a].Name].number, m.turns[volumes[b].Name].number),
			cmp.Compare(volumes[a].Name, volumes[b].Name))
	})
}
