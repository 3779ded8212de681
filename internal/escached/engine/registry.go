package engine

import (
	"slices"
	"strings"
	"sync"

	"github.com/escache/escache-csi/api/escache"
)

// registry keeps the contents of the tags in memory, so that status needs no LVM command. Only
// escached writes the tags, and it writes each change to the disk first.
type registry struct {
	mu      sync.Mutex
	volumes map[string]volume
}

func newRegistry() *registry { return &registry{volumes: map[string]volume{}} }

func (r *registry) get(name string) (volume, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v, ok := r.volumes[name]
	return v, ok
}

func (r *registry) put(v volume) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.volumes[v.name()] = v
}

func (r *registry) drop(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.volumes, name)
}

// list returns all volumes, sorted by pool and image.
func (r *registry) list() []volume {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]volume, 0, len(r.volumes))
	for _, v := range r.volumes {
		out = append(out, v)
	}
	slices.SortFunc(out, func(a, b volume) int {
		if c := strings.Compare(a.Pool, b.Pool); c != 0 {
			return c
		}
		return strings.Compare(a.Image, b.Image)
	})
	return out
}

// reserve adds a new volume. It fails if another volume has the port or the minor, or if there are
// already limit volumes. It checks and adds in one step, because verbs on different volumes run in
// parallel.
func (r *registry) reserve(v volume, limit int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, other := range r.volumes {
		if other.name() == v.name() {
			continue
		}
		if other.Port == v.Port {
			return fail(escache.CodePortInUse, "port %d belongs to %s/%s here; choose another", v.Port, other.Pool, other.Image)
		}
		if other.Minor == v.Minor {
			return fail(escache.CodePortInUse, "minor %d belongs to %s/%s here; choose another", v.Minor, other.Pool, other.Image)
		}
	}
	if len(r.volumes) >= limit {
		return fail(escache.CodeNoRoom, "this host already has %d volumes, its limit; place the replica elsewhere or raise maxVolumes", limit)
	}
	r.volumes[v.name()] = v
	return nil
}
