// Package move has the commands that bring volumes to other groups: move for one volume, rebalance
// for many.
package move

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/placement"
	"github.com/escache/escache-csi/internal/plugin/claims"
	"github.com/escache/escache-csi/internal/plugin/console"
	"github.com/escache/escache-csi/internal/plugin/failure"
	"github.com/escache/escache-csi/internal/records/trouble"
)

// moveFlags are the flags of move.
type moveFlags struct {
	group        string
	wait, cancel bool
	timeout      time.Duration
}

// Command returns the command move.
func Command(c *console.Console) *cobra.Command {
	var f moveFlags
	command := &cobra.Command{
		Use:   "move VOLUME --group GROUP",
		Short: "Move a volume to another group, once it is detached",
		Long: "Move a volume to another group. No data is copied: the cache is written back to Ceph, and the next attachment creates\n" +
			"replicas in the new group. An attached volume moves when it is detached. To have it move now, stop its pod, wait, and\n" +
			"start it again: a pod that is replaced at once takes the volume again before it can move.\n\n" +
			"Kubernetes does not let a PersistentVolume change the hosts that it allows. So csi-controller re-creates it, with the\n" +
			"same name and for the same claim. The claim stays bound, but it may be shown as Lost for a moment.",
		Example: "  kubectl escache move pvc-0a1b --group rack2 --wait\n  kubectl escache move pvc-0a1b --cancel",
		Args:    console.OneArg("VOLUME"),
		RunE: func(command *cobra.Command, args []string) error {
			if (f.group == "") == !f.cancel {
				return fmt.Errorf("%w: say where to with --group, or --cancel", failure.ErrUsage)
			}
			api, err := c.Connect()
			if err != nil {
				return err
			}
			return runMove(command.Context(), c, api, args[0], f)
		},
	}
	flags := command.Flags()
	flags.StringVar(&f.group, "group", "", "the NodeGroup that is to have the volume")
	flags.BoolVar(&f.wait, "wait", false, "wait until the volume is there")
	flags.BoolVar(&f.cancel, "cancel", false, "leave the volume where it is: cancel a move that still waits")
	flags.DurationVar(&f.timeout, "timeout", 10*time.Minute, "stop waiting after this time; the move goes on")
	return command
}

func runMove(ctx context.Context, c *console.Console, api client.Client, name string, f moveFlags) error {
	v, err := claims.ReadVolume(ctx, api, name)
	if err != nil {
		return err
	}
	if f.cancel {
		return cancelMove(ctx, c, api, v)
	}
	if v.Spec.Group == f.group && !v.ToMove() {
		c.Printf("volume %s is in group %s already\n", name, f.group)
		return nil
	}
	if err := openGroup(ctx, api, f.group); err != nil {
		return err
	}
	if err := warnOfTies(ctx, c, api, v, f.group); err != nil {
		return err
	}
	if !f.wait {
		if _, err := askMove(ctx, api, name, f.group); err != nil {
			return err
		}
		c.Printf("volume %s goes to group %s when it is detached and written back; kubectl escache explain --volume %s says "+
			"how far it is\n", name, f.group, name)
		return nil
	}
	m := &mover{Console: c, api: api, parallel: 1, patient: true, going: map[string]*going{}}
	m.queue = []placement.Move{{Volume: name, From: v.Spec.Group, To: placement.Placement{Group: f.group}}}
	if err := m.run(ctx, f.timeout); err != nil || m.done > 0 {
		return err
	}
	return fmt.Errorf("volume %s was deleted before it had moved", name)
}

func openGroup(ctx context.Context, api client.Reader, name string) error {
	g := &v1alpha1.NodeGroup{}
	err := api.Get(ctx, client.ObjectKey{Name: name}, g)
	switch {
	case apierrors.IsNotFound(err) && !failure.IsNoResource(err):
		return fmt.Errorf("there is no NodeGroup %s; kubectl escache status lists them", name)
	case err != nil:
		return err
	case g.Closed():
		return fmt.Errorf("group %s is cordoned, or being deleted, and takes nothing new; see kubectl escache uncordon", name)
	}
	return nil
}

// warnOfTies says if the volume's StorageClass places volumes in other groups only.
func warnOfTies(ctx context.Context, c *console.Console, api client.Reader, v *v1alpha1.CacheVolume, group string) error {
	all, err := claims.ReadUses(ctx, api)
	if err != nil {
		return err
	}
	classes, err := readClasses(ctx, api)
	if err != nil {
		return err
	}
	class := all[v.Name].StorageClass
	if groups, tied := classes[class]; tied && !slices.Contains(groups, group) {
		c.Printf("note: StorageClass %s places volumes in these groups only: %s\n", class, strings.Join(groups, ", "))
	}
	return nil
}

var (
	errMoveBegun = errors.New("the move has begun, and goes on until it is done; then the volume can be moved back")
	errMoving    = errors.New("the volume is moving to another group; wait until it is there")
)

// askMove asks for a move. It reports whether nobody had asked for it before.
func askMove(ctx context.Context, api client.Client, volume, group string) (asked bool, err error) {
	err = changeMove(ctx, api, volume, func(v *v1alpha1.CacheVolume) error {
		if m := v.Status.Move; m != nil && m.Group != group {
			return fmt.Errorf("%w: %s", errMoving, m.Group)
		}
		asked = trouble.MovingTo(v) != group
		if asked {
			v.Spec.MoveTo = &v1alpha1.MoveTarget{Group: group}
		}
		return nil
	})
	return asked, err
}

// unaskMove takes the request back, unless the move has begun.
func unaskMove(ctx context.Context, api client.Client, volume string) error {
	return changeMove(ctx, api, volume, func(v *v1alpha1.CacheVolume) error {
		if v.Status.Move != nil {
			return errMoveBegun
		}
		v.Spec.MoveTo = nil
		return nil
	})
}

func changeMove(ctx context.Context, api client.Client, volume string, change func(*v1alpha1.CacheVolume) error) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		v, err := claims.ReadVolume(ctx, api, volume)
		if err != nil {
			return err
		}
		before := v.DeepCopy()
		if err := change(v); err != nil {
			return err
		}
		return api.Patch(ctx, v, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	})
}

func cancelMove(ctx context.Context, c *console.Console, api client.Client, v *v1alpha1.CacheVolume) error {
	if !v.ToMove() {
		return fmt.Errorf("nobody has asked for a move of volume %s", v.Name)
	}
	if err := unaskMove(ctx, api, v.Name); err != nil {
		return err
	}
	c.Printf("volume %s stays in group %s\n", v.Name, v.Spec.Group)
	return nil
}
