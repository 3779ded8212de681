package overview

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/records/choice"
	"github.com/escache/escache-csi/internal/records/trouble"
)

type volume struct {
	Name, Claim, Group, Host, Truth, Dirty, Graphs string
	Copies                                         []place
	Filled                                         int // percent of the cache that is dirty
	Snapshots                                      int
	Problems                                       []trouble.Trouble
}

// place is a host with a copy of a volume.
type place struct {
	Host    string
	Current bool
}

// volumes shows one page of the volumes, which it may sort.
func (v *view) volumes(all []v1alpha1.CacheVolume, b *board) {
	_ = choice.Sort(all, v.Query.Sort, claimOf) // parse has checked the order
	if v.Query.Sort == "" {
		slices.SortStableFunc(all, func(x, y v1alpha1.CacheVolume) int {
			return worse(b.Faults.Of(trouble.Volume, x.Name), b.Faults.Of(trouble.Volume, y.Name))
		})
	}
	v.Pages = max(1, (len(all)+mostVolumes-1)/mostVolumes)
	v.Page = min(v.Query.Page, v.Pages)
	first, last := (v.Page-1)*mostVolumes, min(v.Page*mostVolumes, len(all))
	v.Shown = "no volumes"
	if len(all) > 0 {
		v.Shown = fmt.Sprintf("volumes %d to %d of %d", first+1, last, len(all))
	}
	rows := all[first:last]
	at := map[string]int{}
	for i := range rows {
		at[rows[i].Name] = i
		v.Volumes = append(v.Volumes, volumeOf(&rows[i], b, v.Grafana))
	}
	for _, t := range b.Troubles {
		if i, shown := at[t.Name]; shown && t.Kind == trouble.Volume {
			v.Volumes[i].Problems = append(v.Volumes[i].Problems, t)
		}
	}
}

func volumeOf(v *v1alpha1.CacheVolume, b *board, dashboard string) volume {
	out := volume{
		Name: v.Name, Claim: claimOf(v), Group: v.Spec.Group, Host: v.Status.AttachedNode, Graphs: graphs(dashboard, v.Name),
		Truth: cmp.Or(string(v.Status.Authority), string(v1alpha1.AuthorityCeph)), Dirty: v1alpha1.HumanBytes(v.Status.DirtyBytes),
		Filled: share(v.Status.DirtyBytes, v.Spec.CacheBytes), Snapshots: b.snapshotsOf[v.Name],
	}
	for _, node := range v.Spec.Replicas {
		out.Copies = append(out.Copies, place{node, !v.Status.IsOutdated(node)})
	}
	return out
}
