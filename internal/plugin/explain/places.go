package explain

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/plugin/console"
	"github.com/escache/escache-csi/internal/plugin/manifest"
	"github.com/escache/escache-csi/internal/plugin/state"
	"github.com/escache/escache-csi/internal/plugin/status"
	"github.com/escache/escache-csi/internal/records/choice"
	"github.com/escache/escache-csi/internal/records/trouble"
)

// explainPart explains a group or a host: its facts, what is wrong with it and its volumes, and the
// tables of status.
func explainPart(ctx context.Context, c *console.Console, api client.Reader, filter choice.Filter, facts func(*status.View)) error {
	now := c.Now()
	s, err := state.Read(ctx, api, "", now)
	if err != nil {
		return err
	}
	v, err := status.NewView(s, filter, now)
	if err != nil {
		return err
	}
	facts(v)
	screen, _ := c.Screen()
	c.Printf("\n")
	if err := v.PrintTroubles(c.Out, screen.Width); err != nil {
		return err
	}
	return v.PrintTables(c.Out, false)
}

func printHost(c *console.Console, v *status.View, name string) {
	at := slices.IndexFunc(v.Groups, func(g v1alpha1.NodeGroup) bool { return slices.Contains(g.Spec.Nodes, name) })
	if at < 0 {
		c.Factf("Host", "%s, in no group any more: it still has replicas, or is on record as having them", name)
		return
	}
	g := &v.Groups[at]
	c.Factf("Host", "%s, of group %s", name, g.Name)
	m, known := status.Member(g, name)
	if !known {
		c.Factf("State", "csi-controller has not asked it yet")
		return
	}
	c.Factf("State", "%s, last seen %s%s", status.MemberState(g, m), status.LastSeen(m, v.Now), prefixed(": ", m.Message))
	c.Factf("escached", "%s", cmp.Or(m.Version, "version not known"))
	if m.CertificateEnd != nil {
		c.Factf("TLS", "its certificate %s", trouble.Ends(m.CertificateEnd.Time, v.Now))
	}
	c.Factf("Cache", "%s, of which %s are given to volumes (%s), %s are dirty", v1alpha1.HumanBytes(m.CacheCapacityBytes),
		v1alpha1.HumanBytes(m.CacheAllocatedBytes), status.Filled(m), v1alpha1.HumanBytes(m.DirtyBytes))
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

func printGroup(c *console.Console, v *status.View, name string) {
	at := slices.IndexFunc(v.Groups, func(g v1alpha1.NodeGroup) bool { return g.Name == name })
	g := &v.Groups[at]
	c.Factf("Group", "%s of %s, made %s", g.Name, strings.Join(g.Spec.Nodes, ", "), console.Ago(&g.CreationTimestamp, v.Now))
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
