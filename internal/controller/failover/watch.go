package failover

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/nodegroup"
)

// AnnotationTaintedSince on a Node marks the out-of-service taint as the controller's own, and says
// when it was set.
const AnnotationTaintedSince = "escache.io/out-of-service-since"

// taintValue is the value in Kubernetes' documentation.
const taintValue = "nodeshutdown"

// Hosts asks the escached of a node.
type Hosts interface {
	Node(ctx context.Context, node string) (*escache.Node, error)
	Volumes(ctx context.Context, node string) ([]escache.VolumeStatus, error)
}

// Config holds what a Watch needs.
type Config struct {
	Policy

	Client client.Client // reads from a cache
	Live   client.Reader
	Hosts  Hosts
	Events events.EventRecorder
	Log    *slog.Logger
	Now    func() time.Time

	// Every is the time between two polls. Ask bounds the question to a host.
	Every time.Duration
	Ask   time.Duration
}

// Watch looks for dead nodes while this process leads. It remembers since when each proof holds, so
// another leader starts from the beginning.
type Watch struct {
	Config

	polled time.Time
	proven map[string]time.Time
	said   map[string]map[string]bool // why it stood down, since the node looks dead
}

// New returns a Watch.
func New(config Config) *Watch {
	return &Watch{Config: config, proven: map[string]time.Time{}, said: map[string]map[string]bool{}}
}

// NeedLeaderElection returns true: only the leader polls.
func (*Watch) NeedLeaderElection() bool { return true }

// Start polls until the context ends.
func (w *Watch) Start(ctx context.Context) error {
	for {
		if err := w.Poll(ctx); err != nil && ctx.Err() == nil {
			w.Log.WarnContext(ctx, "search for dead nodes failed; trying again", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(w.Every):
		}
	}
}

// Poll inspects all members of all groups once, and acts on what it finds. It is not safe for
// concurrent use.
func (w *Watch) Poll(ctx context.Context) error {
	w.forgetOld()
	members, nodes, err := w.members(ctx)
	if err != nil {
		clear(w.proven) // a poll that failed is a break
		return err
	}
	w.remember(members)
	d := Decide(members, w.Policy, w.Now())
	w.reportStandDown(ctx, members, nodes, d)
	if d.Taint != "" {
		if err := w.taint(ctx, d.Taint, d.Reason); err != nil {
			return err
		}
	}
	for _, node := range d.Release {
		if err := w.release(ctx, node); err != nil {
			return err
		}
	}
	return nil
}

// forgetOld treats a pause of this process as a break of every proof, because nobody has seen what
// happened meanwhile.
func (w *Watch) forgetOld() {
	now := w.Now()
	if now.Sub(w.polled) > 3*w.Every+2*w.Ask {
		clear(w.proven)
	}
	w.polled = now
}

func (w *Watch) remember(members []Member) {
	for i := range members {
		m := &members[i]
		if !m.Proof() {
			delete(w.proven, m.Name)
			continue
		}
		if w.proven[m.Name].IsZero() {
			w.proven[m.Name] = w.Now()
		}
		m.ProvenSince = w.proven[m.Name]
	}
}

// members asks all members, and for each one that looks dead also the others of its group.
func (w *Watch) members(ctx context.Context) ([]Member, map[string]*corev1.Node, error) {
	groups := &v1alpha1.NodeGroupList{}
	if err := w.Client.List(ctx, groups); err != nil {
		return nil, nil, fmt.Errorf("list groups: %w", err)
	}
	attached, err := w.attached(ctx)
	if err != nil {
		return nil, nil, err
	}
	nodes := map[string]*corev1.Node{}
	var members []Member
	owners := nodegroup.Owners(groups.Items)
	for _, node := range slices.Sorted(maps.Keys(owners)) {
		group, n := owners[node], &corev1.Node{}
		if err := w.Client.Get(ctx, client.ObjectKey{Name: node}, n); err != nil {
			if client.IgnoreNotFound(err) == nil {
				continue // no node, nothing to taint
			}
			return nil, nil, fmt.Errorf("read node %s: %w", node, err)
		}
		nodes[node] = n
		members = append(members, Member{
			Name: node, Group: group, NotReady: !ready(n), OutOfService: outOfService(n), Ours: ours(n), Volumes: attached[node],
		})
	}
	each(members, func(m *Member) {
		ctx, cancel := context.WithTimeout(ctx, w.Ask)
		defer cancel()
		host, err := w.Hosts.Node(ctx, m.Name)
		m.Silent = err != nil || host.Name != m.Name
	})
	others := slices.Clone(members)
	each(members, func(m *Member) {
		if m.NotReady && m.Silent {
			m.Links = w.links(ctx, m, others)
		}
	})
	return members, nodes, nil
}

// links asks the other members of the group. A member that does not answer counts for nothing.
func (w *Watch) links(ctx context.Context, m *Member, all []Member) Links {
	var sum Links
	for _, other := range all {
		if other.Group != m.Group || other.Name == m.Name || other.Silent {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, w.Ask)
		volumes, err := w.Hosts.Volumes(ctx, other.Name)
		cancel()
		if err == nil {
			LinksTo(m.Name, other.Name, volumes, &sum)
		}
	}
	return sum
}

func each(members []Member, do func(*Member)) {
	var wait sync.WaitGroup
	for i := range members {
		wait.Go(func() { do(&members[i]) })
	}
	wait.Wait()
}

// attached counts the volumes that each node has on record.
func (w *Watch) attached(ctx context.Context) (map[string]int, error) {
	volumes := &v1alpha1.CacheVolumeList{}
	if err := w.Client.List(ctx, volumes, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list volumes: %w", err)
	}
	out := map[string]int{}
	for i := range volumes.Items {
		if node := volumes.Items[i].Status.AttachedNode; node != "" {
			out[node]++
		}
	}
	return out, nil
}

// reportStandDown reports why the controller stood down, each reason once for as long as the node
// looks dead.
func (w *Watch) reportStandDown(ctx context.Context, members []Member, nodes map[string]*corev1.Node, d Decision) {
	for _, m := range members {
		if !m.suspect() {
			delete(w.said, m.Name)
		}
		reason := d.StandDown[m.Name]
		if reason == "" || w.said[m.Name][reason] {
			continue
		}
		if w.said[m.Name] == nil {
			w.said[m.Name] = map[string]bool{}
		}
		w.said[m.Name][reason] = true
		w.Log.WarnContext(ctx, "not tainting a node that looks dead", "node", m.Name, "group", m.Group, "reason", reason)
		w.Events.Eventf(nodes[m.Name], nil, corev1.EventTypeWarning, "FailoverStoodDown", "Taint", "not tainted out-of-service: %s", reason)
	}
}

func (w *Watch) taint(ctx context.Context, name, reason string) error {
	n := &corev1.Node{}
	if err := w.Live.Get(ctx, client.ObjectKey{Name: name}, n); err != nil {
		return fmt.Errorf("read node %s: %w", name, err)
	}
	if ready(n) || outOfService(n) {
		return nil // the cache was late; the next poll sees it
	}
	now := metav1.NewTime(w.Now())
	n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{
		Key: corev1.TaintNodeOutOfService, Value: taintValue, Effect: corev1.TaintEffectNoExecute, TimeAdded: &now,
	})
	if n.Annotations == nil {
		n.Annotations = map[string]string{}
	}
	n.Annotations[AnnotationTaintedSince] = now.UTC().Format(time.RFC3339)
	if err := w.Client.Update(ctx, n); err != nil {
		return fmt.Errorf("taint node %s: %w", name, err)
	}
	w.Log.WarnContext(ctx, "tainted a dead node as out of service", "node", name, "reason", reason)
	w.Events.Eventf(n, nil, corev1.EventTypeWarning, "TaintedOutOfService", "Taint", "%s", reason)
	return nil
}

