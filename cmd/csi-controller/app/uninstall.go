package app

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
)

// namedVolumes is how many volumes are named when there are more.
const namedVolumes = 5

// newCheckUninstall fails while there are volumes: the chart runs it before it removes the driver that they need.
func newCheckUninstall(o *Options) *cobra.Command {
	return &cobra.Command{
		Use:   "check-uninstall",
		Short: "Fail while there are CacheVolumes, which need the driver to be detached and removed",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			config, err := kubernetesConfig(*o)
			if err != nil {
				return err
			}
			scheme, err := newScheme()
			if err != nil {
				return err
			}
			kube, err := client.New(config, client.Options{Scheme: scheme})
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(c.Context(), time.Minute)
			defer cancel()
			return checkUninstall(ctx, kube)
		},
	}
}

func checkUninstall(ctx context.Context, kube client.Reader) error {
	all := &v1alpha1.CacheVolumeList{}
	if err := kube.List(ctx, all); err != nil {
		return fmt.Errorf("list CacheVolumes: %w", err)
	}
	if len(all.Items) == 0 {
		return nil
	}
	var names []string
	for _, v := range all.Items {
		names = append(names, v.Name)
	}
	slices.Sort(names)
	if len(names) > namedVolumes {
		names = append(names[:namedVolumes], "…")
	}
	return fmt.Errorf("%d volumes are left (%s): delete their PersistentVolumeClaims, or the orphans that "+
		"`csi-controller orphans` lists, and uninstall again", len(all.Items), strings.Join(names, ", "))
}
