package index

import "math/bits"

// table maps blocks to places with open addressing and linear probing. Each slot takes eight bytes.
// Its size need not be a power of two, so that it can grow in small steps.
type table struct {
	slots []slot
	used  int
}

// slot is empty if key is 0; the key is the block plus one.
type slot struct{ key, place uint32 }

const (
	minSlots = 16
	// growth and load keep the memory of a full index below 10 bytes a block: 8 / 0.9 after growth
	// by an eighth has an average of about 9.4.
	maxLoadTenths = 9
	growthEighths = 9
)

// home is where a key would be if it were alone. The multiplication spreads neighbours.
func (t *table) home(key uint32) int {
	hash := key * 0x9e3779b1
	hash ^= hash >> 15
	hash *= 0x85ebca77
	hi, _ := bits.Mul64(uint64(hash)<<32, uint64(len(t.slots)))
	return int(hi)
}

func (t *table) next(i int) int {
	if i++; i == len(t.slots) {
		return 0
	}
	return i
}

// find returns the slot of a key, or the empty one where it would go. The table is never full.
func (t *table) find(key uint32) int {
	i := t.home(key)
	for t.slots[i].key != 0 && t.slots[i].key != key {
		i = t.next(i)
	}
	return i
}

func (t *table) get(key uint32) (place uint32, ok bool) {
	if t.used == 0 {
		return 0, false
	}
	s := t.slots[t.find(key)]
	return s.place, s.key != 0
}

// put reports whether the key is new.
func (t *table) put(key, place uint32) bool {
	if (t.used+1)*10 > len(t.slots)*maxLoadTenths {
		t.resize(max(minSlots, len(t.slots)*growthEighths/8))
	}
	i := t.find(key)
	added := t.slots[i].key == 0
	if added {
		t.used++
	}
	t.slots[i] = slot{key, place}
	return added
}

// remove reports whether the key was there.
func (t *table) remove(key uint32) bool {
	if t.used == 0 {
		return false
	}
	i := t.find(key)
	if t.slots[i].key == 0 {
		return false
	}
	t.used--
	// Whatever was pushed past the hole moves back into it.
	hole := i
	for i = t.next(i); t.slots[i].key != 0; i = t.next(i) {
		if home := t.home(t.slots[i].key); !between(hole, home, i) {
			t.slots[hole], hole = t.slots[i], i
		}
	}
	t.slots[hole] = slot{}
	if len(t.slots) > minSlots && t.used*4 < len(t.slots) {
		t.resize(max(minSlots, t.used*2))
	}
	return true
}

// between reports whether x is after a and not after b, going round.
func between(a, x, b int) bool {
	if a < b {
		return a < x && x <= b
	}
	return a < x || x <= b
}

func (t *table) resize(size int) {
	old := t.slots
	t.slots = make([]slot, size)
	for _, s := range old {
		if s.key != 0 {
			t.slots[t.find(s.key)] = s
		}
	}
}
