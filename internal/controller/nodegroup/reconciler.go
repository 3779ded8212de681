// Package nodegroup keeps NodeGroups up to date. It polls the escached of every member, writes
// changes into the status, passes them on to placement, and removes stale replicas from hosts that
// are back.
package nodegroup

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/reservation"
	"github.com/escache/escache-csi/internal/operation"
	"github.com/escache/escache-csi/internal/placement"
)

// Hosts reaches the escached of each node.
type Hosts interface {
	Node(ctx context.Context, node string) (*escache.Node, error)
	DeleteReplica(ctx context.Context, node string, volume escache.VolumeRef) error
	DiscardReplica(ctx context.Context, node string, volume escache.VolumeRef, epoch int64) error
}

// Config holds what a Reconciler needs.
type Config struct {
	Client client.Client // reads from a cache
	Live   client.Reader
	Hosts  Hosts
	Images Images
	Book   *reservation.Book
	Guard  *Guard
	Locks  *operation.Locks
	Events events.EventRecorder
	Log    *slog.Logger
	Now    func() time.Time

	// Poll is the time between two polls of a host, and Patience how long a host may take to
	// answer.
	Poll     time.Duration
	Patience time.Duration
	// Quiet is how often figures that change all the time are written. Transitions are written at
	// once.
	Quiet time.Duration
	// Parallel bounds the groups that are polled at once.
	Parallel int
}

// Reconciler keeps one NodeGroup at a time up to date. It is safe for concurrent use.
type Reconciler struct {
	Config

	mu     sync.Mutex
	wrote  map[string]time.Time   // when figures of a group were last written
	seen   map[string]metav1.Time // when a node last answered
	polled map[string][]sight     // what the last poll of a group has seen
}

// New returns a reconciler.
func New(config Config) *Reconciler {
	return &Reconciler{Config: config, wrote: map[string]time.Time{}, seen: map[string]metav1.Time{}, polled: map[string][]sight{}}
}

// GroupField is the field of CacheVolumes by which the reconciler's cache has to index them.
const GroupField = "spec.group"

// GroupOf returns the key by which CacheVolumes are indexed.
func GroupOf(o client.Object) []string {
	if v, ok := o.(*v1alpha1.CacheVolume); ok {
		return v.Groups()
	}
	return nil
}

// SetupWithManager makes the manager call Reconcile and CleanUp for every group while this process leads.
func (r *Reconciler) SetupWithManager(m ctrl.Manager) error {
	// The context is not used: the index is there as long as the cache.
	if err := m.GetFieldIndexer().IndexField(context.Background(), &v1alpha1.CacheVolume{}, GroupField, GroupOf); err != nil {
		return fmt.Errorf("index volumes by group: %w", err)
	}
	for name, do := range map[string]reconcile.Reconciler{"nodegroup": r, "stale-replicas": reconcile.Func(r.CleanUp)} {
		err := ctrl.NewControllerManagedBy(m).Named(name).
			For(&v1alpha1.NodeGroup{}).
			WithEventFilter(predicate.GenerationChangedPredicate{}).
			WithOptions(controller.Options{MaxConcurrentReconciles: r.Parallel}).
			Complete(do)
		if err != nil {
			return err
		}
	}
	return nil
}

// Reconcile polls one group: its members and its conditions.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	again := ctrl.Result{RequeueAfter: r.Poll}
	group := &v1alpha1.NodeGroup{}
	if err := r.Client.Get(ctx, request.NamespacedName, group); err != nil {
		if client.IgnoreNotFound(err) != nil {
			return again, err
		}
		r.forget(ctx, request.Name)
		return ctrl.Result{}, nil
	}
	if ended(group) {
		r.forget(ctx, request.Name)
		return ctrl.Result{}, nil
	}
	volumes, err := r.volumesOf(ctx, group.Name)
	if err != nil {
		return again, err
	}
	owners, err := r.owners(ctx)
	if err != nil {
		return again, err
	}
	seen := r.poll(ctx, group, owners)
	r.note(group.Name, seen)
	if err := r.Book.SetGroup(placementOf(group, seen), group.Status.StaleReplicas); err != nil {
		// The next poll of the other group takes the node away.
		r.Log.WarnContext(ctx, "nothing is placed on a node yet that has changed its group", "group", group.Name, "reason", err)
	}
	needed := needsOf(group, volumes, seen)
	if gone, err := r.guard(ctx, group, needed, seen); gone || err != nil {
		return again, err
	}
	return again, r.write(ctx, group, seen, needed)
}

