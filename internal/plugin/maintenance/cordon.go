// Package maintenance has the commands for hosts that go down or away, and come back: cordon,
// uncordon, evacuate and replace-host.
package maintenance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/plugin/console"
	"github.com/escache/escache-csi/internal/plugin/failure"
	"github.com/escache/escache-csi/internal/plugin/manifest"
	"github.com/escache/escache-csi/internal/plugin/replacement"
)

// Cordon returns the command cordon.
func Cordon(c *console.Console) *cobra.Command {
	return &cobra.Command{
		Use:   "cordon GROUP|HOST",
		Short: "Place nothing new in a group or on a host; what is there stays and works",
		Long: "Place no new volumes in a group, or no new replicas on a host, until kubectl escache uncordon. What is there stays\n" +
			"and works. To take a host down, use kubectl escache evacuate: it cordons the host, too.\n\n" +
			"If a group and a host have the same name, write group/NAME or host/NAME.",
		Example: "  kubectl escache cordon rack1\n  kubectl escache cordon n1",
		Args:    console.OneArg("GROUP|HOST"),
		RunE: func(command *cobra.Command, args []string) error {
			api, err := c.Connect()
			if err != nil {
				return err
			}
			return runCordon(command.Context(), c, api, args[0])
		},
	}
}

// Uncordon returns the command uncordon.
func Uncordon(c *console.Console) *cobra.Command {
	var timeout time.Duration
	command := &cobra.Command{
		Use:   "uncordon GROUP|HOST",
		Short: "Place volumes in a group, or replicas on a host, again; end the host's evacuation",
		Long: "Place new volumes in a group again, or new replicas on a host. If the host was evacuated, the evacuation ends: its\n" +
			"caches write back again.\n\n" +
			"If a group and a host have the same name, write group/NAME or host/NAME.",
		Example: "  kubectl escache uncordon rack1\n  kubectl escache uncordon n1",
		Args:    console.OneArg("GROUP|HOST"),
		RunE: func(command *cobra.Command, args []string) error {
			api, err := c.Connect()
			if err != nil {
				return err
			}
			return runUncordon(command.Context(), c, api, args[0], timeout)
		},
	}
	command.Flags().DurationVar(&timeout, "timeout", time.Minute, "stop waiting for write-back after this time; the driver goes on")
	return command
}

func runCordon(ctx context.Context, c *console.Console, api client.Client, name string) error {
	group, host, err := setCordoned(ctx, api, name, true)
	switch {
	case err != nil:
		return err
	case host == "":
		c.Printf("group %s is cordoned: no new volumes are placed there, and what is there works on\n", group.Name)
	default:
		c.Printf("node %s is cordoned: no new replicas are placed there, and what is there works on\n", host)
	}
	return nil
}

func runUncordon(ctx context.Context, c *console.Console, api client.Client, name string, timeout time.Duration) error {
	group, host, err := setCordoned(ctx, api, name, false)
	switch {
	case errors.Is(err, errNoGroup):
		return endForeign(ctx, c, api, host, timeout, err)
	case err != nil:
		return err
	case host != "":
		return endEvacuation(ctx, c, api, host, timeout, "takes new replicas, and its caches write back again")
	}
	c.Printf("group %s takes new volumes\n", group.Name)
	for _, node := range group.Spec.CordonedNodes {
		c.Printf("host %s stays cordoned: kubectl escache uncordon %s\n", node, node)
	}
	if by := manifest.ManagedBy(group); by != "" {
		c.Printf("it is managed by %s: if the values or files of that have \"cordoned: true\", take it out there, too\n", by)
	}
	return nil
}

// endForeign ends the evacuation of a host that has left its group since. If there is none, the name is
// wrong, as unknown says.
func endForeign(ctx context.Context, c *console.Console, api client.Client, host string, timeout time.Duration, unknown error) error {
	listed, err := takeOffLists(ctx, api, host)
	if err != nil {
		return err
	}
	err = api.Get(ctx, client.ObjectKey{Name: evacuation(host)}, &v1alpha1.CacheFlush{})
	switch {
	case apierrors.IsNotFound(err) && !listed:
		return unknown
	case client.IgnoreNotFound(err) != nil:
		return err
	}
	return endEvacuation(ctx, c, api, host, timeout, "is in no NodeGroup: its evacuation has ended")
}

