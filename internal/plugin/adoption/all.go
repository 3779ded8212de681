package adoption

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/plugin/claims"
	"github.com/escache/escache-csi/internal/plugin/console"
	"github.com/escache/escache-csi/internal/plugin/failure"
)

func (f *options) validateAll(refuse func(format string, args ...any) error) error {
	switch {
	case f.image != "" && f.pool == "":
		return refuse("name the --pool of --image")
	case f.useCopy != "" && f.image == "":
		return refuse("--use-copy is a decision about one volume: name its --pool and --image")
	case f.persistentVolume+f.class+f.group+f.claim != "" || f.formatIfBlank || f.fsTypeWasChosen || f.mode != "Filesystem":
		return refuse("with --all, the images' metadata says what the volumes are: it takes --pool, --image, --cluster-id, " +
			"--from-kubernetes-cluster and --use-copy only")
	case strings.ContainsAny(f.pool+f.image, "/@"):
		return refuse("pool %q and image %q: a name with / or @ is not one of a pool or an image", f.pool, f.image)
	case !slices.Contains([]string{"", "table", "json"}, f.output):
		return refuse("-o %s is none of table and json", f.output)
	}
	return nil
}

// cephPool is a pool to look through.
type cephPool struct{ clusterID, pool string }

// rebuilt is the result for one image, and for what uses its volume.
type rebuilt struct {
	ClusterID string `json:"clusterID"`
	Pool      string `json:"pool"`

	v1alpha1.RebuiltVolume //nolint:embeddedstructfieldcheck // the order is that of the output: the pool comes first

	// Made are the objects that are, or would be, made; Left says what is left to do.
	Made []string `json:"made,omitempty"`
	Left []string `json:"left,omitempty"`
}

// fine reports whether nothing is left to do.
func (r *rebuilt) fine() bool {
	return len(r.Left) == 0 && slices.Contains([]v1alpha1.RebuildOutcome{
		v1alpha1.RebuildProposed, v1alpha1.RebuildDone, v1alpha1.RebuildRecorded,
	}, r.Outcome)
}

// survey is what the hosts and the pools have.
type survey struct {
	Volumes []rebuilt `json:"volumes"`
	// SilentNodes are hosts of NodeGroups that did not answer, OtherPools pools of which hosts have caches
	// and that were not looked through.
	SilentNodes []string `json:"silentNodes,omitempty"`
	OtherPools  []string `json:"otherPools,omitempty"`
}

func runAdoptAll(ctx context.Context, c *console.Console, api client.Client, f options) error {
	pools, err := poolsToSearch(ctx, api, f)
	if err != nil {
		return err
	}
	all := &survey{Volumes: []rebuilt{}}
	var failure error
	for _, p := range pools {
		if failure = searchPool(ctx, api, f, p, all); failure != nil {
			break
		}
	}
	all.OtherPools = slices.DeleteFunc(all.OtherPools, func(pool string) bool {
		return slices.ContainsFunc(pools, func(p cephPool) bool { return p.pool == pool })
	})
	if err := errors.Join(printSurvey(c, all, f), failure); err != nil {
		return err
	}
	left := 0
	for i := range all.Volumes {
		if !all.Volumes[i].fine() {
			left++
		}
	}
	switch {
	case left > 0:
		return fmt.Errorf("%d of %d volumes need something else first, as said above; then run this again", left, len(all.Volumes))
	case len(all.OtherPools) > 0:
		return fmt.Errorf("hosts have caches of images in other pools, too: run this again with --pool for each of %s",
			strings.Join(all.OtherPools, ", "))
	}
	return nil
}

// poolsToSearch returns the pool that is named, or those of all StorageClasses of this driver.
func poolsToSearch(ctx context.Context, api client.Reader, f options) ([]cephPool, error) {
	if f.pool != "" {
		id, err := findCluster(ctx, api, f)
		return []cephPool{{id, f.pool}}, err
	}
	classes := &storagev1.StorageClassList{}
	if err := api.List(ctx, classes); err != nil {
		return nil, err
	}
	var out []cephPool
	for _, class := range classes.Items {
		p := cephPool{class.Parameters["clusterID"], class.Parameters["pool"]}
		if class.Provisioner == v1alpha1.DriverName && (f.clusterID == "" || p.clusterID == f.clusterID) && !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%w: no StorageClass of this driver names a pool; make them first, or name --pool "+
			"and --cluster-id", failure.ErrUsage)
	}
	slices.SortFunc(out, func(a, b cephPool) int {
		return cmp.Or(strings.Compare(a.clusterID, b.clusterID), strings.Compare(a.pool, b.pool))
	})
	return out, nil
}

