// Package loss has the commands for lost copies: repair has lost second copies replaced, and
// discard-cache gives up what only lost copies have.
package loss

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/plugin/console"
	"github.com/escache/escache-csi/internal/plugin/failure"
	"github.com/escache/escache-csi/internal/plugin/state"
	"github.com/escache/escache-csi/internal/records/trouble"
	"github.com/escache/escache-csi/internal/redundancy"
)

// selection names the volumes that are to be repaired: one, those with a replica on a host, or those of
// a group.
type selection struct{ volume, host, group string }

func (s selection) has(v *v1alpha1.CacheVolume) bool {
	switch {
	case s.volume != "":
		return v.Name == s.volume
	case s.host != "":
		return v.Spec.HasReplica(s.host)
	default:
		return v.Spec.Group == s.group
	}
}

// Repair returns the command repair.
func Repair(c *console.Console) *cobra.Command {
	var chosen selection
	var dryRun bool
	command := &cobra.Command{
		Use:   "repair VOLUME|--host HOST|--group GROUP",
		Short: "Have lost second copies replaced now",
		Long: "Have the lost second copies of attached volumes replaced now, and dirty volumes with one copy that no node has\n" +
			"written back. csi-controller does this by itself after controller.recovery.repairAfter. This command does not wait for\n" +
			"that time. It also works where repairs are off (0s), or paused because many hosts do not answer.\n\n" +
			"It sets the annotation " + v1alpha1.AnnotationRepair + " of the CacheVolumes, so you need the right to patch them.\n" +
			"csi-controller removes the annotation when nothing is left to do.",
		Example: "  kubectl escache repair pvc-0a1b --dry-run\n  kubectl escache repair --host=n2\n  kubectl escache repair --group=rack1",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				chosen.volume = args[0]
			}
			named := slices.DeleteFunc([]string{chosen.volume, chosen.host, chosen.group}, func(s string) bool { return s == "" })
			if len(named) != 1 || len(args) > 1 {
				return fmt.Errorf("%w: name exactly one of VOLUME, --host and --group", failure.ErrUsage)
			}
			return nil
		},
		RunE: func(command *cobra.Command, _ []string) error {
			api, err := c.Connect()
			if err != nil {
				return err
			}
			return runRepair(command.Context(), c, api, chosen, dryRun)
		},
	}
	command.Flags().StringVar(&chosen.host, "host", "", "all volumes with a copy on this host")
	command.Flags().StringVar(&chosen.group, "group", "", "all volumes of this NodeGroup")
	command.Flags().BoolVar(&dryRun, "dry-run", false, "only show what would be done, and why")
	return command
}

func runRepair(ctx context.Context, c *console.Console, api client.Client, chosen selection, dryRun bool) error {
	volumes, groups := &v1alpha1.CacheVolumeList{}, &v1alpha1.NodeGroupList{}
	for _, list := range []client.ObjectList{volumes, groups} {
		if err := api.List(ctx, list); err != nil {
			return err
		}
	}
	s := &state.State{Groups: groups.Items}
	asked, found := 0, 0
	for i := range volumes.Items {
		v := &volumes.Items[i]
		if !chosen.has(v) {
			continue
		}
		found++
		what := repairOf(v, redundancy.Of(v, s.Group(v), redundancy.Evidence{}))
		if what == "" {
			continue
		}
		c.Printf("%s: %s\n", v.Name, what)
		asked++
		if dryRun {
			continue
		}
		before := v.DeepCopy()
		if v.Annotations == nil {
			v.Annotations = map[string]string{}
		}
		v.Annotations[v1alpha1.AnnotationRepair] = c.Now().UTC().Format(time.RFC3339)
		if err := api.Patch(ctx, v, client.MergeFrom(before)); err != nil {
			return err
		}
	}
	switch {
	case found == 0 && chosen.volume != "":
		return fmt.Errorf("there is no CacheVolume %s; kubectl escache status lists them", chosen.volume)
	case found == 0:
		return errors.New("no volume has a copy there; kubectl escache status -o wide shows groups and copies")
	case asked == 0:
		c.Printf("nothing to repair: %d of %d volumes have two current copies, are catching up, or need none\n", found, found)
	case dryRun:
		c.Printf("dry run: nothing was changed\n")
	default:
		c.Printf("csi-controller is asked for %d; kubectl escache explain --volume NAME shows how far it is\n", asked)
	}
	return nil
}

// repairOf says what csi-controller would do for a volume, and why. It is empty if that is nothing.
func repairOf(v *v1alpha1.CacheVolume, f redundancy.Finding) string {
	switch {
	case f.Whole(), len(authority.Current(v)) == 0 && !authority.InCeph(v):
		return ""
	case v.WithoutPod():
		return strings.Join([]string{f.Message, "no pod has it: a host with a current copy writes it back", trouble.Stake(f)}, "; ")
	}
	through := "it writes through to Ceph meanwhile"
	if authority.InCeph(v) {
		through = "it writes through to Ceph already"
	}
	var does string
	switch f.Reason {
	case v1alpha1.ReasonLocalDiskLost:
		does = "nobody can copy for a host without a disk: restart its pod on another host, the next attachment creates two copies"
	case v1alpha1.ReasonHostReinstalled, v1alpha1.ReasonReplicaMissing:
		does = "a new copy is created on " + f.Lost
	case v1alpha1.ReasonPeerOutdated:
		if catchesUp(v) {
			return ""
		}
		does = fmt.Sprintf("another host of group %s, or %s, gets the copy, if %s does not answer, has lost it, or is not linked",
			v.Spec.Group, f.Lost, f.Lost)
	case v1alpha1.ReasonPeerDiskLost, v1alpha1.ReasonHostLeft, v1alpha1.ReasonCopyStaysAway:
		does = "another host of group " + v.Spec.Group + " gets the copy of " + f.Lost
	default:
		does = "another host of group " + v.Spec.Group + " gets the copy of " + f.Lost + ", if that does not answer or is not linked"
	}
	return strings.Join([]string{f.Message, does, through, trouble.Stake(f)}, "; ")
}

// catchesUp reports whether csi-node sees that the second copy is linked and filled. While everything is in Ceph it
// calls the volume redundant, whatever has become of that copy. Then csi-controller asks the hosts, and takes the
// request back if there is nothing to do.
func catchesUp(v *v1alpha1.CacheVolume) bool {
	copies := meta.FindStatusCondition(v.Status.Conditions, v1alpha1.ConditionRedundant)
	outdated := copies != nil && copies.Status == metav1.ConditionFalse && copies.Reason == v1alpha1.ReasonPeerOutdated
	return outdated || meta.IsStatusConditionFalse(v.Status.Conditions, v1alpha1.ConditionSynced)
}
