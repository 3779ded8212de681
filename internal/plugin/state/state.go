// Package state reads what the driver has recorded of groups, volumes and flushes, and finds what
// is wrong with it.
package state

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/plugin/claims"
	"github.com/escache/escache-csi/internal/plugin/failure"
	"github.com/escache/escache-csi/internal/plugin/installed"
	"github.com/escache/escache-csi/internal/plugin/paging"
	"github.com/escache/escache-csi/internal/preflight"
	"github.com/escache/escache-csi/internal/records/remedy"
	"github.com/escache/escache-csi/internal/records/trouble"
)

// State is all that the driver has recorded of groups, volumes, read-only volumes and flushes, and
// what Kubernetes knows of them. The four lists are sorted by name.
type State struct {
	Groups    []v1alpha1.NodeGroup
	Volumes   []v1alpha1.CacheVolume
	ReadOnly  []v1alpha1.ReadOnlyVolume
	Flushes   []v1alpha1.CacheFlush
	Uses      claims.Uses
	Waiting   map[string][]trouble.Trouble // pods that wait, by volume
	Workloads installed.Workloads
	Snapshots *int64          // nil if they cannot be counted
	Ends      []preflight.End // of certificates, the first first
	byName    map[string]*v1alpha1.NodeGroup
}

// Read reads everything. The pods that wait are those of a namespace; "" for all.
func Read(ctx context.Context, api client.Reader, namespace string, now time.Time) (*State, error) {
	s := &State{}
	var failed [7]error
	var all errgroup.Group
	for n, read := range []func() error{
		func() (err error) {
			s.Groups, err = paging.All[v1alpha1.NodeGroup](ctx, api, &v1alpha1.NodeGroupList{})
			return err
		},
		func() (err error) {
			s.Volumes, err = paging.All[v1alpha1.CacheVolume](ctx, api, &v1alpha1.CacheVolumeList{})
			return err
		},
		func() (err error) {
			s.Flushes, err = paging.All[v1alpha1.CacheFlush](ctx, api, &v1alpha1.CacheFlushList{})
			return err
		},
		func() (err error) { s.ReadOnly, err = ReadOnlyVolumes(ctx, api); return err },
		func() (err error) { s.Uses, err = claims.ReadUses(ctx, api); return err },
		func() (err error) { s.Workloads, err = installed.Read(ctx, api); return err },
		func() error { s.Snapshots = countSnapshots(ctx, api); return nil },
	} {
		all.Go(func() error { failed[n] = read(); return nil })
	}
	_ = all.Wait()
	if err := cmp.Or(failed[:]...); err != nil { // always the same one, where several are forbidden
		return nil, err
	}
	var err error
	s.Waiting, err = s.Uses.Waiting(ctx, api, namespace, now)
	return s, err
}

// ReadOnlyVolumes reads all read-only volumes, sorted by name. There are none where the API server
// does not know that kind yet, and for a user who may not read them.
func ReadOnlyVolumes(ctx context.Context, api client.Reader) ([]v1alpha1.ReadOnlyVolume, error) {
	all, err := paging.All[v1alpha1.ReadOnlyVolume](ctx, api, &v1alpha1.ReadOnlyVolumeList{})
	if apierrors.IsForbidden(err) || meta.IsNoMatchError(err) || failure.IsNoResource(err) {
		return nil, nil
	}
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

// Group returns a volume's NodeGroup, nil if there is none.
func (s *State) Group(v *v1alpha1.CacheVolume) *v1alpha1.NodeGroup {
	if s.byName == nil {
		s.byName = map[string]*v1alpha1.NodeGroup{}
		for i := range s.Groups {
			s.byName[s.Groups[i].Name] = &s.Groups[i]
		}
	}
	return s.byName[v.Spec.Group]
}

// Troubles returns all that is wrong.
func (s *State) Troubles(now time.Time) []trouble.Trouble {
	how := s.Workloads.Escached()
	all := append(trouble.OfDriver(s.Groups, how, now), ofWorkloads(s.Workloads, how)...)
	all = append(all, ofCertificates(s.Ends, how, now)...)
	for i := range s.Groups {
		all = append(all, trouble.OfGroup(&s.Groups[i], how, now)...)
	}
	for i := range s.Volumes {
		v := &s.Volumes[i]
		all = append(append(all, trouble.OfVolume(v, s.Group(v), how, now)...), s.Waiting[v.Name]...)
	}
	for i := range s.ReadOnly {
		all = append(all, s.Waiting[s.ReadOnly[i].Name]...)
	}
	for i := range s.Flushes {
		all = append(all, trouble.OfFlush(&s.Flushes[i], how)...)
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
