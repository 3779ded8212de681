package plugin

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/plugin/claims"
	"github.com/escache/escache-csi/internal/plugin/console"
	"github.com/escache/escache-csi/internal/plugin/failure"
	"github.com/escache/escache-csi/internal/plugin/manifest"
	"github.com/escache/escache-csi/internal/plugin/paging"
	"github.com/escache/escache-csi/internal/plugin/state"
	"github.com/escache/escache-csi/internal/records/choice"
	"github.com/escache/escache-csi/internal/records/trouble"
	"github.com/escache/escache-csi/internal/wordwrap"
)

// explainOther explains what KIND/NAME names. Claims have no slash in their names.
func explainOther(ctx context.Context, c *console.Console, api client.Reader, kind, name string) error {
	switch kind {
	case "volume":
		v, err := claims.ReadVolume(ctx, api, name)
		if err != nil {
			return err
		}
		printVolume(ctx, c, api, v)
		return nil
	case "snapshot":
		return explainSnapshot(ctx, c, api, name)
	case "host", "node":
		return explainPart(ctx, c, api, choice.Filter{Nodes: []string{name}}, func(v *view) { printHost(c, v, name) })
	case "group":
		return explainPart(ctx, c, api, choice.Filter{Groups: []string{name}}, func(v *view) { printGroup(c, v, name) })
	default:
		return fmt.Errorf("%w: %s/%s: only volume/, snapshot/, host/ and group/ can be explained, and claims", failure.ErrUsage, kind, name)
	}
}

// explainPart explains a group or a host: its facts, what is wrong with it and its volumes, and the
// tables of status.
func explainPart(ctx context.Context, c *console.Console, api client.Reader, filter choice.Filter, facts func(*view)) error {
	now := c.Now()
	s, err := state.Read(ctx, api, "", now)
	if err != nil {
		return err
	}
	v, err := newView(s, statusFlags{filter: filter}, now)
	if err != nil {
		return err
	}
	facts(v)
	screen, _ := c.Screen()
	c.Printf("\n")
	if err := v.printTroubles(c.Out, screen.Width); err != nil {
		return err
	}
	return v.printTables(c.Out, false)
}

func printHost(c *console.Console, v *view, name string) {
	at := slices.IndexFunc(v.Groups, func(g v1alpha1.NodeGroup) bool { return slices.Contains(g.Spec.Nodes, name) })
	if at < 0 {
		c.Factf("Host", "%s, in no group any more: it still has replicas, or is on record as having them", name)
		return
	}
	g := &v.Groups[at]
	c.Factf("Host", "%s, of group %s", name, g.Name)
	m, known := member(g, name)
	if !known {
		c.Factf("State", "csi-controller has not asked it yet")
		return
	}
	c.Factf("State", "%s, last seen %s%s", memberState(g, m), lastSeen(m, v.now), prefixed(": ", m.Message))
	c.Factf("escached", "%s", cmp.Or(m.Version, "version not known"))
	if m.CertificateEnd != nil {
		c.Factf("TLS", "its certificate %s", trouble.Ends(m.CertificateEnd.Time, v.now))
	}
	c.Factf("Cache", "%s, of which %s are given to volumes (%s), %s are dirty", v1alpha1.HumanBytes(m.CacheCapacityBytes),
		v1alpha1.HumanBytes(m.CacheAllocatedBytes), filled(m), v1alpha1.HumanBytes(m.DirtyBytes))
	c.Factf("Replicas", "%d, of which %d are of volumes that it has", m.Volumes, m.Primaries)
	printStale(c, g, name)
	c.Factf("Down", "before you take it down: kubectl escache evacuate %s", name)
}

// printStale shows the replicas that wait to be removed, of one node ("" for all).
func printStale(c *console.Console, g *v1alpha1.NodeGroup, node string) {
	for _, r := range g.Status.StaleReplicas {
		if node == "" || r.Node == node {
			c.Factf("Stale", "a replica of volume %s on node %s, since %s", r.Volume, r.Node, r.Since.Format(time.DateTime))
		}
	}
}

func prefixed(prefix, text string) string {
	if text == "" {
		return ""
	}
	return prefix + text
}

func printGroup(c *console.Console, v *view, name string) {
	at := slices.IndexFunc(v.Groups, func(g v1alpha1.NodeGroup) bool { return g.Name == name })
	g := &v.Groups[at]
	c.Factf("Group", "%s of %s, made %s", g.Name, strings.Join(g.Spec.Nodes, ", "), console.Ago(&g.CreationTimestamp, v.now))
	switch by := manifest.ManagedBy(g); {
	case by != "":
		c.Factf("Managed by", "%s: change it there", by)
	default:
		c.Factf("Managed by", "nobody that says so")
	}
	c.Factf("Takes new", "%s", takesNew(g))
	printStale(c, g, "")
	c.Printf("\nConditions:\n")
	if len(g.Status.Conditions) == 0 {
		c.Printf("  none yet: no csi-controller has looked at it\n")
	}
	printEachCondition(c, g.Status.Conditions)
}

