package reservation

import (
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/placement"
)

// moving is the name under which a volume holds its place in the group that it goes to. No object of
// Kubernetes has such a name.
func moving(volume string) string { return volume + "/move" }

// Elsewhere finds a place for the volume in another group and takes it, beside the one that the volume
// has. Observe frees it once the record has no move any more, and Stay if the record never got one. The
// error is placement.ErrNoFit or ErrNoSlot.
func (b *Book) Elsewhere(v *v1alpha1.CacheVolume, group string) (Reservation, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.free(moving(v.Name))
	return b.take(placement.Request{
		Volume: moving(v.Name), CacheBytes: v.Spec.ReservedCacheBytes(), Engine: EngineName(v.Spec.Engine()), Groups: []string{group},
	})
}

// Stay frees what Elsewhere has taken.
func (b *Book) Stay(volume string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.free(moving(volume))
}

// observeMove enters the place that the record of a move gives. A place that is not on record yet stays.
func (b *Book) observeMove(v *v1alpha1.CacheVolume) {
	name, m := moving(v.Name), v.Status.Move
	if m == nil || m.Group == v.Spec.Group || len(m.Replicas) != 2 {
		if held, ok := b.volumes[name]; ok && !held.pending {
			b.free(name)
		}
		return
	}
	p := placement.Placement{Group: m.Group, Primary: m.Replicas[0], Partner: m.Replicas[1]}
	b.ledger.SetVolume(placement.Volume{
		Name: name, Group: p.Group, Primary: p.Primary, Partner: p.Partner, CacheBytes: v.Spec.ReservedCacheBytes(),
		Engine: EngineName(v.Spec.Engine()),
	})
	b.enter(name, entry{Reservation: Reservation{Placement: p, Port: m.Port, Minor: m.Minor}, object: v.UID})
}
