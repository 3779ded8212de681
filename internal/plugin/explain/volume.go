package explain

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/plugin/claims"
	"github.com/escache/escache-csi/internal/plugin/console"
	"github.com/escache/escache-csi/internal/plugin/flush"
	"github.com/escache/escache-csi/internal/plugin/installed"
	"github.com/escache/escache-csi/internal/plugin/paging"
	"github.com/escache/escache-csi/internal/records/remedy"
	"github.com/escache/escache-csi/internal/records/resync"
	"github.com/escache/escache-csi/internal/records/trouble"
	"github.com/escache/escache-csi/internal/redundancy"
	"github.com/escache/escache-csi/internal/wordwrap"
)

func printVolume(ctx context.Context, c *console.Console, api client.Reader, v *v1alpha1.CacheVolume) {
	all, err := claims.ReadUses(ctx, api)
	if err != nil {
		c.Printf("the PersistentVolumes cannot be read: %v\n", err)
	}
	group := &v1alpha1.NodeGroup{}
	if err := api.Get(ctx, client.ObjectKey{Name: v.Spec.Group}, group); err != nil {
		group = nil // what can be said without it is said
	}
	printFacts(c, v, all)
	printCopies(c, v, group)
	if all != nil && all[v.Name].PersistentVolume == "" {
		c.Factf("No PV", "no PersistentVolume names it; kubectl escache release --volume %s gives it up and leaves its image", v.Name)
	}
	printHistory(c, v)
	printFlushes(ctx, c, api, v)
	printSnapshots(ctx, c, api, v)
	printConditions(c, v)
	printEvents(ctx, c, api, "CacheVolume", v, all[v.Name])
	printNextStep(c, v, group, escachedRuns(ctx, c, api), waitingFor(ctx, c, api, v.Name, all[v.Name]))
}

// escachedRuns says how escached runs on the hosts, as far as that can be read.
func escachedRuns(ctx context.Context, c *console.Console, api client.Reader) remedy.Escached {
	workloads, err := installed.Read(ctx, api)
	if err != nil {
		c.Printf("the driver's workloads cannot be read: %v\n", err)
	}
	return workloads.Escached()
}

// printFacts shows what the volume is, where its data is and who has it.
func printFacts(c *console.Console, v *v1alpha1.CacheVolume, all claims.Uses) {
	s, line := &v.Status, c.Factf
	line("Volume", "%s, of claim %s (on record: %s), created %s", v.Name, all.ClaimOf(v), claims.OnRecord(v),
		console.Ago(&v.CreationTimestamp, c.Now()))
	line("Image", "%s/%s of Ceph cluster %s, %s, id %s", v.Spec.Pool, v.Spec.Image, v.Spec.ClusterID,
		v1alpha1.HumanBytes(v.Spec.SizeBytes), cmp.Or(s.ImageID, "not read yet"))
	if v.Spec.FromSnapshot != "" {
		line("Made from", "snapshot %s", v.Spec.FromSnapshot)
	}
	if v.Spec.FromVolume != "" {
		line("Made from", "volume %s", v.Spec.FromVolume)
	}
	line("Cache", "%s on each of %s, in group %s, engine %s, %s", v.Spec.CacheText(),
		strings.Join(v.Spec.Replicas, " and "), v.Spec.Group, v.Spec.Engine(), v.Spec.CacheMode)
	line("Phase", "%s", cmp.Or(s.Phase, v1alpha1.VolumePending))
	if s.AttachedNode == "" {
		line("Attached", "not attached (%d attachments so far)", s.Epoch)
	} else {
		line("Attached", "to %s, epoch %d, Ceph client %s", s.AttachedNode, s.Epoch, cmp.Or(s.ClientAddress, "not known"))
	}
	if s.Authority == v1alpha1.AuthorityCache {
		line("Truth", "in the cache: only a host with a current copy can have the volume (%s)", strings.Join(trouble.Holders(v), ", "))
	} else {
		line("Truth", "in Ceph: any host of the group can have the volume")
	}
	line("Dirty", "%s when last recorded", v1alpha1.HumanBytes(s.DirtyBytes))
	line("Last flush", "%s", lastFlush(s.LastFlushTime, c.Now()))
	line("Outdated", "%s", cmp.Or(strings.Join(s.Outdated, ", "), "no copy"))
}

func printCopies(c *console.Console, v *v1alpha1.CacheVolume, group *v1alpha1.NodeGroup) {
	if group != nil {
		for _, node := range redundancy.Left(v, group) {
			fate := redundancy.FateOf(v, node)
			c.Factf("Outside", "node %s is not in group %s any more, and has a replica (%s): %s", node, group.Name, fate.Is, fate.Then)
		}
	}
	one := redundancy.Of(v, group, redundancy.Evidence{})
	if one.Whole() {
		c.Factf("Copies", "%s", one.Message)
		return
	}
	c.Factf("Copies", "one (%s): %s; %s", one.Reason, one.Message, trouble.Stake(one))
}