// takesNew says whether volumes and replicas are placed in a group.
func takesNew(g *v1alpha1.NodeGroup) string {
	switch {
	case !g.DeletionTimestamp.IsZero():
		return "nothing: it is being deleted"
	case g.Spec.Cordoned:
		return "nothing: it is cordoned; kubectl escache uncordon " + g.Name
	case len(g.Spec.CordonedNodes) > 0:
		return "volumes, but no replicas on " + strings.Join(g.Spec.CordonedNodes, ", ") + ": kubectl escache uncordon takes a host, too"
	default:
		return "volumes"
	}
}

func explainSnapshot(ctx context.Context, c *console.Console, api client.Reader, name string) error {
	s := &v1alpha1.CacheSnapshot{}
	err := api.Get(ctx, client.ObjectKey{Name: name}, s)
	if apierrors.IsNotFound(err) && !failure.IsNoResource(err) {
		return fmt.Errorf("there is no CacheSnapshot %s; kubectl get cachesnapshots lists them. The CacheSnapshot of a VolumeSnapshot "+
			"is the snapshotHandle of its VolumeSnapshotContent", name)
	}
	if err != nil {
		return err
	}
	v := &v1alpha1.CacheVolume{}
	err = api.Get(ctx, client.ObjectKey{Name: s.Spec.Volume}, v)
	gone := apierrors.IsNotFound(err)
	if err != nil && !gone {
		return err
	}
	made, err := madeFrom(ctx, api, name)
	if err != nil {
		return err
	}
	printSnapshot(c, s, v, gone, made)
	return nil
}

func printSnapshot(c *console.Console, s *v1alpha1.CacheSnapshot, v *v1alpha1.CacheVolume, gone bool, made []string) {
	line := c.Factf
	line("Snapshot", "%s, asked for %s", s.Name, console.Ago(&s.CreationTimestamp, c.Now()))
	line("In Ceph", "%s/%s@%s of cluster %s", s.Spec.Pool, s.Spec.Image, s.Spec.Snapshot, s.Spec.ClusterID)
	if taken := s.Status.Taken; taken == nil {
		line("Taken", "not yet")
	} else {
		line("Taken", "%s, %s, of an image of %s", taken.Format(time.DateTime), console.Ago(taken, c.Now()),
			v1alpha1.HumanBytes(s.Status.SizeBytes))
	}
	switch {
	case gone:
		line("Volume", "%s, which is not on record any more: its image stays in Ceph until its last snapshot is deleted", s.Spec.Volume)
	default:
		line("Volume", "%s, created for claim %s, on %s", v.Name, claims.CreatedFor(v), cmp.Or(v.Status.AttachedNode, "no host"))
	}
	if len(made) > 0 {
		line("Made of it", "%s", trouble.Few(made))
	}
	screen, _ := c.Screen()
	c.Printf("\n%s", wordwrap.Line("Next step: "+snapshotStep(s, v, gone, c.Now()), "  ", screen.Width))
}

// snapshotStep says what an operator should do next with a snapshot.
func snapshotStep(s *v1alpha1.CacheSnapshot, v *v1alpha1.CacheVolume, gone bool, now time.Time) string {
	switch {
	case !s.DeletionTimestamp.IsZero():
		return "wait: it is being deleted"
	case s.Status.Taken != nil:
		return "nothing: to use it, make a claim with the VolumeSnapshot as its dataSource (docs/snapshots.md)"
	case gone:
		return "delete its VolumeSnapshot: the volume is gone, and the snapshot was never taken"
	case now.Sub(s.CreationTimestamp.Time) < patience:
		return "wait: it is being taken"
	default:
		return "kubectl describe volumesnapshotcontent shows what it waits for, and kubectl escache explain volume/" + v.Name +
			" what is wrong with the volume; a snapshot needs Ceph, and the host that has the volume"
	}
}

// patience is how long a snapshot may take before something is wrong.
const patience = 2 * time.Minute

// madeFrom returns the volumes that were made from a snapshot.
func madeFrom(ctx context.Context, api client.Reader, snapshot string) ([]string, error) {
	all, err := paging.All[v1alpha1.CacheVolume](ctx, api, &v1alpha1.CacheVolumeList{})
	var out []string
	for i := range all {
		if all[i].Spec.FromSnapshot == snapshot {
			out = append(out, all[i].Name)
		}
	}
	return out, err
}
