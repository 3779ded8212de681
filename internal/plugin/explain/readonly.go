package explain

import (
	"context"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/plugin/claims"
	"github.com/escache/escache-csi/internal/plugin/console"
	"github.com/escache/escache-csi/internal/records/trouble"
	"github.com/escache/escache-csi/internal/wordwrap"
)

func printReadOnly(ctx context.Context, c *console.Console, api client.Reader, v *v1alpha1.ReadOnlyVolume) {
	all, err := claims.ReadUses(ctx, api)
	if err != nil {
		c.Printf("the PersistentVolumes cannot be read: %v\n", err)
	}
	unnamed := all != nil && all[v.Name].PersistentVolume == ""
	line := c.Factf
	line("Volume", "%s, read-only, of claim %s, created for claim %s, %s", v.Name, all.ClaimOf(v), claims.OnRecord(v),
		console.Ago(&v.CreationTimestamp, c.Now()))
	line("Made from", "snapshot %s, which cannot be deleted before this volume", v.Spec.Snapshot)
	line("Images", "a clone for each node, in pool %s of Ceph cluster %s, %s, without a cache", v.Spec.Pool, v.Spec.ClusterID,
		v1alpha1.HumanBytes(v.Spec.SizeBytes))
	if len(v.Status.Copies) == 0 {
		line("Attached", "not attached")
	}
	for _, has := range v.Status.Copies {
		if has.ImageID == "" {
			line("Attached", "to %s: image %s is not there yet", has.Node, v.ImageOn(has.Node))
		} else {
			line("Attached", "to %s: image %s, id %s", has.Node, v.ImageOn(has.Node), has.ImageID)
		}
	}
	if unnamed {
		line("No PV", "no PersistentVolume names it")
	}
	printEvents(ctx, c, api, "ReadOnlyVolume", v, all[v.Name])
	waiting := waitingFor(ctx, c, api, v.Name, all[v.Name])
	screen, _ := c.Screen()
	c.Printf("\n%s", wordwrap.Line("Next step: "+readOnlyStep(v, unnamed, waiting, c.Now()), "  ", screen.Width))
	printTroubles(c, waiting, screen.Width)
}

// readOnlyStep says what an operator should do next with a read-only volume.
func readOnlyStep(v *v1alpha1.ReadOnlyVolume, unnamed bool, waiting []trouble.Trouble, now time.Time) string {
	switch {
	case !v.DeletionTimestamp.IsZero():
		return "wait: it is being deleted, after its images"
	case len(waiting) > 0:
		return "find out why its pods wait:"
	case unnamed && now.Sub(v.CreationTimestamp.Time) >= claims.Young:
		return "if nobody needs it: csi-controller orphans --remove-volume " + v.Name + " removes it (docs/alerts.md)"
	default:
		return "nothing"
	}
}
