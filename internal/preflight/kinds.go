package preflight

import (
	"context"
	"reflect"
	"strings"

	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/checklist"
	"github.com/escache/escache-csi/internal/shortlist"
)

// kinds are those of this API, by the name of their CRD.
var kinds = []struct {
	name string
	of   reflect.Type
}{
	{"nodegroups", reflect.TypeFor[v1alpha1.NodeGroup]()},
	{"cachevolumes", reflect.TypeFor[v1alpha1.CacheVolume]()},
	{"readonlyvolumes", reflect.TypeFor[v1alpha1.ReadOnlyVolume]()},
	{"cachesnapshots", reflect.TypeFor[v1alpha1.CacheSnapshot]()},
	{"cacheflushes", reflect.TypeFor[v1alpha1.CacheFlush]()},
	{"cachediscards", reflect.TypeFor[v1alpha1.CacheDiscard]()},
	{"cacheadoptions", reflect.TypeFor[v1alpha1.CacheAdoption]()},
}

// kinds checks that the CRDs are there, and that they are no older than this program: Helm does not
// upgrade them, and the API server drops fields that they do not have.
func (c *Cluster) kinds(ctx context.Context) []checklist.Result {
	var wrong []checklist.Result
	for _, kind := range kinds {
		name := kind.name + "." + v1alpha1.GroupName
		crd, err := c.definition(ctx, name)
		what := "CRD " + kind.name
		switch {
		case apierrors.IsNotFound(err):
			wrong = append(wrong, checklist.Badf(checklist.Failed, crdRemedy, "there is no %s", name).Of(what))
			continue
		case err != nil:
			return []checklist.Result{unread(err)}
		}
		at, why := served(crd, v1alpha1.GroupVersion().Version)
		if why != "" {
			wrong = append(wrong, checklist.Badf(checklist.Failed, crdRemedy, "%s", why).Of(what))
			continue
		}
		if missing := missingFields(at, kind.of, ""); len(missing) > 0 {
			wrong = append(wrong, checklist.Badf(checklist.Failed, crdRemedy, "older than this program: it lacks %s",
				shortlist.Of(missing)).Of(what))
		}
	}
	if len(wrong) > 0 {
		return wrong
	}
	return []checklist.Result{checklist.Goodf("%d of %s/%s, with every field that this program knows", len(kinds), v1alpha1.GroupName,
		v1alpha1.GroupVersion().Version)}
}

func (c *Cluster) definition(ctx context.Context, name string) (*unstructured.Unstructured, error) {
	crd := &unstructured.Unstructured{}
	crd.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"})
	err := c.API.Get(ctx, client.ObjectKey{Name: name}, crd)
	return crd, err
}

// served returns the schema of a version of a CRD, or why the API server does not serve it.
func served(crd *unstructured.Unstructured, version string) (at map[string]any, why string) {
	versions, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
	for _, v := range versions {
		v, _ := v.(map[string]any)
		if v["name"] != version || v["served"] != true {
			continue
		}
		conditions, _, _ := unstructured.NestedSlice(crd.Object, "status", "conditions")
		for _, c := range conditions {
			if c, _ := c.(map[string]any); c["type"] == "Established" && c["status"] == "True" {
				at, _, _ = unstructured.NestedMap(v, "schema", "openAPIV3Schema")
				return at, ""
			}
		}
		return nil, "the API server has not taken it: its condition Established is not True"
	}
	return nil, "it does not serve version " + version
}

// missingFields returns the fields of a type that a schema does not have, as paths.
func missingFields(in map[string]any, of reflect.Type, path string) []string {
	for of.Kind() == reflect.Pointer {
		of = of.Elem()
	}
	if of.Kind() == reflect.Slice {
		items, _ := in["items"].(map[string]any)
		return missingFields(items, of.Elem(), path+"[]")
	}
	if of.Kind() != reflect.Struct || of.PkgPath() != reflect.TypeFor[v1alpha1.NodeGroup]().PkgPath() {
		return nil // Kubernetes' own types are what they are
	}
	properties, _ := in["properties"].(map[string]any)
	var missing []string
	for field := range of.Fields() {
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch {
		case name == "-", name == "metadata":
		case name == "" && strings.Contains(options, "inline"):
			missing = append(missing, missingFields(in, field.Type, path)...)
		default:
			below, found := properties[name].(map[string]any)
			deeper := strings.TrimPrefix(path+"."+name, ".")
			if !found {
				missing = append(missing, deeper)
				continue
			}
			missing = append(missing, missingFields(below, field.Type, deeper)...)
		}
	}
	return missing
}

