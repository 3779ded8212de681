package fallback

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
)

// Config holds what a Watch needs.
type Config struct {
	Client client.Client // reads from a cache
	Events events.EventRecorder
	Log    *slog.Logger
	Now    func() time.Time
	// Every is the time between two polls, and Patience how long a group is without a host that takes pods
	// before pods may leave it.
	Every    time.Duration
	Patience time.Duration
}

// Watch keeps the labels while this process leads. Since when a group has had no host only this process
// knows: another leader waits again.
type Watch struct {
	Config

	since  map[string]time.Time
	closed map[string]bool
}

// New returns a Watch.
func New(config Config) *Watch {
	return &Watch{Config: config, since: map[string]time.Time{}, closed: map[string]bool{}}
}

// NeedLeaderElection returns true: only the leader writes labels.
func (*Watch) NeedLeaderElection() bool { return true }

// Start polls until the context ends.
func (w *Watch) Start(ctx context.Context) error {
	for {
		if err := w.Poll(ctx); err != nil && ctx.Err() == nil {
			w.Log.WarnContext(ctx, "the labels for attachments without a cache could not be set; trying again", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(w.Every):
		}
	}
}

// Poll looks at all groups once, and sets and removes labels. It is not safe for concurrent use.
func (w *Watch) Poll(ctx context.Context) error {
	fleet, err := w.fleet(ctx)
	if err != nil {
		clear(w.since) // nobody has seen what happened meanwhile
		return err
	}
	for _, g := range fleet.Groups {
		if !Closed(g, fleet.Nodes) {
			delete(w.since, g.Name)
		} else if w.since[g.Name].IsZero() {
			w.since[g.Name] = w.Now()
		}
	}
	d := Decide(fleet, w.since, w.Patience, w.Now())
	for i := range fleet.Nodes {
		if groups, changed := d.Labels[fleet.Nodes[i].Name]; changed {
			if err := w.label(ctx, &fleet.Nodes[i], groups); err != nil {
				return err
			}
		}
	}
	w.tell(fleet.Groups, d.Closed)
	return nil
}

// fleet reads what the decision needs.
func (w *Watch) fleet(ctx context.Context) (Fleet, error) {
	f := Fleet{Wanted: map[string]bool{}, Held: map[string][]string{}}
	groups, nodes, volumes := &v1alpha1.NodeGroupList{}, &corev1.NodeList{}, &v1alpha1.CacheVolumeList{}
	for what, list := range map[string]client.ObjectList{"groups": groups, "nodes": nodes, "volumes": volumes} {
		if err := w.Client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return f, fmt.Errorf("list %s: %w", what, err)
		}
	}
	f.Groups, f.Nodes = groups.Items, nodes.Items
	for i := range volumes.Items {
		v := &volumes.Items[i]
		f.Wanted[v.Spec.Group] = f.Wanted[v.Spec.Group] || v.Spec.UncachedFallback
		if node := v.Status.AttachedNode; v.Status.UncachedAttached() && !v.Status.TrimAttached() {
			f.Held[node] = append(f.Held[node], v.Spec.Group)
		}
	}
	return f, nil
}

// label makes the node's labels those of these groups.
func (w *Watch) label(ctx context.Context, cached *corev1.Node, groups []string) error {
	node := cached.DeepCopy()
	maps.DeleteFunc(node.Labels, func(key, _ string) bool { _, is := v1alpha1.UncachedKeyOf(key); return is })
	for _, group := range groups {
		if node.Labels == nil {
			node.Labels = map[string]string{}
		}
		node.Labels[v1alpha1.UncachedKey(group)] = "true"
	}
	if err := w.Client.Patch(ctx, node, client.MergeFrom(cached)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("label node %s for volumes of %s: %w", node.Name, strings.Join(groups, ", "), err)
	}
	w.Log.InfoContext(ctx, "a node takes volumes of other groups without a cache", "node", node.Name, "groups", groups)
	return nil
}

// tell emits an Event when pods may leave a group, and one when they may not any more.
func (w *Watch) tell(groups []v1alpha1.NodeGroup, closed map[string]bool) {
	for i := range groups {
		g := &groups[i]
		switch before, now := w.closed[g.Name], closed[g.Name]; {
		case now && !before:
			w.Events.Eventf(g, nil, corev1.EventTypeWarning, "UncachedFallback", "Allow",
				"none of its hosts %s takes pods: volumes with uncachedFallback may be attached on hosts of other groups, without a cache",
				strings.Join(slices.Sorted(slices.Values(g.Spec.Nodes)), ", "))
		case before && !now:
			w.Events.Eventf(g, nil, corev1.EventTypeNormal, "UncachedFallbackEnded", "Allow",
				"its hosts take pods again: new pods get their volumes in the group, with a cache")
		}
	}
	w.closed = closed
}