// release removes the controller's own taint.
func (w *Watch) release(ctx context.Context, name string) error {
	n := &corev1.Node{}
	if err := w.Live.Get(ctx, client.ObjectKey{Name: name}, n); err != nil {
		return fmt.Errorf("read node %s: %w", name, err)
	}
	if !ready(n) || !ours(n) {
		return nil
	}
	n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == corev1.TaintNodeOutOfService && t.Value == taintValue && t.Effect == corev1.TaintEffectNoExecute
	})
	delete(n.Annotations, AnnotationTaintedSince)
	if err := w.Client.Update(ctx, n); err != nil {
		return fmt.Errorf("remove the taint of node %s: %w", name, err)
	}
	w.Log.InfoContext(ctx, "node is back in service", "node", name)
	w.Events.Eventf(n, nil, corev1.EventTypeNormal, "BackInService", "Taint",
		"the node is Ready, its escached answers and its volumes are released: the out-of-service taint is removed")
	return nil
}

func ready(n *corev1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func outOfService(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService })
}

// ours needs both the taint and the annotation. An annotation that was left when somebody else
// removed the taint says nothing about a taint that was set later.
func ours(n *corev1.Node) bool {
	since, err := time.Parse(time.RFC3339, n.Annotations[AnnotationTaintedSince])
	if err != nil {
		return false
	}
	return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == corev1.TaintNodeOutOfService && t.Value == taintValue && t.Effect == corev1.TaintEffectNoExecute &&
			t.TimeAdded != nil && t.TimeAdded.Time.Equal(since)
	})
}
