package move

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/placement"
	"github.com/escache/escache-csi/internal/plugin/claims"
	"github.com/escache/escache-csi/internal/plugin/console"
	"github.com/escache/escache-csi/internal/plugin/failure"
	"github.com/escache/escache-csi/internal/plugin/fleet"
	"github.com/escache/escache-csi/internal/records/trouble"
	"github.com/escache/escache-csi/internal/shortlist"
)

// rebalanceFlags are the flags of rebalance.
type rebalanceFlags struct {
	dryRun, apply bool
	empty         string
	parallel      int
	timeout       time.Duration
}

// Rebalance returns the command rebalance.
func Rebalance(c *console.Console) *cobra.Command {
	var f rebalanceFlags
	command := &cobra.Command{
		Use:   "rebalance --dry-run|--apply",
		Short: "Move volumes to even out the groups, or to empty one",
		Long: "Make the fewest moves of volumes between NodeGroups after which no group is fuller than another by more than one\n" +
			"volume, as after a group was added. With --empty, move the volumes of a group to the others, so that it can be taken\n" +
			"away. Groups that are cordoned neither give nor take volumes; --empty is for a group that is cordoned.\n\n" +
			"Volumes move while no node has them. For those that stay it says why. With --empty, an attached volume is asked to\n" +
			"move, too: it does so when it is detached. A run that is interrupted can be repeated.",
		Example: "  kubectl escache rebalance --dry-run\n  kubectl escache rebalance --apply\n" +
			"  kubectl escache rebalance --apply --empty=rack1 --parallel=8",
		Args: console.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			switch {
			case f.dryRun == f.apply:
				return fmt.Errorf("%w: say --dry-run to see the moves, or --apply to make them", failure.ErrUsage)
			case command.Flags().Changed("empty") && f.empty == "":
				return fmt.Errorf("%w: --empty needs the name of a NodeGroup", failure.ErrUsage)
			case f.parallel < 1:
				return fmt.Errorf("%w: --parallel is 1 at least", failure.ErrUsage)
			}
			api, err := c.Connect()
			if err != nil {
				return err
			}
			return runRebalance(command.Context(), c, api, f)
		},
	}
	flags := command.Flags()
	flags.BoolVar(&f.dryRun, "dry-run", false, "only show the moves")
	flags.BoolVar(&f.apply, "apply", false, "make the moves")
	flags.StringVar(&f.empty, "empty", "", "move the volumes of this NodeGroup to the others")
	flags.IntVar(&f.parallel, "parallel", 4, "how many volumes move at once")
	flags.DurationVar(&f.timeout, "timeout", time.Hour, "stop after this time; moves that were asked for go on")
	return command
}

func runRebalance(ctx context.Context, c *console.Console, api client.Client, f rebalanceFlags) error {
	groups, volumes := &v1alpha1.NodeGroupList{}, &v1alpha1.CacheVolumeList{}
	for _, list := range []client.ObjectList{groups, volumes} {
		if err := api.List(ctx, list); err != nil {
			return err
		}
	}
	all, err := claims.ReadUses(ctx, api)
	if err != nil {
		return err
	}
	classes, err := readClasses(ctx, api)
	if err != nil {
		return err
	}
	s, err := fleet.State(groups.Items, volumes.Items)
	if err != nil {
		return err
	}
	before, ties := s.Usage(), tiesOf(volumes.Items, all, classes, f.empty != "")
	var p placement.Proposal
	if f.empty == "" {
		p = s.Rebalance(ties)
	} else if p, err = s.Empty(f.empty, ties); err != nil {
		return fmt.Errorf("%w; kubectl escache status lists them", err)
	}
	printShares(c, before, p.After)
	printMoves(c, p, volumes.Items, all)
	printStaying(c, p.Staying)
	c.Printf("\n%s\n", conclusion(p, f.empty))
	if all == nil || classes == nil {
		c.Printf("You may not list PersistentVolumes or StorageClasses: which groups the StorageClasses allow is not known.\n")
	}
	if f.dryRun {
		return nil
	}
	if f.empty != "" && !slices.ContainsFunc(groups.Items, func(g v1alpha1.NodeGroup) bool { return g.Name == f.empty && g.Closed() }) {
		return fmt.Errorf("group %s still takes new volumes, and nothing was moved; first: kubectl escache cordon %s", f.empty, f.empty)
	}
	return makeMoves(ctx, c, api, p.Moves, volumes.Items, f)
}

// makeMoves makes the moves, and waits also for those that an earlier run has asked for.
func makeMoves(
	ctx context.Context, c *console.Console, api client.Client, moves []placement.Move, volumes []v1alpha1.CacheVolume, f rebalanceFlags,
) error {
	m := &mover{Console: c, api: api, parallel: f.parallel, going: map[string]*going{}}
	attached := map[string]bool{}
	for i := range volumes {
		v := &volumes[i]
		attached[v.Name] = v.Status.AttachedNode != ""
		if to := trouble.MovingTo(v); to != "" && (f.empty == "" || v.Spec.Group == f.empty) {
			m.going[v.Name] = &going{to: to, since: c.Now()}
		}
	}
	c.Printf("\n")
	// What is attached only waits, and keeps nobody else from moving.
	for _, move := range moves {
		if !attached[move.Volume] {
			m.queue = append(m.queue, move)
		} else if err := m.start(ctx, move); err != nil {
			return err
		}
	}
	if err := m.run(ctx, f.timeout); err != nil {
		return err
	}
	c.Printf("%d moved\n", m.done)
	return nil
}

