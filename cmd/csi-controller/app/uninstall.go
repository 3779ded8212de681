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

// namedVolumes bounds how many volumes the refusal names.
const namedVolumes = 5

// newCheckUninstall returns the command that fails while there are volumes. The chart runs it
// before it removes the driver that they need.
func newCheckUninstall(o *Options) *cobra.Command {
	return &cobra.Command{
		Use:   "check-uninstall",
		Short: "Fail if there are CacheVolumes: detaching and removing them needs the driver",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			kube, err := newKubeClient(o)
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
	return fmt.Errorf("%d volumes are left (%s): delete their PersistentVolumeClaims, or give the volumes up and keep their images with "+
		"`kubectl escache release --volume NAME`, and uninstall again", len(all.Items), strings.Join(names, ", "))
}
