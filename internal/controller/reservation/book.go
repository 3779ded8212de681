// Package reservation keeps account of what volumes occupy: cache on two hosts, a port and a minor.
// It is in memory only, rebuilt from CacheVolumes and NodeGroups. A volume that is being created
// counts from its reservation on.
package reservation

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/placement"
)

// ErrNoSlot is returned when a group has no port and minor left. It is a placement.ErrNoFit: another group may have room.
var ErrNoSlot = fmt.Errorf("no port and minor left: %w", placement.ErrNoFit)

// Range is the numbers from First to Last, both included.
type Range struct{ First, Last int32 }

// Slots are the ports and minors for the volumes of a group. The n-th port goes with the n-th
// minor, so each volume takes one slot.
type Slots struct {
	Ports  Range
	Minors Range
}

// Validate returns an error if a range cannot be used.
func (s Slots) Validate() error {
	if s.Ports.First < 1024 || s.Ports.Last > 65535 || s.Ports.Last < s.Ports.First {
		return fmt.Errorf("ports %d-%d are not a range within 1024-65535", s.Ports.First, s.Ports.Last)
	}
	if s.Minors.First < 0 || s.Minors.Last >= 1<<20 || s.Minors.Last < s.Minors.First {
		return fmt.Errorf("minors %d-%d are not a range within 0-1048575", s.Minors.First, s.Minors.Last)
	}
	return nil
}

func (s Slots) count() int {
	return int(min(s.Ports.Last-s.Ports.First, s.Minors.Last-s.Minors.First)) + 1
}

// Reservation is a volume's place.
type Reservation struct {
	placement.Placement

	Port  int32
	Minor int32
}

// Book reserves places for volumes. It is safe for concurrent use.
type Book struct {
	slots Slots

	mu      sync.Mutex
	ledger  *placement.Ledger
	volumes map[string]entry
	taken   map[string]*numbers                    // by group
	stale   map[string]map[staleSlot]bool          // by group; true: it has been on the group's list
	members map[string]map[string]placement.Member // by group and node, as they were last polled
}

// entry is a volume's place, and the UID of the CacheVolume that records it; empty while the volume
// is being created.
type entry struct {
	Reservation

	object types.UID
	// version is the resourceVersion of the record that gave the place.
	version string
	// pending: it was taken, and is on no record yet.
	pending bool
}

// NewBook returns an empty book. A replica takes the size of the volume's cache on its host; that
// includes escached's header and DRBD's metadata.
func NewBook(slots Slots) *Book {
	return &Book{
		slots:   slots,
		ledger:  placement.NewLedger(placement.New()),
		volumes: map[string]entry{}, taken: map[string]*numbers{}, stale: map[string]map[staleSlot]bool{},
		members: map[string]map[string]placement.Member{},
	}
}

// Reserve finds a place for a volume and takes it, on hosts that have its cache engine. A volume that has
// a place keeps it. The error is placement.ErrNoFit or ErrNoSlot.
func (b *Book) Reserve(volume string, cacheBytes int64, engine v1alpha1.CacheEngine, groups []string) (Reservation, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e, ok := b.volumes[volume]; ok {
		e.object = ""
		b.volumes[volume] = e
		return e.Reservation, nil
	}
	return b.take(placement.Request{Volume: volume, CacheBytes: cacheBytes, Engine: EngineName(engine), Groups: groups})
}

// EngineName is the name of an engine as placement has it: empty for the one that every host has.
func EngineName(engine v1alpha1.CacheEngine) string { return string(engine.Recorded()) }

// take finds a place that is on no record yet, and takes it.
func (b *Book) take(request placement.Request) (Reservation, error) {
	if full := b.full(); len(full) > 0 {
		if len(request.Groups) == 0 {
			for _, usage := range b.ledger.Usage() {
				request.Groups = append(request.Groups, usage.Group)
			}
		}
		asked := request.Groups
		request.Groups = slices.DeleteFunc(slices.Clone(asked), func(group string) bool { return slices.Contains(full, group) })
		if len(request.Groups) == 0 {
			return Reservation{}, fmt.Errorf("all %d ports and minors of group %s are used; widen both ranges, in the controller and on "+
				"its hosts: %w", b.slots.count(), strings.Join(asked, ", "), ErrNoSlot)
		}
	}
	p, err := b.ledger.Reserve(request)
	if err != nil {
		return Reservation{}, err
	}
	slot, _ := b.numbers(p.Group).lowestFree(b.slots.count())
	r := Reservation{Placement: p, Port: b.slots.Ports.First + int32(slot), Minor: b.slots.Minors.First + int32(slot)}
	b.enter(request.Volume, entry{Reservation: r, pending: true})
	return r, nil
}

