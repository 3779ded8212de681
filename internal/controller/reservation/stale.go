package reservation

import "github.com/escache/escache-csi/api/v1alpha1"

// staleSlot is the slot of a replica that waits for its host to come back, to be removed there.
type staleSlot struct {
	node, pool, image string
	port              int32
}

// HoldStale keeps the slots of replicas that were just given up, until ReleaseStale, or until they have been on the list
// that SetGroup gets and are not any more.
func (b *Book) HoldStale(group string, stale []v1alpha1.StaleReplica) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range stale {
		b.hold(group, r, false)
	}
}

// ReleaseStale frees the slot of a stale replica that was just removed, and taken off the group's list. No call of SetGroup
// may have seen it there.
func (b *Book) ReleaseStale(group string, r v1alpha1.StaleReplica) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.releaseStale(group, func(slot staleSlot, _ bool) bool {
		return slot.node == r.Node && slot.pool == r.Pool && slot.image == r.Image
	})
}

func (b *Book) releaseStale(group string, gone func(slot staleSlot, listed bool) bool) {
	for slot, listed := range b.stale[group] {
		if gone(slot, listed) {
			b.numbers(group).release(int(slot.port - b.slots.Ports.First))
			delete(b.stale[group], slot)
		}
	}
}

func (b *Book) hold(group string, r v1alpha1.StaleReplica, listed bool) staleSlot {
	slot := staleSlot{node: r.Node, pool: r.Pool, image: r.Image, port: r.Port}
	if b.stale[group] == nil {
		b.stale[group] = map[staleSlot]bool{}
	}
	if _, held := b.stale[group][slot]; !held {
		b.numbers(group).take(int(slot.port - b.slots.Ports.First))
	}
	b.stale[group][slot] = listed
	return slot
}