// readClasses reads the groups that each StorageClass allows. A user who may not read them gets nil.
func readClasses(ctx context.Context, api client.Reader) (map[string][]string, error) {
	list := &storagev1.StorageClassList{}
	if err := api.List(ctx, list); err != nil {
		if apierrors.IsForbidden(err) {
			return nil, nil //nolint:nilnil // nil is an answer
		}
		return nil, err
	}
	out := map[string][]string{}
	for i := range list.Items {
		if groups := fleet.AllowedGroups(&list.Items[i]); groups != nil {
			out[list.Items[i].Name] = groups
		}
	}
	return out, nil
}

func tiesOf(volumes []v1alpha1.CacheVolume, all claims.Uses, classes map[string][]string, later bool) placement.Ties {
	ties := placement.Ties{Fixed: map[string]string{}, Groups: map[string][]string{}}
	for i := range volumes {
		v := &volumes[i]
		if why := fleet.Fixed(v, later); why != "" {
			ties.Fixed[v.Name] = why
		}
		if groups, are := classes[all[v.Name].StorageClass]; are {
			ties.Groups[v.Name] = groups
		}
	}
	return ties
}

func printShares(c *console.Console, before, after []placement.Usage) {
	row, flush := console.Table(c.Out)
	defer func() { _ = flush() }()
	row("GROUP", "HOSTS", "VOLUMES", "FILLED", "VOLUMES THEN", "FILLED THEN")
	for i, u := range before {
		then := after[i] // both are all groups, by name
		row(u.Group, fmt.Sprint(len(u.Members)), fmt.Sprint(u.Volumes), share(u), fmt.Sprint(then.Volumes), share(then))
	}
}

func share(u placement.Usage) string {
	if u.CapacityBytes == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f%%", 100*float64(u.AllocatedBytes)/float64(u.CapacityBytes))
}

func printMoves(c *console.Console, p placement.Proposal, volumes []v1alpha1.CacheVolume, all claims.Uses) {
	if len(p.Moves) == 0 {
		return
	}
	named := map[string]*v1alpha1.CacheVolume{}
	for i := range volumes {
		named[volumes[i].Name] = &volumes[i]
	}
	row, flush := console.Table(c.Out)
	defer func() { _ = flush() }()
	row("")
	row("VOLUME", "CLAIM", "CACHE", "ATTACHED", "FROM", "TO", "ON")
	for _, m := range p.Moves {
		v := named[m.Volume]
		row(m.Volume, all.ClaimOf(v), v1alpha1.HumanBytes(m.CacheBytes), cmp.Or(v.Status.AttachedNode, "-"), m.From, m.To.Group,
			m.To.Primary+","+m.To.Partner)
	}
}

// printStaying prints each reason once.
func printStaying(c *console.Console, staying []placement.Staying) {
	if len(staying) == 0 {
		return
	}
	type cause struct{ group, reason string }
	var causes []cause
	volumes := map[cause][]string{}
	for _, v := range staying {
		k := cause{v.Group, v.Reason}
		if !slices.Contains(causes, k) {
			causes = append(causes, k)
		}
		volumes[k] = append(volumes[k], v.Volume)
	}
	c.Printf("\nThese stay where they are:\n")
	for _, k := range causes {
		names := volumes[k]
		c.Printf("  %d in group %s: %s\n    %s\n", len(names), k.group, k.reason, shortlist.Of(names))
	}
}

func conclusion(p placement.Proposal, empty string) string {
	moves, s := fmt.Sprintf("%d moves", len(p.Moves)), ""
	if len(p.Moves) == 1 {
		moves, s = "1 move", "s"
	}
	const even = "no group is fuller than another by more than one volume, cordoned ones aside."
	switch {
	case empty != "" && len(p.Staying) > 0:
		return fmt.Sprintf("%s, and volumes that stay keep group %s from being taken away: %d.", moves, empty, len(p.Staying))
	case empty != "":
		return fmt.Sprintf("Group %s is empty after %s.", empty, moves)
	case len(p.Moves) == 0 && p.Even:
		return "The groups are even: " + even
	case p.Even:
		return fmt.Sprintf("%s make%s the groups even: then %s", moves, s, even)
	case len(p.Moves) == 0:
		return "Nothing can move now that would make the groups more even. It needs the volumes that stay."
	default:
		return fmt.Sprintf("%s bring%s the groups as close together as they can be now. More needs the volumes that stay.", moves, s)
	}
}