// full are the groups without a free slot.
func (b *Book) full() (groups []string) {
	for group, numbers := range b.taken {
		if _, free := numbers.lowestFree(b.slots.count()); !free {
			groups = append(groups, group)
		}
	}
	return groups
}

// Around finds a new pair of hosts in the volume's group for a cache of that many bytes, with node as the
// primary and none of those without as its partner, and takes it. The error is placement.ErrNoFit.
func (b *Book) Around(v *v1alpha1.CacheVolume, node string, cacheBytes int64, without ...string) (placement.Placement, error) {
	r := around(v, node)
	r.CacheBytes, r.Without = cacheBytes, without
	return b.move(v, r)
}

// Grow keeps room for a larger cache where the volume is, until the record says otherwise. The error is
// placement.ErrNoFit if no two hosts of the group have room for it.
func (b *Book) Grow(v *v1alpha1.CacheVolume, cacheBytes int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.observe(v)
	return b.ledger.Grow(placement.Request{
		Volume: v.Name, CacheBytes: cacheBytes, Engine: EngineName(v.Spec.Engine()), Groups: []string{v.Spec.Group},
	})
}

// Pair takes these two hosts of the volume's group as its new pair. The error is placement.ErrNoFit.
func (b *Book) Pair(v *v1alpha1.CacheVolume, node, partner string) (placement.Placement, error) {
	r := around(v, node)
	r.Partner = partner
	return b.move(v, r)
}

// Partners returns the hosts of the volume's group that can be the partner of node, without the given
// ones, the least loaded first. It takes nothing. The error is placement.ErrNoFit.
func (b *Book) Partners(v *v1alpha1.CacheVolume, node string, without ...string) ([]string, error) {
	r := around(v, node)
	r.Without = without
	return b.ledger.Partners(r)
}

func around(v *v1alpha1.CacheVolume, node string) placement.Request {
	return placement.Request{
		Volume: v.Name, CacheBytes: v.Spec.CacheBytes, Engine: EngineName(v.Spec.Engine()),
		Groups: []string{v.Spec.Group}, Primary: node, Stays: true,
	}
}

func (b *Book) move(v *v1alpha1.CacheVolume, r placement.Request) (placement.Placement, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p, err := b.ledger.Move(r)
	if err == nil {
		b.enter(v.Name, entry{
			Reservation: Reservation{Placement: p, Port: v.Spec.Port, Minor: v.Spec.Minor}, object: v.UID, version: v.ResourceVersion,
		})
	}
	return p, err
}

// Observe enters the place that a volume's record gives it. The record was just read or written.
func (b *Book) Observe(v *v1alpha1.CacheVolume) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.observe(v)
}

// Saw enters a record that a watch reports. Such a report may be late: the volume may have been
// changed or deleted since, and even created again under its name. So Saw changes nothing that is known
// from a newer source.
func (b *Book) Saw(v *v1alpha1.CacheVolume) {
	b.mu.Lock()
	defer b.mu.Unlock()
	known, ok := b.volumes[v.Name]
	if ok && known.object == v.UID && !older(v.ResourceVersion, known.version) || !ok && v.DeletionTimestamp.IsZero() {
		b.observe(v)
	}
}

// older reports whether one resourceVersion is known to be older than another one.
func older(version, than string) bool {
	order, err := resourceversion.CompareResourceVersion(version, than)
	return err == nil && order < 0
}

// SawGone frees the place of a record that a watch reports as deleted.
func (b *Book) SawGone(v *v1alpha1.CacheVolume) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if known, ok := b.volumes[v.Name]; ok && known.object == v.UID {
		b.free(v.Name)
		b.free(moving(v.Name))
	}
}

func (b *Book) observe(v *v1alpha1.CacheVolume) {
	if len(v.Spec.Replicas) != 2 {
		return // the API server refuses such a record
	}
	p := placement.Placement{Group: v.Spec.Group, Primary: v.Spec.Replicas[0], Partner: v.Spec.Replicas[1]}
	b.ledger.SetVolume(placement.Volume{
		Name: v.Name, Group: p.Group, Primary: p.Primary, Partner: p.Partner,
		CacheBytes: v.Spec.ReservedCacheBytes(), Engine: EngineName(v.Spec.Engine()),
	})
	b.enter(v.Name, entry{
		Reservation: Reservation{Placement: p, Port: v.Spec.Port, Minor: v.Spec.Minor}, object: v.UID, version: v.ResourceVersion,
	})
	b.observeMove(v)
}