// searchPool has csi-controller look through a pool, page by page, and makes what uses the volumes.
func searchPool(ctx context.Context, api client.Client, f options, p cephPool, all *survey) error {
	uses, err := claims.ReadUses(ctx, api)
	if err != nil {
		return err
	}
	after := ""
	for {
		page, err := ask(ctx, api, &v1alpha1.CacheAdoption{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "adopt-all-"},
			Spec: v1alpha1.CacheAdoptionSpec{
				ClusterID: p.clusterID, Pool: p.pool, Image: f.image, DryRun: !f.apply,
				Rebuild: &v1alpha1.Rebuild{FromKubernetesCluster: f.fromCluster, UseCopy: f.useCopy, After: after},
			},
		}, f.timeout)
		if err != nil {
			return fmt.Errorf("pool %s: %w", p.pool, err)
		}
		for _, line := range page.Images {
			r := rebuilt{ClusterID: p.clusterID, Pool: p.pool, RebuiltVolume: line}
			if err := makeUse(ctx, api, &r, uses, f.apply); err != nil {
				r.Left = append(r.Left, err.Error())
			}
			all.Volumes = append(all.Volumes, r)
		}
		all.SilentNodes = union(all.SilentNodes, page.SilentNodes)
		all.OtherPools = union(all.OtherPools, page.OtherPools)
		if after = page.Next; after == "" {
			return nil
		}
	}
}

func union(a, b []string) []string {
	out := slices.Concat(a, b)
	slices.Sort(out)
	return slices.Compact(out)
}

func printSurvey(c *console.Console, all *survey, f options) error {
	if f.output == "json" {
		return c.PrintJSON(all)
	}
	row, flush := console.Table(c.Out)
	row("IMAGE", "VOLUME", "CLAIM", "EPOCH", "TRUTH", "REPLICAS", "DIRTY", "RESULT", "MESSAGE")
	for i := range all.Volumes {
		r := &all.Volumes[i]
		dirty := "?"
		if r.DirtyBytes != nil {
			dirty = v1alpha1.HumanBytes(*r.DirtyBytes)
		} else if r.Authority == v1alpha1.AuthorityCeph {
			dirty = "0"
		}
		row(r.Pool+"/"+r.Image, cmp.Or(r.Volume, "-"), cmp.Or(r.Claim, "-"), fmt.Sprint(r.Epoch), cmp.Or(string(r.Authority), "-"),
			cmp.Or(r.copies(), "-"), dirty, string(r.Outcome), cmp.Or(strings.Join(r.remarks(), "; "), "-"))
	}
	if err := flush(); err != nil {
		return err
	}
	if len(all.SilentNodes) > 0 {
		c.Printf("\nThese hosts do not answer: %s. If one of them has a copy that no image's metadata names, that copy is not found.\n",
			strings.Join(all.SilentNodes, ", "))
	}
	if f.fromCluster != "" {
		c.Printf("\nYou say that Kubernetes cluster %s is gone for good. Be sure that its csi-controller does not run any more, and that "+
			"no host of it still runs a pod with one of these volumes: nothing here can see that.\n", f.fromCluster)
	}
	if f.useCopy != "" {
		c.Printf("\nYou say that the copy on %s counts. Be sure that hosts which do not answer are off. What only they have is lost.\n",
			f.useCopy)
	}
	if !f.apply {
		c.Printf("\nNothing was changed. --apply makes the records, PersistentVolumes and claims.\n")
	}
	return nil
}

// copies names the hosts, with a mark on those whose copy does not count.
func (r *rebuilt) copies() string {
	var out []string
	for _, node := range r.Replicas {
		if slices.Contains(r.Outdated, node) {
			node += " (outdated)"
		}
		out = append(out, node)
	}
	return strings.Join(out, ", ")
}

func (r *rebuilt) remarks() []string {
	var out []string
	if r.Message != "" {
		out = append(out, r.Message)
	}
	if len(r.Made) > 0 {
		out = append(out, "with "+strings.Join(r.Made, " and "))
	}
	for _, left := range r.Left {
		out = append(out, "left to do: "+left)
	}
	return out
}
