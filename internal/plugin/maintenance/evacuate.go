package maintenance

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/plugin/console"
	"github.com/escache/escache-csi/internal/plugin/failure"
	"github.com/escache/escache-csi/internal/plugin/flush"
)

// evacuation returns the name of the CacheFlush that drains a node.
func evacuation(node string) string { return "evacuate-" + node }

// Values of --protect: what becomes of volumes whose second copy is on the host.
const (
	protectDrain = "drain" // they write through until that copy is current again
	protectMove  = "move"  // they write through until they have a current copy on another host
	protectNone  = "none"  // they go on with one copy
)

// Evacuate returns the command evacuate.
func Evacuate(c *console.Console) *cobra.Command {
	var wait bool
	var timeout time.Duration
	var protect string
	command := &cobra.Command{
		Use:   "evacuate NODE",
		Short: "Prepare a host for kubectl drain: place nothing new there, and keep its caches clean",
		Long: "Prepare a host for kubectl drain: the driver places no new replicas there, flushes its caches to Ceph, and writes\n" +
			"through to Ceph until kubectl escache uncordon. Pods keep running. You may repeat the command.\n\n" +
			"Volumes that are attached elsewhere and have their second copy there are drained too, so that they survive the loss of\n" +
			"another host meanwhile. After kubectl escache uncordon each of them writes back again once that copy is current.\n" +
			"With --protect=move their second copies are created on other hosts of the group first, and then they write back. Where\n" +
			"no other host can take a copy, the volume is only drained. With --protect=none they go on with one copy.\n\n" +
			"Volumes that no node has, and whose data is not all in Ceph, are written back if they have a current copy there.",
		Example: "  kubectl escache evacuate n1 --wait && kubectl drain n1 --ignore-daemonsets --delete-emptydir-data",
		Args:    console.OneArg("NODE"),
		RunE: func(command *cobra.Command, args []string) error {
			if !slices.Contains([]string{protectDrain, protectMove, protectNone}, protect) {
				return fmt.Errorf("%w: --protect=%s is none of %s, %s and %s", failure.ErrUsage, protect, protectDrain, protectMove,
					protectNone)
			}
			api, err := c.Connect()
			if err != nil {
				return err
			}
			e := evacuating{
				node: args[0], copies: protect != protectNone, move: protect == protectMove, chosen: command.Flags().Changed("protect"),
				wait: wait, timeout: timeout, patience: takeUpTime,
			}
			return runEvacuate(command.Context(), c, api, e)
		},
	}
	command.Flags().StringVar(&protect, "protect", protectDrain,
		"drain, move or none: what becomes of volumes that are attached elsewhere and have their second copy there")
	command.Flags().BoolVar(&wait, "wait", false, "wait until everything is in Ceph, and show progress")
	command.Flags().DurationVar(&timeout, "timeout", time.Hour, "stop waiting after this time; the evacuation goes on")
	return command
}

// evacuating is what evacuate was asked for.
type evacuating struct {
	node    string
	copies  bool // drain also volumes whose second copy is there
	move    bool // and move those copies
	chosen  bool // the user said so
	wait    bool
	timeout time.Duration
	// patience is how long csi-controller may take to say that it moves copies, or to let a failed evacuation go.
	patience time.Duration
}

const (
	// takeUpTime is much longer than csi-controller takes for it, also when another one becomes the leader.
	takeUpTime = time.Minute
	// beginTime is longer than csi-controller takes to begin a drain, or to find that it cannot.
	beginTime = 10 * time.Second
)

func runEvacuate(ctx context.Context, c *console.Console, api client.WithWatch, e evacuating) error {
	if err := runCordon(ctx, c, api, hostKind+e.node); err != nil {
		return err
	}
	drain, err := drainOf(ctx, api, e)
	if err != nil {
		return err
	}
	if err := takenUp(ctx, api, drain, e); err != nil {
		return err
	}
	volumes := &v1alpha1.CacheVolumeList{}
	if err := api.List(ctx, volumes); err != nil {
		return err
	}
	printSecondCopies(c, secondCopies(volumes.Items, e.node), drain.Spec)
	if !e.wait {
		c.Printf("cacheflush.%s/%s drains its volumes; once kubectl escache status says Drained, kubectl drain %s is quick\n",
			v1alpha1.GroupName, drain.Name, e.node)
		return nil
	}
	began := c.Now()
	if err := flush.Follow(ctx, c, api, drain.Name, e.timeout); err != nil {
		return err
	}
	unprotected, err := followOthers(ctx, c, api, drain, e.timeout-c.Now().Sub(began))
	if err != nil {
		return err
	}
	what := "everything on node " + e.node
	if unprotected {
		what = "everything that is attached to node " + e.node + ", or to no node,"
	}
	c.Printf("%s is in Ceph, and stays so: kubectl drain %s need not wait for caches\n", what, e.node)
	return nil
}

