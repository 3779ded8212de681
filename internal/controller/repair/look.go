package repair

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/cachevolume"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/internal/redundancy"
)

// sight is a group, and which of its hosts do not answer now.
type sight struct {
	group *v1alpha1.NodeGroup
	away  map[string]absence
	pause string
}

// absence is a host that does not answer.
type absence struct {
	lastSeen time.Time // zero: never
	deleted  bool      // Kubernetes has no such node
}

// look asks each member that was not ready when last polled: the record may be old, and a member that
// is not ready for another reason answers.
func (r *Repairer) look(ctx context.Context, groups []v1alpha1.NodeGroup) map[string]*sight {
	var (
		mu   sync.Mutex
		wait sync.WaitGroup
		out  = map[string]*sight{}
	)
	for i := range groups {
		s := &sight{group: &groups[i], away: map[string]absence{}}
		out[groups[i].Name] = s
		for _, m := range groups[i].Status.Members {
			if m.Ready || !slices.Contains(groups[i].Spec.Nodes, m.Name) {
				continue
			}
			wait.Go(func() {
				ctx, cancel := context.WithTimeout(ctx, r.Ask)
				defer cancel()
				host, err := r.Hosts.Node(ctx, m.Name)
				if err == nil && host.Name == m.Name {
					return
				}
				a := absence{deleted: errors.Is(err, volumes.ErrNotFound)}
				if m.LastSeen != nil {
					a.lastSeen = m.LastSeen.Time
				}
				mu.Lock()
				defer mu.Unlock()
				s.away[m.Name] = a
			})
		}
	}
	wait.Wait()
	for _, s := range out {
		var away []string
		for _, node := range s.group.Spec.Nodes {
			if _, is := s.away[node]; is {
				away = append(away, node)
			}
		}
		s.pause = Pause(s.group.Name, s.group.Spec.Nodes, away)
	}
	return out
}

// silent returns since when a host has been gone for long enough, zero if it has not. Nobody waits for a
// repair that somebody asks for.
func (r *Repairer) silent(of *sight, node string, asked bool) (since time.Time, deleted bool) {
	if of == nil {
		return time.Time{}, false
	}
	a, away := of.away[node]
	if !away || a.lastSeen.IsZero() || !asked && (r.After == 0 || r.Now().Sub(a.lastSeen) < r.After) {
		return time.Time{}, false
	}
	return a.lastSeen, a.deleted
}

// examine finds out why volumes have one copy. Only the hosts of those that have are asked.
func (r *Repairer) examine(
	ctx context.Context, all []v1alpha1.CacheVolume, sights map[string]*sight, drains []v1alpha1.CacheFlush,
) map[string]Seen {
	var (
		mu    sync.Mutex
		group errgroup.Group
		out   = map[string]Seen{}
	)
	group.SetLimit(workers)
	for i := range all {
		v := &all[i]
		if _, asked := v.Annotations[v1alpha1.AnnotationRepair]; v.Status.AttachedNode == "" && !asked && !v.WithoutPod() {
			continue
		}
		group.Go(func() error {
			seen := r.examineOne(ctx, v, sights[v.Spec.Group])
			seen.Moves, seen.NoPlace = r.evacuated(v, drains)
			mu.Lock()
			defer mu.Unlock()
			out[v.Name] = seen
			return nil
		})
	}
	_ = group.Wait() // nothing fails
	return out
}

func (r *Repairer) examineOne(ctx context.Context, v *v1alpha1.CacheVolume, of *sight) Seen {
	_, asked := v.Annotations[v1alpha1.AnnotationRepair]
	seen := Seen{Asked: asked}
	var group *v1alpha1.NodeGroup
	if of != nil {
		seen.Paused, group = of.pause, of.group
	}
	if v.WithoutPod() {
		seen.Finding, seen.Stuck = r.copies(ctx, v, of, asked)
		return seen
	}
	lost := redundancy.Lost(v)
	if lost == "" {
		r.apart(v.Name, "", false, false)
		seen.Finding = redundancy.Of(v, group, redundancy.Evidence{})
		partner := authority.Partner(v, v.Status.AttachedNode)
		if since, _ := r.silent(of, partner, asked); !since.IsZero() {
			seen.Silent = redundancy.NotSeen(partner, since)
		}
		return seen
	}
	seen.Finding, seen.Instead = redundancy.Of(v, group, r.evidence(ctx, v, of, lost, asked)), r.instead(v)
	return seen
}

// evacuated returns the CacheFlush that drains a volume and wants its second copy on another host, and why no
// host can take that.
func (r *Repairer) evacuated(v *v1alpha1.CacheVolume, drains []v1alpha1.CacheFlush) (by, nowhere string) {
	for i := range drains {
		f := &drains[i]
		if !f.DeletionTimestamp.IsZero() || !f.Spec.Moves(v) || !slices.Contains(authority.Claims(v), v1alpha1.FlushOwner(f.Name)) {
			continue
		}
		if _, err := r.Volumes.Substitutes(v, f.Spec.Node, volumes.Moved); err != nil {
			nowhere = err.Error()
		}
		return f.Name, nowhere
	}
	return "", ""
}