// volumesOf returns the volumes of a group by name. They are the cache's own: nobody may change them.
func (r *Reconciler) volumesOf(ctx context.Context, group string) ([]*v1alpha1.CacheVolume, error) {
	all := &v1alpha1.CacheVolumeList{}
	if err := r.Client.List(ctx, all, client.MatchingFields{GroupField: group}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list the volumes of group %s: %w", group, err)
	}
	return byName(all.Items), nil
}

// guard sets or removes the group's finalizer. It reports whether the group is gone with it.
func (r *Reconciler) guard(ctx context.Context, group *v1alpha1.NodeGroup, needed needs, seen []sight) (gone bool, err error) {
	has, deleted := controllerutil.ContainsFinalizer(group, v1alpha1.GroupFinalizer), !group.DeletionTimestamp.IsZero()
	switch {
	case needed.any() && !has && !deleted:
		return false, r.Guard.restore(ctx, group.Name)
	case !needed.any() && has:
		// Replicas may have been given up since the group was read.
		released, err := r.Guard.release(ctx, group.Name, func(now *v1alpha1.NodeGroup) bool { return needsOf(now, nil, seen).any() })
		return released && deleted, err
	default:
		return false, nil
	}
}

func (r *Reconciler) forget(ctx context.Context, name string) {
	r.Book.RemoveGroup(name)
	r.Guard.forget(ctx, name)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.wrote, name)
	delete(r.polled, name)
}

// note keeps what a poll has seen, for CleanUp.
func (r *Reconciler) note(group string, seen []sight) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.polled[group] = seen
}

// lastSight returns what the last poll of the group has seen of a member; nothing if the node is none.
func (r *Reconciler) lastSight(group, node string) sight {
	r.mu.Lock()
	defer r.mu.Unlock()
	if at := slices.IndexFunc(r.polled[group], func(s sight) bool { return s.name == node }); at >= 0 {
		return r.polled[group][at]
	}
	return sight{}
}

// sight is what was seen of one member.
type sight struct {
	name    string
	problem string // why no replica can be placed here; empty: ready
	reason  string // the problem in one word
	claimed bool   // by an older group: the member counts for nothing here
	deleted bool   // Kubernetes has no such node
	host    *escache.Node
}

// Reasons why a member is not ready.
const (
	reasonClaimed     = "ClaimedByAnotherGroup"
	reasonUnknown     = "UnknownToKubernetes"
	reasonUnreachable = "EscachedUnreachable"
	reasonImpostor    = "WrongHost"
	reasonUnhealthy   = "Unhealthy"
	reasonCordoned    = "MemberCordoned"
)

// poll asks all members at once.
func (r *Reconciler) poll(ctx context.Context, group *v1alpha1.NodeGroup, owners map[string]string) []sight {
	seen := make([]sight, len(group.Spec.Nodes))
	var wait sync.WaitGroup
	for i, name := range group.Spec.Nodes {
		wait.Go(func() { seen[i] = r.pollMember(ctx, group.Name, name, owners[name]) })
	}
	wait.Wait()
	for i := range seen {
		if seen[i].problem == "" && slices.Contains(group.Spec.CordonedNodes, seen[i].name) {
			seen[i].reason, seen[i].problem = reasonCordoned, "node "+seen[i].name+
				" is cordoned: no new replicas are placed there until it is taken off spec.cordonedNodes"
		}
	}
	return seen
}

