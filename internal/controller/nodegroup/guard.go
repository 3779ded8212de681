package nodegroup

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/reservation"
	"github.com/escache/escache-csi/internal/crashpoint"
)

// Guard keeps NodeGroups that have volumes: a group has csi-controller's finalizer from before the
// record of its first volume is written until after that of its last one is gone. It is safe for
// concurrent use.
//
// A group without volumes has no finalizer. So nothing is left that only csi-controller could remove
// when it is uninstalled.
type Guard struct {
	client client.Client
	live   client.Reader
	book   *reservation.Book

	turn chan struct{}   // taken while kept is used, or a group's finalizer changed
	kept map[string]bool // groups that this process knows to have the finalizer
}

// NewGuard returns a Guard. The client writes only while this process leads. The book has every volume
// that is being created.
func NewGuard(c client.Client, live client.Reader, book *reservation.Book) *Guard {
	return &Guard{client: c, live: live, book: book, turn: make(chan struct{}, 1), kept: map[string]bool{}}
}

// Keep puts the finalizer on a group. The caller has taken a place in the group in the book, and
// writes the volume's record only after Keep. It asks Kubernetes for the first volume of a group only.
// The error satisfies apierrors.IsNotFound if there is no such group any more.
func (g *Guard) Keep(ctx context.Context, group string) error {
	if err := g.begin(ctx); err != nil {
		return fmt.Errorf("keep group %s: %w", group, err)
	}
	defer g.end()
	if g.kept[group] {
		return nil
	}
	written, err := g.set(ctx, group)
	if written {
		crashpoint.Reach("nodegroup/kept")
	}
	return err
}

// restore sets the finalizer of a group that has volumes and lacks it: its volumes were made by an older
// version, or somebody has removed it.
func (g *Guard) restore(ctx context.Context, group string) error {
	if err := g.begin(ctx); err != nil {
		return err
	}
	defer g.end()
	written, err := g.set(ctx, group)
	if written {
		crashpoint.Reach("nodegroup/restored")
	}
	return err
}

// set adds the finalizer, and reports whether it was missing. The API server refuses it on a group that is
// being deleted.
func (g *Guard) set(ctx context.Context, group string) (written bool, err error) {
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		is := &v1alpha1.NodeGroup{}
		if err := g.live.Get(ctx, client.ObjectKey{Name: group}, is); err != nil {
			return err
		}
		before := is.DeepCopy()
		written = controllerutil.AddFinalizer(is, v1alpha1.GroupFinalizer)
		if !written {
			return nil
		}
		if !is.DeletionTimestamp.IsZero() {
			return apierrors.NewNotFound(v1alpha1.GroupVersion().WithResource("nodegroups").GroupResource(), group)
		}
		return g.client.Patch(ctx, is, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	})
	if err != nil {
		return false, fmt.Errorf("keep group %s from being deleted while it has volumes: %w", group, err)
	}
	g.kept[group] = true
	return written, nil
}

// release takes the finalizer off a group, unless a volume is in it after all, or it is needed as it is on
// record now. It reports whether it did. The cache of objects may lack a new record: the book has those of
// this process, and the API server those of the leader before.
func (g *Guard) release(ctx context.Context, group string, needed func(*v1alpha1.NodeGroup) bool) (bool, error) {
	if err := g.begin(ctx); err != nil {
		return false, err
	}
	defer g.end()
	if g.book.Has(group) {
		return false, nil
	}
	if has, err := g.hasVolume(ctx, group); has || err != nil {
		return false, err
	}
	is := &v1alpha1.NodeGroup{}
	if err := g.live.Get(ctx, client.ObjectKey{Name: group}, is); err != nil {
		return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	}
	if needed(is) {
		return false, nil
	}
	delete(g.kept, group)
	before := is.DeepCopy()
	if !controllerutil.RemoveFinalizer(is, v1alpha1.GroupFinalizer) {
		return true, nil
	}
	err := g.client.Patch(ctx, is, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	if apierrors.IsConflict(err) {
		return false, nil // the next poll tries again
	}
	if client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("let go of group %s, which has no volumes: %w", group, err)
	}
	crashpoint.Reach("nodegroup/released")
	return true, nil
}

// hasVolume asks the API server itself.
func (g *Guard) hasVolume(ctx context.Context, group string) (bool, error) {
	all := &v1alpha1.CacheVolumeList{}
	for {
		if err := g.live.List(ctx, all, client.Limit(pageSize), client.Continue(all.Continue)); err != nil {
			return false, fmt.Errorf("look for volumes of group %s: %w", group, err)
		}
		for i := range all.Items {
			if slices.Contains(all.Items[i].Groups(), group) {
				return true, nil
			}
		}
		if all.Continue == "" {
			return false, nil
		}
	}
}

// forget is for a group that is gone.
func (g *Guard) forget(ctx context.Context, group string) {
	if g.begin(ctx) == nil {
		delete(g.kept, group)
		g.end()
	}
}

func (g *Guard) begin(ctx context.Context) error {
	select {
	case g.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (g *Guard) end() { <-g.turn }
