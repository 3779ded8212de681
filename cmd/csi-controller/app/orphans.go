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
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/internal/controller/ceph"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/internal/orphans"
	"github.com/escache/escache-csi/internal/rbd"
)

// newOrphans lists orphans, and removes those that a flag names.
func newOrphans(o *Options) *cobra.Command {
	var images, volumes []string
	var unmarked, losses bool
	c := &cobra.Command{
		Use:   "orphans",
		Short: "List images without a record, and records without a PersistentVolume",
		Long: "Lists images without a CacheVolume or ReadOnlyVolume, and CacheVolumes and ReadOnlyVolumes without a PersistentVolume.\n" +
			"Only images whose names begin with --image-prefix are considered. Images of other Kubernetes clusters are counted.\n" +
			"Images that somebody has moved to the trash with rbd are told: csi-controller does not purge them.\n" +
			"Nothing is removed unless a flag names it. Repeat the flag to remove several.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(c.Context(), 5*time.Minute)
			defer cancel()
			search, removal, closing, err := newSearch(ctx, o)
			if err != nil {
				return err
			}
			defer closing()
			removal.AllowUnmarked, removal.AcceptLosses = unmarked, losses
			removal.Found, err = search.Find(ctx)
			if err != nil && !errors.Is(err, orphans.ErrIncomplete) {
				return err
			}
			if len(images)+len(volumes) == 0 {
				return errors.Join(list(c.OutOrStdout(), removal.Found), err)
			}
			return errors.Join(
				err,
				remove(ctx, c.OutOrStdout(), images, removal.Image,
					"image %s is in the pool's trash, which the running csi-controller empties\n"),
				remove(ctx, c.OutOrStdout(), volumes, removal.Volume, "volume %s is removed\n"),
			)
		},
	}
	c.Flags().StringArrayVar(&images, "remove-image", nil, "remove this orphan image: CLUSTERID/POOL/IMAGE")
	c.Flags().BoolVar(&unmarked, "allow-unmarked", false,
		"remove images without a mark, too: an older version made them, perhaps for another Kubernetes cluster with the same prefix")
	c.Flags().BoolVar(&losses, "accept-losses", false,
		"remove images that were used, or of which that is not known, too: the image is lost, and what only caches on hosts have of it")
	c.Flags().StringArrayVar(&volumes, "remove-volume", nil,
		"remove this orphan: a ReadOnlyVolume, or a CacheVolume that was never attached; its image stays, and is listed as an orphan "+
			"image from then on (kubectl escache release gives up any CacheVolume and its image)")
	return c
}

// newSearch returns the search for orphans and what removes them, without the search's result yet.
func newSearch(ctx context.Context, o *Options) (orphans.Search, orphans.Removal, func(), error) {
	kube, err := newKubeClient(o)
	if err != nil {
		return orphans.Search{}, orphans.Removal{}, nil, err
	}
	own, err := kubernetesCluster(ctx, kube)
	if err != nil {
		return orphans.Search{}, orphans.Removal{}, nil, err
	}
	clusters := rbd.NewClusters(rbd.Options{Dir: o.CephDir, Kubernetes: own})
	images := ceph.New(clusters, o.CephDir, time.Now)
	removal := orphans.Removal{Kube: kube, DeleteImage: func(ctx context.Context, i orphans.Image) error {
		return images.Delete(ctx, volumes.ImageRef{ClusterID: i.ClusterID, Pool: i.Pool.Pool, Image: i.Image})
	}}
	search := orphans.Search{
		Reader: kube, Images: images, Trash: images, Kubernetes: own, Prefix: o.ImagePrefix, Young: youngVolume, Now: time.Now,
	}
	return search, removal, clusters.Close, nil
}

// newKubeClient returns a client that reads from the API server itself.
func newKubeClient(o *Options) (client.Client, error) {
	config, err := kubernetesConfig(*o)
	if err != nil {
		return nil, err
	}
	return clientOf(config)
}

func clientOf(config *rest.Config) (client.Client, error) {
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	return client.New(config, client.Options{Scheme: scheme})
}

// remove removes the named ones in turn, up to the first that fails, and prints each that is gone.
func remove(ctx context.Context, out io.Writer, names []string, one func(context.Context, string) error, done string) error {
	for _, name := range names {
		if err := one(ctx, name); err != nil {
			return err
		}
		_, _ = fmt.Fprintf(out, done, name)
	}
	return nil
}

func list(out io.Writer, found orphans.Found) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	if len(found.Images)+len(found.Unmarked)+len(found.Volumes) == 0 {
		_, _ = fmt.Fprintln(w, "no orphans")
	} else {
		_, _ = fmt.Fprintln(w, "KIND\tNAME\tCREATED FOR\tSINCE\tSTATE")
	}
	for _, i := range found.Images {
		_, _ = fmt.Fprintf(w, "image\t%s\t%s\t\t%s\n", i, i.Note.Claim, i.State())
	}
	for _, i := range found.Unmarked {
		_, _ = fmt.Fprintf(w, "unmarked image\t%s\t%s\t\t%s\n", i, i.Note.Claim, i.State())
	}
	for _, v := range found.Volumes {
		_, _ = fmt.Fprintf(w, "volume\t%s\t%s\t%s\t%s\n", v.Name, v.Claim, v.Since.Format(time.RFC3339), v.State())
	}
	if len(found.Unmarked) > 0 {
		_, _ = fmt.Fprintln(w, "\nIt is not known to whom the unmarked images belong: an older version made them, "+
			"perhaps for another Kubernetes cluster.\n"+
			"Make sure that they are this one's before you remove them with --allow-unmarked.")
	}
	if slices.ContainsFunc(slices.Concat(found.Images, found.Unmarked), orphans.Lost.MayLose) {
		_, _ = fmt.Fprintln(w, "\nWith an image that was used, or of which that is not known, data may be lost, "+
			"also what only the caches on its hosts have.\n"+
			"A restore of etcd can lose its record: `kubectl escache adopt --all` makes it again (docs/restore-etcd.md).\n"+
			"If nobody needs the volume, --accept-losses lets --remove-image remove it.")
	}
	for _, k := range found.Kept {
		_, _ = fmt.Fprintf(w, "\nNo orphan: %s.", k.State())
	}
	for _, t := range found.Trashed {
		_, _ = fmt.Fprintf(w, "\nNo orphan: %s.", t.State())
	}
	if len(found.Kept)+len(found.Trashed) > 0 {
		_, _ = fmt.Fprintln(w)
	}
	switch n := len(found.Foreign); n {
	case 0:
	case 1:
		_, _ = fmt.Fprintln(w, "\n1 image belongs to another Kubernetes cluster.")
	default:
		_, _ = fmt.Fprintf(w, "\n%d images belong to other Kubernetes clusters.\n", n)
	}
	return w.Flush()
}