// printHistory shows drains, fences, repair, resync, move and discard of the volume.
func printHistory(c *console.Console, v *v1alpha1.CacheVolume) {
	s, line := &v.Status, c.Factf
	for _, claim := range s.WriteThrough {
		line("Drained", "for %s, epoch %d, since %s", claim.Owner, claim.Epoch, claim.Since.Format(time.DateTime))
	}
	for _, f := range s.Fenced {
		client := cmp.Or(f.Address, "no client that is known")
		line("Fenced", "%s of %s in epoch %d, %s", client, f.Node, f.Epoch, f.Time.Format(time.DateTime))
	}
	if s.Repair != nil {
		line("Repair", "of the copy on %s, onto %s, since %s", s.Repair.Lost, cmp.Or(s.Repair.Substitute, "a host not chosen yet"),
			s.Repair.Since.Format(time.DateTime))
	}
	if r, running := resync.Of(v); running {
		line("Resync", "of the copy on %s: %s; seen %s", r.Onto, r, console.Ago(&metav1.Time{Time: r.Seen}, c.Now()))
	}
	if moving := trouble.Move(v); moving != "" {
		line("Move", "%s", moving)
	}
	if s.Discarded != nil {
		line("Discarded", "%s by %s, %s", v1alpha1.HumanBytes(s.Discarded.BytesAtStake), s.Discarded.RequestedBy,
			s.Discarded.Time.Format(time.DateTime))
	}
}

// printFlushes shows the CacheFlushes that write the volume back now. Each has a rate for all its volumes.
func printFlushes(ctx context.Context, c *console.Console, api client.Reader, v *v1alpha1.CacheVolume) {
	err := paging.Each(ctx, api, &v1alpha1.CacheFlushList{}, func(f *v1alpha1.CacheFlush) error {
		at := slices.IndexFunc(f.Status.Volumes, func(one v1alpha1.FlushedVolume) bool { return one.Name == v.Name })
		if f.Status.Phase == v1alpha1.FlushRunning && at >= 0 {
			one := f.Status.Volumes[at]
			c.Factf("Flush", "%s (%s): %s, %s of this volume left. All of it: %s", f.Name, f.Spec.Mode,
				cmp.Or(one.Phase, v1alpha1.FlushPending), v1alpha1.HumanBytes(one.LeftBytes), flush.Total(f))
		}
		return nil
	})
	if err != nil {
		c.Factf("Flushes", "cannot be read: %v", err)
	}
}

func printConditions(c *console.Console, v *v1alpha1.CacheVolume) {
	c.Printf("\nConditions:\n")
	if len(v.Status.Conditions) == 0 {
		c.Printf("  none yet\n")
	}
	printEachCondition(c, v.Status.Conditions)
}

func printEachCondition(c *console.Console, all []metav1.Condition) {
	screen, _ := c.Screen()
	for _, is := range all {
		text := fmt.Sprintf("  %s=%s, %s%s", is.Type, is.Status, is.Reason, prefixed(": ", is.Message))
		c.Printf("%s", wordwrap.Line(text, "    ", screen.Width))
	}
}

func printNextStep(c *console.Console, v *v1alpha1.CacheVolume, group *v1alpha1.NodeGroup, how remedy.Escached, waiting []trouble.Trouble) {
	screen, _ := c.Screen()
	next := trouble.NextStep(v)
	if len(waiting) > 0 && strings.HasPrefix(next, "nothing") {
		next = "find out why its pods wait:"
	}
	c.Printf("\n%s", wordwrap.Line("Next step: "+next, "  ", screen.Width))
	printTroubles(c, append(trouble.OfVolume(v, group, how, c.Now()), waiting...), screen.Width)
}

func printSnapshots(ctx context.Context, c *console.Console, api client.Reader, v *v1alpha1.CacheVolume) {
	taken, err := snapshotsOf(ctx, api, v.Name)
	if err != nil {
		c.Factf("Snapshots", "cannot be read: %v", err)
	}
	for _, snapshot := range taken {
		c.Factf("Snapshot", "%s", snapshot)
	}
}

// snapshotsOf describes each snapshot of a volume. The volume cannot be deleted before they are.
func snapshotsOf(ctx context.Context, api client.Reader, volume string) ([]string, error) {
	all := &v1alpha1.CacheSnapshotList{}
	if err := api.List(ctx, all); err != nil {
		return nil, err
	}
	var out []string
	for _, s := range all.Items {
		switch {
		case s.Spec.Volume != volume:
		case s.Status.Taken == nil:
			out = append(out, s.Name+", not taken yet")
		default:
			out = append(out, fmt.Sprintf("%s, %s, taken %s", s.Name, s.Status.Summary.Size, s.Status.Taken.Format(time.DateTime)))
		}
	}
	return out, nil
}

func lastFlush(t *metav1.Time, now time.Time) string {
	if t == nil {
		return "none on record"
	}
	return t.Format(time.DateTime) + ", " + console.Ago(t, now)
}
