package nodegroup

import (
	"context"
	"fmt"

	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/reservation"
	"github.com/escache/escache-csi/internal/placement"
)

// pageSize bounds the memory needed to read all volumes.
const pageSize = 500

// Rebuild fills the book with every volume and group. It reads them from the API server itself, so
// that the last writes of the former leader are in it. Groups are as their status says; the first
// poll corrects that.
func Rebuild(ctx context.Context, live client.Reader, book *reservation.Book) error {
	groups := &v1alpha1.NodeGroupList{}
	if err := live.List(ctx, groups); err != nil {
		return fmt.Errorf("read all groups: %w", err)
	}
	owners := Owners(groups.Items)
	for i := range groups.Items {
		g := &groups.Items[i]
		if ended(g) {
			continue
		}
		if err := book.SetGroup(lastKnown(g, owners), g.Status.StaleReplicas); err != nil {
			return fmt.Errorf("take in group %s: %w", g.Name, err)
		}
	}
	volumes := &v1alpha1.CacheVolumeList{}
	for {
		if err := live.List(ctx, volumes, client.Limit(pageSize), client.Continue(volumes.Continue)); err != nil {
			return fmt.Errorf("read all volumes: %w", err)
		}
		for i := range volumes.Items {
			book.Observe(&volumes.Items[i])
		}
		if volumes.Continue == "" {
			return nil
		}
	}
}

func lastKnown(g *v1alpha1.NodeGroup, owners map[string]string) placement.Group {
	out := placement.Group{Name: g.Name, Cordoned: g.Closed()}
	for _, node := range g.Spec.Nodes {
		if owners[node] != g.Name {
			continue
		}
		member := placement.Member{Name: node}
		if last := memberOf(g, node); last != nil {
			member.Ready, member.Well, member.CapacityBytes = last.Ready, last.Ready, last.CacheCapacityBytes
			member.ConnectableBytes, member.ConnectedBytes = last.ConnectableBytes, last.ConnectedBytes
			member.Engines = last.Engines
		}
		out.Members = append(out.Members, member)
	}
	return out
}

// Follow keeps the book up to date when somebody other than the service creates, changes or deletes
// CacheVolumes.
func Follow(ctx context.Context, objects cache.Cache, book *reservation.Book) error {
	informer, err := objects.GetInformer(ctx, &v1alpha1.CacheVolume{})
	if err != nil {
		return fmt.Errorf("watch volumes: %w", err)
	}
	observe := func(o any) {
		if v, ok := o.(*v1alpha1.CacheVolume); ok {
			book.Saw(v)
		}
	}
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    observe,
		UpdateFunc: func(_, o any) { observe(o) },
		DeleteFunc: func(o any) {
			if gone, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
				o = gone.Obj
			}
			if v, ok := o.(*v1alpha1.CacheVolume); ok {
				book.SawGone(v)
			}
		},
	})
	if err != nil {
		return fmt.Errorf("watch volumes: %w", err)
	}
	return nil
}