// drainOf returns the CacheFlush that drains the node, and makes it if there is none. One that is there
// stays as it is, unless it has failed: that never drains anything, so another one takes its place.
func drainOf(ctx context.Context, api client.Client, e evacuating) (*v1alpha1.CacheFlush, error) {
	drain := &v1alpha1.CacheFlush{
		ObjectMeta: metav1.ObjectMeta{Name: evacuation(e.node)},
		Spec: v1alpha1.CacheFlushSpec{
			Node: e.node, Mode: v1alpha1.FlushModeDrain, SecondCopies: e.copies, MoveSecondCopies: e.move,
		},
	}
	err := api.Create(ctx, drain)
	if apierrors.IsAlreadyExists(err) {
		there := &v1alpha1.CacheFlush{}
		if err := api.Get(ctx, client.ObjectKeyFromObject(drain), there); err != nil {
			return nil, err
		}
		if !there.DeletionTimestamp.IsZero() || there.Status.Phase != v1alpha1.FlushFailed {
			return there, mayTake(there, e)
		}
		if err := remove(ctx, api, there, e); err != nil {
			return nil, err
		}
		err = api.Create(ctx, drain)
	}
	switch {
	case err != nil:
		return nil, err
	case e.move && !drain.Spec.MoveSecondCopies && drain.Spec.SecondCopies:
		return nil, fmt.Errorf("the CRDs of this cluster are older than this plugin, and know no move of second copies; "+
			"apply those of this version and upgrade csi-controller, or, without it: kubectl escache uncordon %s, then evacuate with "+
			"--protect=drain", e.node)
	case e.copies && !drain.Spec.SecondCopies:
		return nil, fmt.Errorf("the CRDs of this cluster are older than this plugin, and know no protection of second copies; "+
			"apply those of this version and upgrade csi-controller, or, without it: kubectl escache uncordon %s, then evacuate with "+
			"--protect=none",
			e.node)
	}
	return drain, nil
}

// mayTake returns why an evacuation that is there is not the one that is asked for.
func mayTake(there *v1alpha1.CacheFlush, e evacuating) error {
	switch {
	case !there.DeletionTimestamp.IsZero():
		return notEnded(there.Name, e)
	case e.chosen && (there.Spec.SecondCopies != e.copies || there.Spec.MoveSecondCopies != e.move):
		return fmt.Errorf("node %s is being evacuated already, with another --protect; to change that, first "+
			"kubectl escache uncordon %s", e.node, e.node)
	default:
		return nil
	}
}

func notEnded(name string, e evacuating) error {
	return fmt.Errorf("node %s is cordoned, but not evacuated: its earlier evacuation has not ended yet, and "+
		"CacheFlush %s drains nothing any more; repeat the command once that is gone "+
		"(kubectl get cacheflush %s -o wide says what it waits for)", e.node, name, name)
}

// remove deletes an evacuation that has failed, and waits until it is gone.
func remove(ctx context.Context, api client.Client, failed *v1alpha1.CacheFlush, e evacuating) error {
	ctx, cancel := context.WithTimeout(ctx, e.patience)
	defer cancel()
	if err := api.Delete(ctx, failed, client.Preconditions{UID: &failed.UID}); client.IgnoreNotFound(err) != nil {
		return err
	}
	return console.Poll(ctx, console.PollInterval/4, func() (bool, error) {
		err := api.Get(ctx, client.ObjectKey{Name: evacuation(e.node)}, &v1alpha1.CacheFlush{})
		return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	}, func() error { return notEnded(evacuation(e.node), e) })
}