// Forget frees a volume's place.
func (b *Book) Forget(volume string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.free(volume)
	b.free(moving(volume))
}

func (b *Book) free(volume string) {
	b.leave(volume)
	b.ledger.Release(volume)
}

// SetGroup enters a group's members and their capacity. It returns placement.ErrNodeTaken if a node
// belongs to another group: nothing is placed on it as a member of this one yet, and all the rest is entered. Stale
// replicas, which wait for their host to come back, keep their slot while the host is a member: nothing is placed on others.
// Their list may have been read before HoldStale: a slot is free once it has been on the list and is not any more.
func (b *Book) SetGroup(g placement.Group, stale []v1alpha1.StaleReplica) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	err := b.ledger.SetGroup(g)
	held := map[staleSlot]bool{}
	for _, r := range stale {
		held[b.hold(g.Name, r, true)] = slices.ContainsFunc(g.Members, func(m placement.Member) bool { return m.Name == r.Node })
	}
	b.releaseStale(g.Name, func(slot staleSlot, was bool) bool { return was && !held[slot] })
	b.members[g.Name] = map[string]placement.Member{}
	for _, m := range g.Members {
		b.members[g.Name][m.Name] = m
	}
	return err
}

// Ready reports whether the node was ready for replicas when it was last polled.
func (b *Book) Ready(group, node string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.members[group][node].Ready
}

// Well reports whether the node answered and was healthy when it was last polled. It may be cordoned.
func (b *Book) Well(group, node string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.members[group][node].Well
}

// Connectable returns the size of the largest cache that can be connected on the node, by what it said
// of its memory when it was last polled. known is false if it has not said so.
func (b *Book) Connectable(group, node string) (bytes int64, known bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.members[group][node]
	if m.ConnectableBytes == nil {
		return 0, false
	}
	return max(0, *m.ConnectableBytes-m.ConnectedBytes), true
}

// RemoveGroup removes a group; its volumes keep their places.
func (b *Book) RemoveGroup(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ledger.RemoveGroup(name)
	delete(b.members, name)
}

// Has reports whether a volume has a place in the group, also one that is being created.
func (b *Book) Has(group string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.volumes {
		if e.Group == group {
			return true
		}
	}
	return false
}

// Usage returns, for each group, what is used and what still fits, sorted by name. Without a free port nothing fits.
func (b *Book) Usage() []placement.Usage {
	all := b.ledger.Usage()
	b.mu.Lock()
	defer b.mu.Unlock()
	full := b.full()
	for i := range all {
		if slices.Contains(full, all[i].Group) {
			all[i].LargestBytes, all[i].LargestOf, all[i].RoomBytes = 0, nil, 0
		}
	}
	return all
}

func (b *Book) enter(volume string, e entry) {
	b.leave(volume)
	b.volumes[volume] = e
	b.numbers(e.Group).take(int(e.Port - b.slots.Ports.First))
}

func (b *Book) leave(volume string) {
	if old, ok := b.volumes[volume]; ok {
		b.numbers(old.Group).release(int(old.Port - b.slots.Ports.First))
		delete(b.volumes, volume)
	}
}

func (b *Book) numbers(group string) *numbers {
	n := b.taken[group]
	if n == nil {
		n = &numbers{holders: map[int]int{}}
		b.taken[group] = n
	}
	return n
}

// numbers counts the holders of each slot of a group. A stale replica and a volume can hold the
// same slot, if the stale replica is the volume's own. Slots outside the range, of an earlier
// configuration, are held like the others.
type numbers struct {
	holders map[int]int
	low     int // no slot below it is free
}

func (n *numbers) take(slot int) { n.holders[slot]++ }

func (n *numbers) release(slot int) {
	if n.holders[slot]--; n.holders[slot] <= 0 {
		delete(n.holders, slot)
		n.low = max(0, min(n.low, slot))
	}
}

func (n *numbers) lowestFree(count int) (int, bool) {
	for ; n.low < count; n.low++ {
		if n.holders[n.low] == 0 {
			return n.low, true
		}
	}
	return 0, false
}
