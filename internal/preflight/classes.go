package preflight

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/checklist"
	"github.com/escache/escache-csi/internal/controller/csi/storageclass"
	"github.com/escache/escache-csi/internal/shortlist"
)

// classes checks the driver's StorageClasses.
func (c *Cluster) classes(ctx context.Context) []checklist.Result {
	all := &storagev1.StorageClassList{}
	if err := c.API.List(ctx, all); err != nil {
		return []checklist.Result{unread(err)}
	}
	clusters, err := c.cephClusters(ctx)
	if err != nil {
		return []checklist.Result{unread(err)}
	}
	groups := &v1alpha1.NodeGroupList{}
	if err := c.API.List(ctx, groups); err != nil {
		return []checklist.Result{unread(err)}
	}
	var names []string
	for _, g := range groups.Items {
		names = append(names, g.Name)
	}
	var results []checklist.Result
	for _, class := range all.Items {
		if class.Provisioner == v1alpha1.DriverName {
			results = append(results, checkClass(&class, clusters, names).Of("StorageClass "+class.Name))
			results = append(results, secretsNamed(&class)...)
		}
	}
	if len(results) == 0 {
		return []checklist.Result{checklist.Badf(checklist.Warning,
			"set storageClasses in the chart's values, or make one (docs/parameters.md)",
			"none is of %s: no claim can be made", v1alpha1.DriverName)}
	}
	return results
}

// checkClass checks one StorageClass against the Ceph clusters and groups that there are.
func checkClass(class *storagev1.StorageClass, clusters, groups []string) checklist.Result {
	p, err := storageclass.Parse(class.Parameters)
	if err != nil {
		return checklist.Badf(checklist.Failed,
			"correct it (docs/parameters.md); a StorageClass is replaced as a whole: delete it and create it again", "%v", err)
	}
	if len(clusters) > 0 && !slices.Contains(clusters, p.ClusterID) {
		return checklist.Badf(checklist.Failed, "set clusterID to what ceph fsid prints, in the chart's value ceph.clusterID, too",
			"its clusterID is %s, and csi-controller knows %s", p.ClusterID, shortlist.Of(clusters))
	}
	var missing []string
	for _, g := range p.NodeGroups {
		if !slices.Contains(groups, g) {
			missing = append(missing, g)
		}
	}
	switch {
	case len(missing) > 0 && len(missing) == len(p.NodeGroups):
		return checklist.Badf(checklist.Failed, "correct its parameter nodeGroups", "none of its NodeGroups is there: %s",
			shortlist.Of(missing))
	case len(missing) > 0:
		return checklist.Badf(checklist.Warning, "correct its parameter nodeGroups", "these of its NodeGroups are not there: %s",
			shortlist.Of(missing))
	case class.VolumeBindingMode == nil || *class.VolumeBindingMode != storagev1.VolumeBindingWaitForFirstConsumer:
		return checklist.Badf(checklist.Warning, "create it again with volumeBindingMode: WaitForFirstConsumer",
			"pool %s; it places a volume before its "+
				"pod has a node, which may be in another group", p.Pool)
	}
	return checklist.Goodf("pool %s", strings.Join(slices.DeleteFunc([]string{p.Pool, p.DataPool}, func(s string) bool { return s == "" }),
		", data pool "))
}

var fsid = regexp.MustCompile(`(?m)^\s*fsid\s*=\s*(\S+)`)

// cephClusters are those whose ceph.conf the chart has made.
func (c *Cluster) cephClusters(ctx context.Context) ([]string, error) {
	configs := &corev1.ConfigMapList{}
	err := c.API.List(ctx, configs, client.InNamespace(c.Namespace), client.MatchingLabels{labelPartOf: partOf, labelComponent: "ceph"})
	if err != nil {
		return nil, err
	}
	var all []string
	for _, m := range configs.Items {
		if found := fsid.FindStringSubmatch(m.Data["ceph.conf"]); found != nil {
			all = append(all, found[1])
		}
	}
	return all, nil
}

// wants says which keys a Secret must have, and who mounts it.
type wants struct {
	who  string
	keys []string
}

// keysOf are those of Secrets that are mounted whole, by the name of the volume in the chart.
var keysOf = map[string][]string{
	"tls": {"ca.crt", "tls.crt", "tls.key"}, "former": {"tls.crt", "tls.key"}, "authority": {"tls.crt", "tls.key"},
	"page": {"tls.crt", "tls.key"}, "replication": {"secret"},
}

// needs are the Secrets that pods need to start, by name.
func (w workloads) needs() map[string]wants {
	all := map[string]wants{}
	add := func(who, name string, keys []string) {
		keys = slices.Concat(all[name].keys, keys)
		slices.Sort(keys)
		all[name] = wants{cmp.Or(all[name].who, who), slices.Compact(keys)}
	}
	for _, component := range slices.Sorted(maps.Keys(w)) {
		spec := w[component].template.Spec
		for _, v := range spec.Volumes {
			if s := v.Secret; s != nil {
				add(component, s.SecretName, keysIn(s.Items, keysOf[v.Name]))
			}
			if v.Projected == nil {
				continue
			}
			for _, source := range v.Projected.Sources {
				if source.Secret != nil {
					add(component, source.Secret.Name, keysIn(source.Secret.Items, nil))
				}
			}
		}
	}
	return all
}

func keysIn(items []corev1.KeyToPath, otherwise []string) []string {
	if len(items) == 0 {
		return otherwise
	}
	var keys []string
	for _, item := range items {
		keys = append(keys, item.Key)
	}
	return keys
}

// secretsNamed warns of a StorageClass that names Secrets, as those of other drivers do. The driver reads none,
// but CSI's sidecars read those that are named, and fail if one is missing.
func secretsNamed(class *storagev1.StorageClass) []checklist.Result {
	var keys []string
	for _, key := range slices.Sorted(maps.Keys(class.Parameters)) {
		if strings.HasPrefix(key, "csi.storage.k8s.io/") &&
			(strings.HasSuffix(key, "-secret-name") || strings.HasSuffix(key, "-secret-namespace")) {
			keys = append(keys, key)
		}
	}
	if len(keys) == 0 {
		return nil
	}
	return []checklist.Result{checklist.Badf(checklist.Warning, "leave these parameters out: Ceph's keys are in the Secrets of the chart",
		"it names Secrets (%s), which the driver does not use: without them no volume would be made", shortlist.Of(keys)).
		Of("StorageClass " + class.Name)}
}

func (w wants) String() string {
	return fmt.Sprintf("the pods of %s need its %s", w.who, strings.Join(w.keys, ", "))
}