// evidence asks the holder and the host of the lost copy, each only if it may answer.
func (r *Repairer) evidence(ctx context.Context, v *v1alpha1.CacheVolume, of *sight, lost string, asked bool) redundancy.Evidence {
	e := redundancy.Evidence{Asked: true}
	e.Silent, e.Deleted = r.silent(of, lost, asked)
	holder := v.Status.AttachedNode
	if of == nil || holder == "" || lost == holder {
		return e
	}
	if _, away := of.away[lost]; away {
		r.apart(v.Name, lost, false, false)
		return e
	}
	ctx, cancel := context.WithTimeout(ctx, r.Ask)
	defer cancel()
	status, err := r.Hosts.Status(ctx, holder, cachevolume.Ref(v))
	report := authority.Heard(v, holder, status, err)
	var own authority.Answer
	own.Status, own.Err = r.Hosts.Status(ctx, lost, cachevolume.Ref(v))
	e.Loss = authority.CopyLossOf(v, lost, own, report)
	// A copy that is being made gets its time, whoever has asked for it.
	making := v.Status.Repair != nil && v.Status.Repair.Substitute == lost
	e.Away = r.apart(v.Name, lost, own.Err == nil && authority.Unlinked(report, lost), asked && !making)
	return e
}

// brief is how long a host may be away before a volume that no pod has counts as one with one copy: as long
// as escached may be restarted for.
const brief = time.Minute

// copies finds out about the copies of a dirty volume that no pod has: what there is to tell, and why nobody
// can write it back. Each host is asked that may answer.
func (r *Repairer) copies(ctx context.Context, v *v1alpha1.CacheVolume, of *sight, asked bool) (redundancy.Finding, string) {
	var (
		group *v1alpha1.NodeGroup
		e     redundancy.Evidence
		stuck []string
		able  bool
	)
	if of != nil {
		group = of.group
	}
	outdated := redundancy.Lost(v)
	for _, node := range v.Spec.Replicas {
		found, why := r.standby(ctx, v, of, node, asked)
		lost := found.Loss != authority.NoLoss || !found.Silent.IsZero() || why != "" && group != nil && left(v, group, node)
		switch {
		case node == outdated:
			e = found
		case lost && outdated == "" && e.Node == "":
			e = found
			e.Node = node
		}
		if v.Status.IsOutdated(node) {
			continue
		}
		able = able || why == ""
		stuck = append(stuck, why)
	}
	e.Asked = true
	finding := redundancy.Of(v, group, e)
	if able {
		return finding, ""
	}
	return finding, "nobody can write it back now: " + strings.Join(stuck, ", and ")
}

func left(v *v1alpha1.CacheVolume, group *v1alpha1.NodeGroup, node string) bool {
	return slices.Contains(redundancy.Left(v, group), node)
}

// standby finds out about one copy of a volume that no pod has. why says why the host cannot write it back;
// it is empty if it may be able to.
func (r *Repairer) standby(
	ctx context.Context, v *v1alpha1.CacheVolume, of *sight, node string, asked bool,
) (e redundancy.Evidence, why string) {
	if of != nil {
		if a, away := of.away[node]; away {
			gone := r.Now().Sub(a.lastSeen)
			if !a.lastSeen.IsZero() && (gone >= brief || asked) {
				e.Silent, e.Deleted, e.Lately = a.lastSeen, a.deleted, !asked && (r.After == 0 || gone < r.After)
			}
			return e, fmt.Sprintf("node %s does not answer", node)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, r.Ask)
	defer cancel()
	var own authority.Answer
	own.Status, own.Err = r.Hosts.Status(ctx, node, cachevolume.Ref(v))
	if e.Loss = authority.StandbyLossOf(v, node, own); e.Loss != authority.NoLoss {
		return e, fmt.Sprintf("node %s has lost its copy (%s)", node, e.Loss)
	}
	if own.Err != nil {
		return e, fmt.Sprintf("node %s does not answer", node)
	}
	return e, ""
}

// apartness is since when the copy on a node was seen without a link.
type apartness struct {
	node  string
	since time.Time
}

// apart reports whether the copy on a node whose host answers has been without a link for long, without a
// break in what this process has seen. Nobody waits for a repair that somebody asks for.
func (r *Repairer) apart(volume, node string, unlinked, asked bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !unlinked {
		delete(r.unlinked, volume)
		return false
	}
	seen, known := r.unlinked[volume]
	if !known || seen.node != node {
		seen = apartness{node, r.Now()}
		r.unlinked[volume] = seen
	}
	return asked || r.After > 0 && r.Now().Sub(seen.since) >= r.After
}

// tellPauses emits an Event when a group is paused, and one when it is not any more.
func (r *Repairer) tellPauses(groups []v1alpha1.NodeGroup, sights map[string]*sight) {
	for i := range groups {
		g := &groups[i]
		before, now := r.paused[g.Name], sights[g.Name].pause
		r.paused[g.Name] = now
		switch {
		case now != "" && before == "":
			r.Events.Eventf(g, nil, corev1.EventTypeWarning, "RepairPaused", "Repair", "%s", now)
		case now == "" && before != "":
			r.Events.Eventf(g, nil, corev1.EventTypeNormal, "RepairResumed", "Repair", "copies are replaced again where hosts are lost")
		}
	}
}
