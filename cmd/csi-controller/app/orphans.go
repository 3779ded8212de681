package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/ceph"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/internal/orphans"
	"github.com/escache/escache-csi/internal/rbd"
)

// newOrphans lists orphans. It removes nothing but what a flag names, and that only if it still is one.
func newOrphans(o *Options) *cobra.Command {
	var images, volumes []string
	c := &cobra.Command{
		Use:   "orphans",
		Short: "List images without a CacheVolume and CacheVolumes without a PersistentVolume",
		Long: "Lists images without a CacheVolume and CacheVolumes without a PersistentVolume.\n" +
			"Removing one is an explicit act: name it with a flag, as often as there are ones to remove.\n" +
			"Only images that begin with --image-prefix are looked at.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			search, images_, kube, closing, err := newSearch(o)
			if err != nil {
				return err
			}
			defer closing()
			ctx, cancel := context.WithTimeout(c.Context(), 5*time.Minute)
			defer cancel()
			found, err := search.Find(ctx)
			if err != nil {
				return err
			}
			if len(images)+len(volumes) == 0 {
				return list(c.OutOrStdout(), found)
			}
			return errors.Join(removeImages(ctx, c.OutOrStdout(), images_, found, images),
				removeVolumes(ctx, c.OutOrStdout(), kube, found, volumes))
		},
	}
	c.Flags().StringArrayVar(&images, "remove-image", nil, "remove this orphan image: CLUSTERID/POOL/IMAGE")
	c.Flags().StringArrayVar(&volumes, "remove-volume", nil,
		"let go of this orphan CacheVolume; its image stays, and is listed as an orphan image then")
	return c
}

func newSearch(o *Options) (orphans.Search, *ceph.Images, client.Client, func(), error) {
	config, err := kubernetesConfig(*o)
	if err != nil {
		return orphans.Search{}, nil, nil, nil, err
	}
	scheme, err := newScheme()
	if err != nil {
		return orphans.Search{}, nil, nil, nil, err
	}
	kube, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return orphans.Search{}, nil, nil, nil, err
	}
	clusters := rbd.NewClusters(rbd.Options{Dir: o.CephDir})
	images := ceph.New(clusters, o.CephDir, time.Now)
	search := orphans.Search{Reader: kube, Images: images, Prefix: o.ImagePrefix, Young: youngVolume, Now: time.Now}
	return search, images, kube, clusters.Close, nil
}

func list(out io.Writer, found orphans.Found) error {
	if len(found.Images)+len(found.Volumes) == 0 {
		_, err := fmt.Fprintln(out, "no orphans")
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "KIND\tNAME\tCLAIM\tSINCE")
	for _, i := range found.Images {
		_, _ = fmt.Fprintf(w, "image\t%s\t\t\n", i)
	}
	for _, v := range found.Volumes {
		_, _ = fmt.Fprintf(w, "volume\t%s\t%s\t%s\n", v.Name, v.Claim, v.Since.Format(time.RFC3339))
	}
	return w.Flush()
}

func removeImages(ctx context.Context, out io.Writer, images *ceph.Images, found orphans.Found, names []string) error {
	for _, name := range names {
		at := slices.IndexFunc(found.Images, func(i orphans.Image) bool { return i.String() == name })
		if at < 0 {
			return fmt.Errorf("image %s is not an orphan; run without flags to see which are", name)
		}
		i := found.Images[at]
		err := images.Delete(ctx, volumes.ImageRef{ClusterID: i.ClusterID, Pool: i.Pool.Pool, Image: i.Image})
		if err != nil {
			return fmt.Errorf("remove image %s: %w", name, err)
		}
		_, _ = fmt.Fprintf(out, "image %s is in the pool's trash, which the running csi-controller empties\n", name)
	}
	return nil
}

func removeVolumes(ctx context.Context, out io.Writer, kube client.Client, found orphans.Found, names []string) error {
	for _, name := range names {
		if !slices.ContainsFunc(found.Volumes, func(v orphans.Volume) bool { return v.Name == name }) {
			return fmt.Errorf("volume %s is not an orphan; run without flags to see which are", name)
		}
		v := &v1alpha1.CacheVolume{}
		if err := kube.Get(ctx, client.ObjectKey{Name: name}, v); err != nil {
			return fmt.Errorf("read volume %s: %w", name, err)
		}
		if v.Status.AttachedNode != "" || v.Status.Authority == v1alpha1.AuthorityCache {
			return fmt.Errorf("volume %s is attached to node %q or may have dirty data; detach and flush it first",
				name, v.Status.AttachedNode)
		}
		if v.Status.Epoch > 0 {
			return fmt.Errorf("volume %s may have replicas on %v; make a PersistentVolume for it and delete that, which removes everything",
				name, v.Spec.Replicas)
		}
		if err := kube.Delete(ctx, v, client.Preconditions{UID: &v.UID, ResourceVersion: &v.ResourceVersion}); err != nil {
			return fmt.Errorf("remove volume %s: %w", name, err)
		}
		patch := fmt.Appendf(nil, `{"metadata":{"uid":%q,"finalizers":null}}`, v.UID)
		if err := kube.Patch(ctx, v, client.RawPatch(types.MergePatchType, patch)); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("remove volume %s: %w", name, err)
		}
		_, _ = fmt.Fprintf(out, "volume %s is removed\n", name)
	}
	return nil
}