// takenUp waits until csi-controller has begun the evacuation, and returns why if it cannot. A csi-controller that
// is away begins later. But where second copies are to be moved, it has to say that it does so: one that does not know
// this drains the volumes only, and must not be taken for one that does.
func takenUp(ctx context.Context, api client.Client, drain *v1alpha1.CacheFlush, e evacuating) error {
	name, moves, patience := drain.Name, drain.Spec.MoveSecondCopies, e.patience
	if !moves {
		patience = min(patience, beginTime)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	now := &v1alpha1.CacheFlush{}
	return console.Poll(ctx, console.PollInterval/4, func() (bool, error) {
		err := api.Get(ctx, client.ObjectKey{Name: name}, now)
		switch {
		case err != nil:
			return false, err
		case now.Status.Phase == v1alpha1.FlushFailed:
			why := "CacheFlush " + name + " has failed"
			if c := meta.FindStatusCondition(now.Status.Conditions, v1alpha1.FlushConditionComplete); c != nil {
				why += ": " + c.Message
			}
			return true, fmt.Errorf("node %s is cordoned, but not evacuated: %s; fix that, and repeat the command", e.node, why)
		case moves:
			return meta.IsStatusConditionTrue(now.Status.Conditions, v1alpha1.FlushConditionMoves), nil
		default:
			return now.Status.StartTime != nil, nil
		}
	}, func() error {
		if !moves {
			return nil
		}
		return fmt.Errorf("%w: csi-controller does not say that it moves second copies: it does not answer, or is older than this "+
			"plugin. CacheFlush %s drains their volumes only. Upgrade csi-controller and repeat the command, or, without it: "+
			"kubectl escache uncordon %s, then evacuate with --protect=drain", failure.ErrTimeUp, name, e.node)
	})
}

// secondCopies returns the volumes that are attached elsewhere and have a replica on the node.
func secondCopies(volumes []v1alpha1.CacheVolume, node string) []*v1alpha1.CacheVolume {
	var out []*v1alpha1.CacheVolume
	for i := range volumes {
		v := &volumes[i]
		at := v.Status.AttachedNode
		if at != "" && at != node && !v.Status.FlushAttached() && v.Spec.HasReplica(node) {
			out = append(out, v)
		}
	}
	return out
}

// withoutPod returns the dirty volumes that no pod has and that have a current copy on the node.
func withoutPod(volumes []v1alpha1.CacheVolume, node string) []*v1alpha1.CacheVolume {
	var out []*v1alpha1.CacheVolume
	for i := range volumes {
		if v := &volumes[i]; v.WithoutPod() && v.Spec.HasReplica(node) && !v.Status.IsOutdated(node) {
			out = append(out, v)
		}
	}
	return out
}

func printSecondCopies(c *console.Console, of []*v1alpha1.CacheVolume, spec v1alpha1.CacheFlushSpec) {
	count, have, their, they := fmt.Sprintf("%d volumes", len(of)), "have", "their", "they write"
	if len(of) == 1 {
		count, have, their, they = "1 volume", "has", "its", "it writes"
	}
	switch {
	case len(of) == 0:
	case spec.MoveSecondCopies:
		c.Printf("%s attached elsewhere %s %s second copy there: %s through to Ceph until another host of the group has a current one\n",
			count, have, their, they)
	case spec.SecondCopies:
		c.Printf("%s attached elsewhere %s %s second copy there: %s through to Ceph until node %s is uncordoned and that copy is current\n",
			count, have, their, they, spec.Node)
	default:
		c.Printf("%s %s one copy until %s is back\n", count, have, spec.Node)
	}
}

// followOthers waits until the records say that Ceph has everything of the volumes that have a copy on the
// node and are not attached to it: those that no node has and, if that was asked for, those that have their
// second copy there. A volume may have come there after the CacheFlush was done with those it knew, and an
// older csi-controller looks at attached ones only. unprotected means that second copies there are not
// waited for, and Ceph does not have all their data.
func followOthers(
	ctx context.Context, c *console.Console, api client.Reader, drain *v1alpha1.CacheFlush, timeout time.Duration,
) (unprotected bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, max(timeout, console.PollInterval))
	defer cancel()
	said, node := "", drain.Spec.Node
	err = console.Poll(ctx, console.PollInterval/2, func() (bool, error) {
		volumes := &v1alpha1.CacheVolumeList{}
		if err := api.List(ctx, volumes); err != nil {
			return false, err
		}
		all, left := secondCopies(volumes.Items, node), withoutPod(volumes.Items, node)
		open := slices.DeleteFunc(slices.Clone(all), authority.InCeph)
		unprotected = !drain.Spec.SecondCopies && len(open) > 0
		if !drain.Spec.SecondCopies {
			all, open = nil, nil
		}
		moving, stuck := moves(volumes.Items, drain)
		if says := others(node, all, open, left) + moved(node, moving, stuck); says != said {
			c.Printf("%s", says)
			said = says
		}
		return len(open)+len(left)+len(moving) == 0, nil
	}, func() error { return flush.NotFinished(ctx, drain.Name, timeout) })
	return unprotected, err
}

// others says how far the volumes are that are not attached to the node. open are those of all that are not
// in Ceph yet, and left those that no node has.
func others(node string, all, open, left []*v1alpha1.CacheVolume) string {
	var says string
	switch {
	case len(open) > 0:
		says = fmt.Sprintf("volumes with their second copy on node %s: %d of %d are not in Ceph yet, such as %s\n",
			node, len(open), len(all), open[0].Name)
	case len(all) > 0:
		says = fmt.Sprintf("volumes with their second copy on node %s: all %d write through to Ceph, which has everything\n",
			node, len(all))
	}
	switch len(left) {
	case 0:
	case 1:
		says += fmt.Sprintf("1 volume that no node has is not in Ceph yet: %s\n", left[0].Name)
	default:
		says += fmt.Sprintf("%d volumes that no node has are not in Ceph yet, such as %s\n", len(left), left[0].Name)
	}
	return says
}