// endEvacuation waits until the evacuation of a host is over, and then says what that means. There may
// be none.
func endEvacuation(ctx context.Context, c *console.Console, api client.Client, host string, timeout time.Duration, means string) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	flush := &v1alpha1.CacheFlush{ObjectMeta: metav1.ObjectMeta{Name: evacuation(host)}}
	if err := api.Delete(ctx, flush); client.IgnoreNotFound(err) != nil {
		return err
	}
	said := ""
	return console.Poll(ctx, console.PollInterval/4, func() (bool, error) {
		err := api.Get(ctx, client.ObjectKeyFromObject(flush), flush)
		if apierrors.IsNotFound(err) {
			c.Printf("node %s %s\n", host, means)
			return true, nil
		}
		if err != nil {
			return false, err
		}
		complete := meta.FindStatusCondition(flush.Status.Conditions, v1alpha1.FlushConditionComplete)
		if complete != nil && complete.Reason == "Restoring" && complete.Message != said {
			said = complete.Message
			c.Printf("%s\n", said)
		}
		return false, nil
	}, func() error {
		return fmt.Errorf("%w: write-back is not restored everywhere yet; the driver goes on. "+
			"To see what is missing: kubectl get cacheflush %s -o wide", failure.ErrTimeUp, flush.Name)
	})
}

// setCordoned cordons a group, or a host in its group, or ends that. host is empty if it is a group.
func setCordoned(ctx context.Context, api client.Client, name string, on bool) (group *v1alpha1.NodeGroup, host string, err error) {
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		groups := &v1alpha1.NodeGroupList{}
		if err := api.List(ctx, groups); err != nil {
			return err
		}
		if group, host, err = groupOrHost(groups.Items, name); err != nil {
			return err
		}
		was := group.Spec.Cordoned
		if host != "" {
			was = slices.Contains(group.Spec.CordonedNodes, host)
		}
		if was == on {
			return nil
		}
		before := group.DeepCopy()
		switch {
		case host == "":
			group.Spec.Cordoned = on
		case on:
			group.Spec.CordonedNodes = append(group.Spec.CordonedNodes, host)
		default:
			group.Spec.CordonedNodes = slices.DeleteFunc(group.Spec.CordonedNodes, func(n string) bool { return n == host })
		}
		// The patch has the whole list: it must not undo what somebody else does to it meanwhile.
		return api.Patch(ctx, group, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	})
	return group, host, err
}

// takeOffLists takes a host that is in no group off the lists of cordoned nodes. It reports whether it was
// on one.
func takeOffLists(ctx context.Context, api client.Client, host string) (listed bool, err error) {
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		groups := &v1alpha1.NodeGroupList{}
		if err := api.List(ctx, groups); err != nil {
			return err
		}
		for i := range groups.Items {
			g := &groups.Items[i]
			if !slices.Contains(g.Spec.CordonedNodes, host) {
				continue
			}
			before := g.DeepCopy()
			g.Spec.CordonedNodes = slices.DeleteFunc(g.Spec.CordonedNodes, func(n string) bool { return n == host })
			if err := api.Patch(ctx, g, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
				return err
			}
			listed = true
		}
		return nil
	})
	return listed, err
}

// Kinds that may stand before a name.
const (
	groupKind = "group/"
	hostKind  = "host/"
)

var errNoGroup = errors.New("no NodeGroup; kubectl escache status lists them")

// groupOrHost returns the group of that name, or else the host of that name and its group. The error
// wraps errNoGroup if the name may be that of a host which is in no group; host is its name then.
func groupOrHost(groups []v1alpha1.NodeGroup, arg string) (group *v1alpha1.NodeGroup, host string, err error) {
	kind, name, both := strings.Cut(arg, "/")
	if !both {
		kind, name = "", arg
	}
	at := slices.IndexFunc(groups, func(g v1alpha1.NodeGroup) bool { return g.Name == name })
	of := replacement.Owner(groups, name)
	switch kind {
	case "group", "nodegroup", "nodegroup." + v1alpha1.GroupName:
		if at < 0 {
			return nil, "", fmt.Errorf("there is no NodeGroup %s; kubectl escache status lists them", name)
		}
		return &groups[at], "", nil
	case "host", "node":
		if of == nil {
			return nil, name, fmt.Errorf("node %s is in %w", name, errNoGroup)
		}
		return of, name, nil
	case "":
	default:
		return nil, "", fmt.Errorf("%w: %s is neither %sNAME nor %sNAME", failure.ErrUsage, arg, groupKind, hostKind)
	}
	switch {
	case at >= 0 && of != nil:
		return nil, "", fmt.Errorf("%w: %s is a NodeGroup, and a node of NodeGroup %s: say %s%s or %s%s", failure.ErrUsage, name, of.Name,
			groupKind, name, hostKind, name)
	case at >= 0:
		return &groups[at], "", nil
	case of != nil:
		return of, name, nil
	default:
		return nil, name, fmt.Errorf("there is no NodeGroup %s, and node %s is in %w", name, name, errNoGroup)
	}
}