func (c *Cluster) driver(ctx context.Context) checklist.Result {
	err := c.API.Get(ctx, client.ObjectKey{Name: v1alpha1.DriverName}, &storagev1.CSIDriver{})
	switch {
	case apierrors.IsNotFound(err):
		return checklist.Badf(checklist.Failed, installRemedy, "there is no CSIDriver %s: the chart is not installed", v1alpha1.DriverName)
	case err != nil:
		return unread(err)
	}
	return checklist.Goodf("%s", v1alpha1.DriverName)
}

// snapshotKinds are the CRDs that the snapshot-controller's project has.
var snapshotKinds = []string{"volumesnapshots", "volumesnapshotcontents", "volumesnapshotclasses"}

// groupSnapshotKinds are those for snapshots of several volumes. Without them csi-snapshotter, if it is
// to take such, takes none at all.
var groupSnapshotKinds = []string{"volumegroupsnapshots", "volumegroupsnapshotcontents", "volumegroupsnapshotclasses"}

const (
	snapshotGroup      = "snapshot.storage.k8s.io"
	groupSnapshotGroup = "groupsnapshot.storage.k8s.io"
)

// snapshotAPI is kinds that the cluster has to serve if a value of the chart is true.
type snapshotAPI struct {
	group string
	kinds []string
	value string
}

// serves checks that the cluster serves all kinds of an API.
func (c *Cluster) serves(ctx context.Context, api snapshotAPI) (result checklist.Result, ok bool) {
	for _, name := range api.kinds {
		crd, err := c.definition(ctx, name+"."+api.group)
		if err != nil && !apierrors.IsNotFound(err) {
			return unread(err), false
		}
		_, why := served(crd, "v1")
		if err != nil || why != "" {
			return checklist.Badf(checklist.Failed, "install the CRDs of "+api.group+" and the snapshot-controller, or set "+
				api.value+": false (docs/snapshots.md)", "on, and the cluster lacks v1 of %s.%s", name, api.group), false
		}
	}
	return result, true
}

// snapshots checks what snapshots need of the cluster, if the driver has them on.
func (c *Cluster) snapshots(ctx context.Context) checklist.Result {
	workloads, err := c.workloads(ctx)
	switch {
	case err != nil:
		return unread(err)
	case !workloads.snapshots():
		return checklist.Goodf("off")
	}
	needs := []snapshotAPI{{snapshotGroup, snapshotKinds, "snapshots.enabled"}}
	if workloads.groupSnapshots() {
		needs = append(needs, snapshotAPI{groupSnapshotGroup, groupSnapshotKinds, "snapshots.groups.enabled"})
	}
	for _, api := range needs {
		if result, ok := c.serves(ctx, api); !ok {
			return result
		}
	}
	all := &unstructured.UnstructuredList{}
	all.SetGroupVersionKind(schema.GroupVersionKind{Group: snapshotGroup, Version: "v1", Kind: "VolumeSnapshotClassList"})
	if err := c.API.List(ctx, all); err != nil {
		return unread(err)
	}
	var classes []string
	for _, class := range all.Items {
		if class.Object["driver"] == v1alpha1.DriverName {
			classes = append(classes, class.GetName())
		}
	}
	if len(classes) == 0 {
		return checklist.Badf(checklist.Warning, "name one in snapshots.classes of the chart's values",
			"on, and no VolumeSnapshotClass is of %s", v1alpha1.DriverName)
	}
	return checklist.Goodf("on, with the VolumeSnapshotClass %s", shortlist.Of(classes))
}
