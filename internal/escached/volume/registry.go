package volume

import (
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/problem"
)

// Registry keeps the contents of the tags in memory, so that status needs no LVM command. Only
// escached writes the tags, and it writes each change to the disk first.
type Registry struct {
	mu         sync.Mutex
	volumes    map[string]Volume
	unreadable map[string]Unreadable
	unsure     map[string]bool
}

// Unreadable is a replica whose tags cannot be read: a later version may have written them. Its
// device may be there all the same, so it is never taken for absent.
type Unreadable struct {
	// VolumeRef is empty if the tags do not say whose replica it is.
	escache.VolumeRef

	Err error
}

// NewRegistry returns an empty registry.
func NewRegistry() *Registry {
	return &Registry{volumes: map[string]Volume{}, unreadable: map[string]Unreadable{}, unsure: map[string]bool{}}
}

// PutUnreadable adds a replica whose tags cannot be read, by the name of its LV.
func (r *Registry) PutUnreadable(name string, u Unreadable) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unreadable[name] = u
}

// Unreadable returns the replicas whose tags cannot be read, by the names of their LVs.
func (r *Registry) Unreadable() map[string]Unreadable {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.unreadable)
}

// Get returns the volume with a name of NameOf.
func (r *Registry) Get(name string) (Volume, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v, ok := r.volumes[name]
	return v, ok
}

// Put adds or replaces a volume.
func (r *Registry) Put(v Volume) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.unreadable, v.Name())
	r.volumes[v.Name()] = v
}

// Drop forgets the volume with this name.
func (r *Registry) Drop(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.volumes, name)
	delete(r.unsure, name)
}

// SetUnsure says whether the tags of the volume with this name may be others than those in memory.
func (r *Registry) SetUnsure(name string, unsure bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if unsure {
		r.unsure[name] = true
	} else {
		delete(r.unsure, name)
	}
}

// Unsure returns the volumes whose tags may be others than those in memory, sorted by name.
func (r *Registry) Unsure() []Volume {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []Volume
	for _, name := range slices.Sorted(maps.Keys(r.unsure)) {
		if v, there := r.volumes[name]; there {
			out = append(out, v)
		}
	}
	return out
}

// IsUnsure reports whether the tags of the volume with this name may be others than those in memory.
func (r *Registry) IsUnsure(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.unsure[name]
}

// List returns all volumes, sorted by pool and image.
func (r *Registry) List() []Volume {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]Volume, 0, len(r.volumes))
	for _, v := range r.volumes {
		out = append(out, v)
	}
	slices.SortFunc(out, func(a, b Volume) int {
		if c := strings.Compare(a.Pool, b.Pool); c != 0 {
			return c
		}
		return strings.Compare(a.Image, b.Image)
	})
	return out
}

// Reserve adds a new volume. It fails if another volume has the port or the minor, or if there are
// already limit volumes. It checks and adds in one step, because verbs on different volumes run in
// parallel.
func (r *Registry) Reserve(v Volume, limit int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, other := range r.volumes {
		if other.Name() == v.Name() {
			continue
		}
		if other.Port == v.Port {
			return problem.New(escache.CodePortInUse, "port %d belongs to %s/%s here; choose another", v.Port, other.Pool, other.Image)
		}
		if other.Minor == v.Minor {
			return problem.New(escache.CodePortInUse, "minor %d belongs to %s/%s here; choose another", v.Minor, other.Pool, other.Image)
		}
	}
	if len(r.volumes) >= limit {
		return problem.New(escache.CodeNoRoom,
			"this host already has %d volumes, its limit; place the replica elsewhere or raise maxVolumes", limit)
	}
	r.volumes[v.Name()] = v
	return nil
}
