package overview

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/redundancy"
)

// scriptHash returns the hash of the page's own script. The policy allows no other script to run.
func scriptHash() string {
	_, after, _ := strings.Cut(page, "<script>")
	script, _, _ := strings.Cut(after, "</script>")
	sum := sha256.Sum256([]byte(script))
	return base64.StdEncoding.EncodeToString(sum[:])
}

type view struct {
	Time   string
	Groups []group
}

type group struct {
	Name, Ready, Dirty string
	Cordoned           bool
	Hosts              []host
	Volumes            []volume
	Flushes            []flush
}

type host struct {
	Name, State, Message, Cache, Dirty, Seen string
	Filled, Replicas, Attached               int // Filled in percent
	Links                                    []link
}

// link is the replication between this host and another one.
type link struct {
	To            string
	Volumes, Lost int
}

type volume struct {
	Name, Claim, Host, Truth, Dirty string
	Replicas                        []string
	Filled                          int // percent of the cache that is dirty
	Problems                        []string
}

type flush struct {
	Name, Phase, Left, Rate, Remaining string
	Percent                            int32
}

const (
	percent = 100
	// seenOften is longer than the time between two updates of LastSeen of a host that answers all
	// the time.
	seenOften = 2 * time.Minute
)

func (s *Server) view(ctx context.Context) (view, error) {
	groups, volumes, flushes := &v1alpha1.NodeGroupList{}, &v1alpha1.CacheVolumeList{}, &v1alpha1.CacheFlushList{}
	if err := s.records.List(ctx, groups); err != nil {
		return view{}, err
	}
	if err := s.records.List(ctx, volumes); err != nil {
		return view{}, err
	}
	if err := s.records.List(ctx, flushes); err != nil {
		return view{}, err
	}
	now := s.now()
	out := view{Time: now.UTC().Format(time.DateTime) + " UTC"}
	slices.SortFunc(groups.Items, func(a, b v1alpha1.NodeGroup) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(volumes.Items, func(a, b v1alpha1.CacheVolume) int { return cmp.Compare(a.Name, b.Name) })
	for i := range groups.Items {
		g := &groups.Items[i]
		shown := group{Name: g.Name, Ready: g.Status.Summary.Ready, Dirty: g.Status.Summary.Dirty, Cordoned: g.Spec.Cordoned}
		var of []*v1alpha1.CacheVolume
		for j := range volumes.Items {
			if v := &volumes.Items[j]; v.Spec.Group == g.Name {
				of = append(of, v)
				shown.Volumes = append(shown.Volumes, volumeOf(v, g, now))
			}
		}
		for _, name := range g.Spec.Nodes {
			shown.Hosts = append(shown.Hosts, hostOf(g, name, of, now))
		}
		for j := range flushes.Items {
			if f := &flushes.Items[j]; concerns(f, g, of) {
				shown.Flushes = append(shown.Flushes, flush{
					Name: f.Name, Phase: cmp.Or(string(f.Status.Phase), "Pending"), Percent: f.Status.Percent, Left: f.Status.Summary.Left,
					Rate: f.Status.Summary.Rate, Remaining: f.Status.Summary.Remaining,
				})
			}
		}
		out.Groups = append(out.Groups, shown)
	}
	return out, nil
}

func hostOf(g *v1alpha1.NodeGroup, name string, volumes []*v1alpha1.CacheVolume, now time.Time) host {
	h := host{Name: name, State: "unknown", Seen: "never"}
	for _, m := range g.Status.Members {
		if m.Name != name {
			continue
		}
		h.State, h.Message = "not ready", m.Message
		if m.Ready {
			h.State = "ready"
		}
		if slices.Contains(g.Spec.CordonedNodes, name) {
			h.State = "cordoned"
		}
		if m.CacheCapacityBytes > 0 {
			h.Cache = v1alpha1.HumanBytes(m.CacheAllocatedBytes) + " of " + v1alpha1.HumanBytes(m.CacheCapacityBytes)
		}
		h.Dirty, h.Replicas, h.Attached = v1alpha1.HumanBytes(m.DirtyBytes), int(m.Volumes), int(m.Primaries)
		h.Filled = share(m.CacheAllocatedBytes, m.CacheCapacityBytes)
		if m.LastSeen != nil {
			h.Seen = now.Sub(m.LastSeen.Time).Truncate(time.Second).String() + " ago"
			if m.Ready && now.Sub(m.LastSeen.Time) < seenOften {
				h.Seen = ""
			}
		}
	}
	for _, other := range g.Spec.Nodes {
		l := link{To: other}
		for _, v := range volumes {
			if other == name || !v.Spec.HasReplica(name) || !v.Spec.HasReplica(other) || v.Status.Epoch == 0 {
				continue
			}
			l.Volumes++
			if v.Status.IsOutdated(name) || v.Status.IsOutdated(other) {
				l.Lost++
			}
		}
		if l.Volumes > 0 {
			h.Links = append(h.Links, l)
		}
	}
	return h
}

func volumeOf(v *v1alpha1.CacheVolume, g *v1alpha1.NodeGroup, now time.Time) volume {
	out := volume{
		Name: v.Name, Claim: v.Annotations[v1alpha1.AnnotationClaim], Host: v.Status.AttachedNode, Replicas: v.Spec.Replicas,
		Truth: cmp.Or(string(v.Status.Authority), string(v1alpha1.AuthorityCeph)), Dirty: v1alpha1.HumanBytes(v.Status.DirtyBytes),
		Filled: share(v.Status.DirtyBytes, v.Spec.CacheBytes),
	}
	one := redundancy.Of(v, g, redundancy.Evidence{})
	for _, c := range v.Status.Faults() {
		if c.Type != v1alpha1.ConditionRedundant || one.Whole() {
			out.Problems = append(out.Problems, c.Message)
		}
	}
	if !one.Whole() {
		out.Problems = append(out.Problems, "one copy: "+one.Message+"; "+stake(one, now))
	}
	if v.Status.LeftDirty() {
		out.Problems = append(out.Problems, fmt.Sprintf("not attached, with data that only the cache on %s may have",
			strings.Join(v.Spec.Replicas, " and ")))
	}
	return out
}

// stake says what the loss of the last copy would lose.
func stake(f redundancy.Finding, now time.Time) string {
	if f.InCeph {
		return "Ceph has everything"
	}
	text := v1alpha1.HumanBytes(f.ExposedBytes) + " are on one host only"
	if !f.Since.IsZero() {
		text += ", for " + now.Sub(f.Since).Truncate(time.Second).String()
	}
	return text
}

func concerns(f *v1alpha1.CacheFlush, g *v1alpha1.NodeGroup, volumes []*v1alpha1.CacheVolume) bool {
	return f.Spec.NodeGroup == g.Name || slices.Contains(g.Spec.Nodes, f.Spec.Node) ||
		slices.ContainsFunc(f.Status.Volumes, func(v v1alpha1.FlushedVolume) bool {
			return slices.ContainsFunc(volumes, func(of *v1alpha1.CacheVolume) bool { return of.Name == v.Name })
		})
}

// share returns a percentage. It is 0 only if the part is 0, so that a small part is visible.
func share(part, whole int64) int {
	if whole <= 0 || part <= 0 {
		return 0
	}
	return int(min(max(percent*float64(part)/float64(whole), 1), percent))
}

func count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprint(n, " ", what)
}