func (r *Reconciler) pollMember(ctx context.Context, group, name, owner string) sight {
	if owner != group {
		return sight{name: name, claimed: true, reason: reasonClaimed, problem: fmt.Sprintf(
			"node %s belongs to the older group %s; name another node here, or take it out of that group", name, owner)}
	}
	if err := r.Client.Get(ctx, client.ObjectKey{Name: name}, &corev1.Node{}); err != nil {
		if client.IgnoreNotFound(err) == nil {
			return sight{
				name: name, deleted: true, reason: reasonUnknown,
				problem: fmt.Sprintf("Kubernetes has no node %s; check the spelling", name),
			}
		}
		return sight{name: name, reason: reasonUnknown, problem: fmt.Sprintf("node %s cannot be read: %v", name, err)}
	}
	ctx, cancel := context.WithTimeout(ctx, r.Patience)
	defer cancel()
	host, err := r.Hosts.Node(ctx, name)
	switch {
	case err != nil:
		return sight{name: name, reason: reasonUnreachable, problem: fmt.Sprintf("escached on node %s does not answer: %v", name, err)}
	case host.Name != name:
		return sight{name: name, reason: reasonImpostor, problem: fmt.Sprintf(
			"the escached at node %s's address says it is node %q; check its configuration and the node's InternalIP", name, host.Name)}
	case !host.Healthy:
		return sight{name: name, host: host, reason: reasonUnhealthy, problem: fmt.Sprintf(
			"escached on node %s is not healthy: %s", name, strings.Join(host.Reasons, "; "))}
	}
	return sight{name: name, host: host}
}

// owners returns, for each node, the group that has it: the oldest one that names it.
func (r *Reconciler) owners(ctx context.Context) (map[string]string, error) {
	all := &v1alpha1.NodeGroupList{}
	if err := r.Client.List(ctx, all); err != nil {
		return nil, fmt.Errorf("list groups: %w", err)
	}
	return Owners(all.Items), nil
}

// Owners returns, for each node, which of the groups has it: the oldest one that names it; of two
// that are equally old the first by name. A group that is being deleted has its nodes while it has
// volumes.
func Owners(groups []v1alpha1.NodeGroup) map[string]string {
	byAge := slices.Clone(groups)
	slices.SortFunc(byAge, func(a, b v1alpha1.NodeGroup) int {
		if order := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); order != 0 {
			return order
		}
		return strings.Compare(a.Name, b.Name)
	})
	owners := map[string]string{}
	for _, g := range byAge {
		if ended(&g) {
			continue
		}
		for _, node := range g.Spec.Nodes {
			if owners[node] == "" {
				owners[node] = g.Name
			}
		}
	}
	return owners
}

// ended reports whether a group is deleted and csi-controller does not keep it.
func ended(g *v1alpha1.NodeGroup) bool {
	return !g.DeletionTimestamp.IsZero() && !controllerutil.ContainsFinalizer(g, v1alpha1.GroupFinalizer)
}

// placementOf returns the group as placement sees it. A member that does not answer keeps the
// capacity that it had last, so that a reboot does not drive the next volumes away from its group.
func placementOf(group *v1alpha1.NodeGroup, seen []sight) placement.Group {
	out := placement.Group{Name: group.Name, Cordoned: group.Closed()}
	for _, s := range seen {
		if s.claimed {
			continue
		}
		member := placement.Member{
			Name: s.name, Ready: s.problem == "", Cordoned: slices.Contains(group.Spec.CordonedNodes, s.name),
			Well: s.problem == "" || s.reason == reasonCordoned,
		}
		if s.host != nil {
			member.CapacityBytes, member.MaxVolumes = s.host.CacheCapacityBytes, s.host.MaxVolumes
			member.ConnectableBytes, member.ConnectedBytes = s.host.ConnectableBytes, s.host.ConnectedBytes
			member.Engines = enginesOf(s.host)
			member.OtherBytes = max(0, s.host.CacheCapacityBytes-s.host.CacheFreeBytes-s.host.CacheAllocatedBytes)
		} else if last := memberOf(group, s.name); last != nil {
			member.CapacityBytes = last.CacheCapacityBytes
		}
		out.Members = append(out.Members, member)
	}
	return out
}

// enginesOf are the cache engines of a host beside the one that every host has.
func enginesOf(h *escache.Node) []string {
	var out []string
	for _, e := range h.Engines {
		if e != escache.EngineWritecache {
			out = append(out, string(e))
		}
	}
	slices.Sort(out)
	return out
}

func memberOf(group *v1alpha1.NodeGroup, name string) *v1alpha1.NodeGroupMember {
	for i := range group.Status.Members {
		if group.Status.Members[i].Name == name {
			return &group.Status.Members[i]
		}
	}
	return nil
}
