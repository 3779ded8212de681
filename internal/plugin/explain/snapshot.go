package explain

import (
	"cmp"
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/plugin/claims"
	"github.com/escache/escache-csi/internal/plugin/console"
	"github.com/escache/escache-csi/internal/plugin/failure"
	"github.com/escache/escache-csi/internal/plugin/paging"
	"github.com/escache/escache-csi/internal/plugin/state"
	"github.com/escache/escache-csi/internal/records/trouble"
	"github.com/escache/escache-csi/internal/wordwrap"
)

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
	readOnly, err := readOnlyOf(ctx, api, name)
	if err != nil {
		return err
	}
	printSnapshot(c, s, v, gone)
	if len(made) > 0 {
		c.Factf("Made of it", "%s", trouble.Few(made))
	}
	if len(readOnly) > 0 {
		c.Factf("Read-only", "%s: made of it, and to be deleted before it", trouble.Few(readOnly))
	}
	screen, _ := c.Screen()
	c.Printf("\n%s", wordwrap.Line("Next step: "+snapshotStep(s, v, gone, c.Now()), "  ", screen.Width))
	return nil
}

func printSnapshot(c *console.Console, s *v1alpha1.CacheSnapshot, v *v1alpha1.CacheVolume, gone bool) {
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
		line("Volume", "%s, of claim %s by its record, on %s", v.Name, claims.OnRecord(v), cmp.Or(v.Status.AttachedNode, "no host"))
	}
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

// readOnlyOf returns the read-only volumes of a snapshot.
func readOnlyOf(ctx context.Context, api client.Reader, snapshot string) ([]string, error) {
	all, err := state.ReadOnlyVolumes(ctx, api)
	var out []string
	for i := range all {
		if all[i].Spec.Snapshot == snapshot {
			out = append(out, all[i].Name)
		}
	}
	return out, err
}
