package plugin

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/plugin/failure"
	"github.com/escache/escache-csi/internal/plugin/installed"
	"github.com/escache/escache-csi/internal/plugin/paging"
	"github.com/escache/escache-csi/internal/preflight"
	"github.com/escache/escache-csi/internal/records/remedy"
	"github.com/escache/escache-csi/internal/records/trouble"
)

// state is all that the driver has recorded of groups, volumes and flushes, and what Kubernetes knows
// of them. The three lists are sorted by name.
type state struct {
	groups    []v1alpha1.NodeGroup
	volumes   []v1alpha1.CacheVolume
	flushes   []v1alpha1.CacheFlush
	uses      uses
	waiting   map[string][]trouble.Trouble // pods that wait, by volume
	workloads installed.Workloads
	snapshots *int64          // nil if they cannot be counted
	ends      []preflight.End // of certificates, the first first
	byName    map[string]*v1alpha1.NodeGroup
}

// readState reads everything. The pods that wait are those of a namespace; "" for all.
func readState(ctx context.Context, api client.Reader, namespace string, now time.Time) (*state, error) {
	s := &state{}
	var failed [6]error
	var all errgroup.Group
	for n, read := range []func() error{
		func() (err error) {
			s.groups, err = readAll[v1alpha1.NodeGroup](ctx, api, &v1alpha1.NodeGroupList{})
			return err
		},
		func() (err error) {
			s.volumes, err = readAll[v1alpha1.CacheVolume](ctx, api, &v1alpha1.CacheVolumeList{})
			return err
		},
		func() (err error) {
			s.flushes, err = readAll[v1alpha1.CacheFlush](ctx, api, &v1alpha1.CacheFlushList{})
			return err
		},
		func() (err error) { s.uses, err = readUses(ctx, api); return err },
		func() (err error) { s.workloads, err = installed.Read(ctx, api); return err },
		func() error { s.snapshots = countSnapshots(ctx, api); return nil },
	} {
		all.Go(func() error { failed[n] = read(); return nil })
	}
	_ = all.Wait()
	if err := cmp.Or(failed[:]...); err != nil { // always the same one, where several are forbidden
		return nil, err
	}
	var err error
	s.waiting, err = s.uses.waiting(ctx, api, namespace, now)
	return s, err
}

// readAll reads all objects of a kind, sorted by name, without what no output shows.
func readAll[T any, P interface {
	*T
	client.Object
}](ctx context.Context, api client.Reader, list client.ObjectList) ([]T, error) {
	var all []T
	err := paging.Each(ctx, api, list, func(o P) error {
		o.SetManagedFields(nil)
		all = append(all, *o)
		return nil
	})
	slices.SortFunc(all, func(a, b T) int { return cmp.Compare(P(&a).GetName(), P(&b).GetName()) })
	return all, err
}

// countSnapshots returns how many CacheSnapshots there are, without reading them; nil if that is not
// known.
func countSnapshots(ctx context.Context, api client.Reader) *int64 {
	some := &v1alpha1.CacheSnapshotList{}
	if err := api.List(ctx, some, client.Limit(1)); err != nil {
		return nil
	}
	n := int64(len(some.Items))
	if left := some.RemainingItemCount; left != nil {
		n += *left
	} else if some.Continue != "" {
		return nil
	}
	return &n
}

// group returns a volume's NodeGroup, nil if there is none.
func (s *state) group(v *v1alpha1.CacheVolume) *v1alpha1.NodeGroup {
	if s.byName == nil {
		s.byName = map[string]*v1alpha1.NodeGroup{}
		for i := range s.groups {
			s.byName[s.groups[i].Name] = &s.groups[i]
		}
	}
	return s.byName[v.Spec.Group]
}

// troubles returns all that is wrong.
func (s *state) troubles(now time.Time) []trouble.Trouble {
	how := s.workloads.Escached()
	all := append(trouble.OfDriver(s.groups, how, now), ofWorkloads(s.workloads, how)...)
	all = append(all, ofCertificates(s.ends, how, now)...)
	for i := range s.groups {
		all = append(all, trouble.OfGroup(&s.groups[i], how, now)...)
	}
	for i := range s.volumes {
		v := &s.volumes[i]
		all = append(append(all, trouble.OfVolume(v, s.group(v), how, now)...), s.waiting[v.Name]...)
	}
	for i := range s.flushes {
		all = append(all, trouble.OfFlush(&s.flushes[i], how)...)
	}
	return all
}

// ofWorkloads tells of pods of the driver that are not there or not ready.
func ofWorkloads(all installed.Workloads, how remedy.Escached) []trouble.Trouble {
	var out []trouble.Trouble
	for _, w := range all {
		if w.Ready < w.Pods {
			how.Namespace = w.Namespace
			out = append(out, trouble.At(trouble.Driver, w.Program(), "", remedy.PodsMissing, fmt.Sprintf("%d of %d pods are ready",
				w.Ready, w.Pods), remedy.Place{}, how))
		}
	}
	return out
}

// volumeOfClaim returns the CacheVolume of a claim.
func volumeOfClaim(ctx context.Context, api client.Reader, namespace, name string) (*v1alpha1.CacheVolume, error) {
	pvc := &corev1.PersistentVolumeClaim{}
	if err := api.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, pvc); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("there is no PersistentVolumeClaim %s in namespace %s; choose another namespace with -n",
				name, namespace)
		}
		return nil, err
	}
	if pvc.Spec.VolumeName == "" {
		return nil, fmt.Errorf("PersistentVolumeClaim %s/%s is not bound yet; kubectl describe shows what it waits for", namespace, name)
	}
	pv := &corev1.PersistentVolume{}
	if err := api.Get(ctx, client.ObjectKey{Name: pvc.Spec.VolumeName}, pv); err != nil {
		return nil, err
	}
	if pv.Spec.CSI == nil || pv.Spec.CSI.Driver != v1alpha1.DriverName {
		return nil, fmt.Errorf("PersistentVolumeClaim %s/%s is not a volume of %s", namespace, name, v1alpha1.DriverName)
	}
	return readVolume(ctx, api, pv.Spec.CSI.VolumeHandle)
}

func readVolume(ctx context.Context, api client.Reader, name string) (*v1alpha1.CacheVolume, error) {
	v := &v1alpha1.CacheVolume{}
	err := api.Get(ctx, client.ObjectKey{Name: name}, v)
	if apierrors.IsNotFound(err) && !failure.IsNoResource(err) {
		return nil, fmt.Errorf("there is no CacheVolume %s; kubectl escache status lists them, and kubectl get readonlyvolumes "+
			"those with ReadOnlyMany", name)
	}
	return v, err
}
