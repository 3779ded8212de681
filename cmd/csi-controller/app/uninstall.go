package app

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/readonly"
	"github.com/escache/escache-csi/internal/shortlist"
)

// newCheckUninstall returns the command that fails while there are volumes, snapshots, or NodeGroups
// that only csi-controller can let go. When there are no volumes any more, it deletes the CacheFlushes. The chart runs
// it before it removes the driver that they need.
func newCheckUninstall(o *Options) *cobra.Command {
	return &cobra.Command{
		Use:   "check-uninstall",
		Short: "Fail while there are volumes, snapshots or NodeGroups whose removal needs the driver; delete CacheFlushes",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			kube, err := newKubeClient(o)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(c.Context(), time.Minute)
			defer cancel()
			return prepareUninstall(ctx, kube, time.Second)
		},
	}
}

// prepareUninstall returns nil once nothing is left that only csi-controller could remove.
func prepareUninstall(ctx context.Context, kube client.Client, every time.Duration) error {
	if err := checkUninstall(ctx, kube); err != nil {
		return err
	}
	if err := deleteFlushes(ctx, kube, every); err != nil {
		return err
	}
	return waitForGroups(ctx, kube, every)
}

func checkUninstall(ctx context.Context, kube client.Reader) error {
	all := &v1alpha1.CacheVolumeList{}
	if err := kube.List(ctx, all); err != nil {
		return fmt.Errorf("list CacheVolumes: %w", err)
	}
	if len(all.Items) == 0 {
		return errors.Join(checkReadOnly(ctx, kube), checkSnapshots(ctx, kube))
	}
	var names []string
	for _, v := range all.Items {
		names = append(names, v.Name)
	}
	return fmt.Errorf("%d volumes are left (%s): delete their PersistentVolumeClaims, or give the volumes up and keep their images with "+
		"`kubectl escache release --volume NAME`, and uninstall again", len(names), first(names))
}

// checkReadOnly fails while there are read-only volumes.
func checkReadOnly(ctx context.Context, kube client.Reader) error {
	all, err := readonly.List(ctx, kube)
	if err != nil || len(all.Items) == 0 {
		return err
	}
	var names []string
	for _, v := range all.Items {
		names = append(names, v.Name)
	}
	return fmt.Errorf("%d read-only volumes are left (%s): delete their PersistentVolumeClaims, and uninstall again",
		len(names), first(names))
}

// checkSnapshots fails while there are snapshots: nobody else removes them and the images of deleted
// volumes that stay for them.
func checkSnapshots(ctx context.Context, kube client.Reader) error {
	all := &v1alpha1.CacheSnapshotList{}
	if err := kube.List(ctx, all); err != nil {
		return fmt.Errorf("list CacheSnapshots: %w", err)
	}
	if len(all.Items) == 0 {
		return nil
	}
	var names []string
	for _, s := range all.Items {
		names = append(names, s.Name)
	}
	return fmt.Errorf("%d snapshots of deleted volumes are left (%s), and with them the volumes' images: delete the VolumeSnapshots, and "+
		"the VolumeSnapshotContents that were retained, and uninstall again", len(names), first(names))
}

// first returns the first names of a list.
func first(names []string) string {
	slices.Sort(names)
	return shortlist.Of(names)
}

// deleteFlushes deletes all CacheFlushes, and waits until csi-controller has taken its finalizer off them. Each has it,
// also one that is over, and without volumes none has anything left to do. A CacheFlush that stays would keep its kind
// from being deleted once csi-controller is gone.
func deleteFlushes(ctx context.Context, kube client.Client, every time.Duration) error {
	for {
		all := &v1alpha1.CacheFlushList{}
		if err := kube.List(ctx, all); err != nil {
			return fmt.Errorf("list CacheFlushes: %w", err)
		}
		if len(all.Items) == 0 {
			return nil
		}
		var names []string
		for i := range all.Items {
			f := &all.Items[i]
			names = append(names, f.Name)
			if !f.DeletionTimestamp.IsZero() {
				continue
			}
			if err := client.IgnoreNotFound(kube.Delete(ctx, f)); err != nil {
				return fmt.Errorf("delete CacheFlush %s: %w", f.Name, err)
			}
		}
		select {
		case <-ctx.Done():
			slices.Sort(names)
			return fmt.Errorf("csi-controller has not let go of %d CacheFlushes (%s), although there are no volumes: "+
				"check that csi-controller runs, and uninstall again; if it cannot run any more, for each: "+takeFinalizers,
				len(names), first(names), "cacheflush", names[0])
		case <-time.After(every):
		}
	}
}

// takeFinalizers is the command that takes the finalizers off an object, which has a kind and a name.
const takeFinalizers = "\"kubectl patch %s %s --type=merge -p '{\"metadata\":{\"finalizers\":null}}'\""

// waitForGroups waits until csi-controller has taken its finalizer off all NodeGroups, which it does
// within seconds after the last volume. With the finalizer, nobody could delete them any more once
// csi-controller is gone. The error says what still keeps a group when the time is up.
func waitForGroups(ctx context.Context, kube client.Reader, every time.Duration) error {
	for {
		all := &v1alpha1.NodeGroupList{}
		if err := kube.List(ctx, all); err != nil {
			return fmt.Errorf("list NodeGroups: %w", err)
		}
		at := slices.IndexFunc(all.Items, func(g v1alpha1.NodeGroup) bool {
			return controllerutil.ContainsFinalizer(&g, v1alpha1.GroupFinalizer)
		})
		if at < 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return stillKept(&all.Items[at])
		case <-time.After(every):
		}
	}
}

func stillKept(g *v1alpha1.NodeGroup) error {
	if n := len(g.Status.StaleReplicas); n > 0 {
		var hosts []string
		for _, r := range g.Status.StaleReplicas {
			hosts = append(hosts, r.Node)
		}
		slices.Sort(hosts)
		return fmt.Errorf("csi-controller keeps NodeGroup %s, because %d replicas wait to be removed on %s: bring these hosts back, and "+
			"uninstall again; if one will never be back, delete its Node", g.Name, n, strings.Join(slices.Compact(hosts), ", "))
	}
	return fmt.Errorf("csi-controller has not let go of NodeGroup %s, although there are no volumes: check that csi-controller runs, and "+
		"uninstall again; if it cannot run any more: "+takeFinalizers, g.Name, "nodegroup", g.Name)
}
