package plugin

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
)

// evacuation returns the name of the CacheFlush that drains a node.
func evacuation(node string) string { return "evacuate-" + node }

func (c *cli) evacuate() *cobra.Command {
	var wait bool
	var timeout time.Duration
	command := &cobra.Command{
		Use:   "evacuate NODE",
		Short: "Prepare a host for kubectl drain: place nothing new there, and keep its caches clean",
		Long: "Prepare a host for kubectl drain: the driver places no new replicas there, flushes its caches to Ceph, and writes\n" +
			"through to Ceph until kubectl escache uncordon. Pods keep running. You may repeat the command.",
		Example: "  kubectl escache evacuate n1 --wait && kubectl drain n1 --ignore-daemonsets --delete-emptydir-data",
		Args:    oneArg("NODE"),
		RunE: func(command *cobra.Command, args []string) error {
			return c.runEvacuate(command.Context(), args[0], wait, timeout)
		},
	}
	command.Flags().BoolVar(&wait, "wait", false, "wait until everything is in Ceph, and show progress")
	command.Flags().DurationVar(&timeout, "timeout", time.Hour, "stop waiting after this time; the evacuation goes on")
	return command
}

func (c *cli) runEvacuate(ctx context.Context, node string, wait bool, timeout time.Duration) error {
	api, err := c.connect()
	if err != nil {
		return err
	}
	if err := cordon(ctx, api, node, true); err != nil {
		return err
	}
	c.printf("node %s is cordoned: no new replicas are placed there\n", node)
	flush := &v1alpha1.CacheFlush{
		ObjectMeta: metav1.ObjectMeta{Name: evacuation(node)},
		Spec:       v1alpha1.CacheFlushSpec{Node: node, Mode: v1alpha1.FlushModeDrain},
	}
	if err := api.Create(ctx, flush); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	if !wait {
		c.printf("cacheflush.%s/%s drains its volumes; once kubectl escache status says Drained, kubectl drain %s is quick\n",
			v1alpha1.GroupName, flush.Name, node)
		return nil
	}
	if err := c.follow(ctx, api, flush.Name, timeout); err != nil {
		return err
	}
	c.printf("everything on node %s is in Ceph, and stays so: kubectl drain %s need not wait for caches\n", node, node)
	return nil
}

func (c *cli) uncordon() *cobra.Command {
	var timeout time.Duration
	command := &cobra.Command{
		Use:   "uncordon NODE",
		Short: "End an evacuation: place replicas on the host again, and let its caches write back again",
		Args:  oneArg("NODE"),
		RunE: func(command *cobra.Command, args []string) error {
			return c.runUncordon(command.Context(), args[0], timeout)
		},
	}
	command.Flags().DurationVar(&timeout, "timeout", time.Minute, "stop waiting for write-back after this time; the driver goes on")
	return command
}

func (c *cli) runUncordon(ctx context.Context, node string, timeout time.Duration) error {
	api, err := c.connect()
	if err != nil {
		return err
	}
	if err := cordon(ctx, api, node, false); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	flush := &v1alpha1.CacheFlush{ObjectMeta: metav1.ObjectMeta{Name: evacuation(node)}}
	if err := api.Delete(ctx, flush); client.IgnoreNotFound(err) != nil {
		return err
	}
	for {
		err := api.Get(ctx, client.ObjectKeyFromObject(flush), flush)
		switch {
		case apierrors.IsNotFound(err):
			c.printf("node %s takes new replicas, and its caches write back again\n", node)
			return nil
		case ctx.Err() != nil:
		case err != nil:
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: write-back is not restored everywhere yet; the driver goes on. "+
				"To see what is missing: kubectl get cacheflush %s -o wide", errTimeUp, flush.Name)
		case <-time.After(pollInterval / 4):
		}
	}
}

// cordon adds a node to its group's list of cordoned nodes, or removes it.
func cordon(ctx context.Context, api client.Client, node string, on bool) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		groups := &v1alpha1.NodeGroupList{}
		if err := api.List(ctx, groups); err != nil {
			return err
		}
		at := slices.IndexFunc(groups.Items, func(g v1alpha1.NodeGroup) bool { return slices.Contains(g.Spec.Nodes, node) })
		if at < 0 {
			return fmt.Errorf("node %s is in no NodeGroup; kubectl escache status lists them", node)
		}
		g := &groups.Items[at]
		if slices.Contains(g.Spec.CordonedNodes, node) == on {
			return nil
		}
		if on {
			g.Spec.CordonedNodes = append(g.Spec.CordonedNodes, node)
		} else {
			g.Spec.CordonedNodes = slices.DeleteFunc(g.Spec.CordonedNodes, func(n string) bool { return n == node })
		}
		return api.Update(ctx, g)
	})
}
