//go:build e2e

package operators

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/redundancy"
)

// cable is the network between the hosts.
type cable struct {
	mu   sync.Mutex
	dead map[string]bool // hosts that are off
}

// turnOff ends a host as a power loss does, and turnOn starts it again with the disks that it has then.
func (w *world) turnOff(t *testing.T, node string) {
	t.Helper()
	w.fleet.Hosts[node].Stop()
	w.cable.mu.Lock()
	defer w.cable.mu.Unlock()
	if w.cable.dead == nil {
		w.cable.dead = map[string]bool{}
	}
	w.cable.dead[node] = true
}

func (w *world) turnOn(t *testing.T, node string) {
	t.Helper()
	w.fleet.Hosts[node].Restart(t)
	w.cable.mu.Lock()
	defer w.cable.mu.Unlock()
	delete(w.cable.dead, node)
}

// replicate plays DRBD and csi-node until the test ends: links go up and down with the hosts, copies are current
// as soon as they are linked, and the node with a volume puts on record which copy is not.
func (w *world) replicate(t *testing.T) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			all := &v1alpha1.CacheVolumeList{}
			if err := w.api.List(ctx, all); err == nil {
				for i := range all.Items {
					w.replicateOne(ctx, &all.Items[i])
				}
			}
			time.Sleep(200 * time.Millisecond)
		}
	}()
	t.Cleanup(func() { stop(); <-ended })
}

func (w *world) replicateOne(ctx context.Context, v *v1alpha1.CacheVolume) {
	holder := w.fleet.Hosts[v.Status.AttachedNode]
	if holder == nil {
		return
	}
	partner := authority.Partner(v, holder.Name)
	s := holder.Status(refOf(v))
	if s.Mode == escache.ModeWritethrough {
		holder.Write(refOf(v), 0) // the cache writes back in the background, and nothing becomes dirty
	}
	if s.Device == "" || len(s.Peers) != 1 || s.Peers[0].Name != partner {
		return // it is not connected, or has no such partner yet
	}
	w.cable.mu.Lock()
	linked := !w.cable.dead[partner] && w.fleet.Hosts[partner].Has(refOf(v))
	w.cable.mu.Unlock()
	peer := escache.Peer{Name: partner, ConnectionState: escache.LinkWFConnection, DiskState: escache.DiskUnknown}
	if linked {
		peer.ConnectionState, peer.DiskState = escache.LinkConnected, escache.DiskUpToDate
		if dirty := holder.Status(refOf(v)).DirtyBytes; dirty != nil {
			w.fleet.Hosts[partner].Write(refOf(v), *dirty)
		}
	}
	holder.Change(refOf(v), func(s *escache.VolumeStatus) { s.Peers = []escache.Peer{peer} })
	if linked == v.Status.IsOutdated(partner) && v.Status.Repair == nil && !v.Status.FlushAttached() {
		v.Status.Outdated = slices.DeleteFunc(v.Status.Outdated, func(node string) bool { return node == partner })
		says := metav1.Condition{
			Type: v1alpha1.ConditionRedundant, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonTwoCopies, Message: redundancy.TwoCopies,
		}
		if !linked {
			v.Status.Outdated = append(v.Status.Outdated, partner)
			says.Status, says.Reason, says.Message = metav1.ConditionFalse, v1alpha1.ReasonPeerLost, "no link to "+partner
		}
		meta.SetStatusCondition(&v.Status.Conditions, says)
		_ = w.api.Status().Update(ctx, v) // refused if the record has changed: the next look sees that
	}
}
