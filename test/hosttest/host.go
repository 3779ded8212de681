package hosttest

import (
	"encoding/json"
	"net/http"
	"reflect"
	"sync"

	"github.com/escache/escache-csi/api/escache"
)

// Host is one host. Tests play the node service with Connect, Write and Release.
type Host struct {
	name    string
	address string
	port    int
	server  *http.Server

	mu       sync.Mutex
	capacity int64
	sick     string
	calls    int
	perFlush int64 // what one flush writes back at most; 0: everything
	replicas map[escache.VolumeRef]*replica
}

type replica struct {
	request escache.ReplicaRequest
	status  escache.VolumeStatus
	traffic Traffic
	flushes int
}

func newHost(name, address string, cacheBytes int64) *Host {
	return &Host{name: name, address: address, capacity: cacheBytes, replicas: map[escache.VolumeRef]*replica{}}
}

// Replicas is how many replicas are here.
func (h *Host) Replicas() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.replicas)
}

// Calls is how many calls about volumes were made.
func (h *Host) Calls() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.calls
}

// Has reports whether a replica of the volume is here.
func (h *Host) Has(volume escache.VolumeRef) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.replicas[volume] != nil
}

// Forget removes all replicas.
func (h *Host) Forget() {
	h.mu.Lock()
	defer h.mu.Unlock()
	clear(h.replicas)
}

// Sicken makes the host report that it is not healthy; an empty reason heals it.
func (h *Host) Sicken(reason string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sick = reason
}

// Connect makes the device here, with this Ceph client.
func (h *Host) Connect(volume escache.VolumeRef, client string) {
	h.change(volume, func(s *escache.VolumeStatus) {
		s.State, s.Role, s.ClientAddress = escache.StateConnected, escache.RolePrimary, client
	})
}

// Write makes so much of the volume's cache dirty here.
func (h *Host) Write(volume escache.VolumeRef, dirtyBytes int64) {
	h.change(volume, func(s *escache.VolumeStatus) { s.DirtyBytes = &dirtyBytes })
}

// Release removes the device; what is dirty stays dirty.
func (h *Host) Release(volume escache.VolumeRef) {
	h.change(volume, func(s *escache.VolumeStatus) {
		s.State, s.Role, s.ClientAddress = escache.StateStandby, escache.RoleSecondary, ""
		s.Mode, s.Device = "", ""
	})
}

func (h *Host) change(volume escache.VolumeRef, how func(*escache.VolumeStatus)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r := h.replicas[volume]; r != nil {
		how(&r.status)
	}
}

func (h *Host) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+escache.PathNode, func(w http.ResponseWriter, _ *http.Request) { answer(w, h.node()) })
	mux.HandleFunc("GET "+escache.PathStatus, func(w http.ResponseWriter, r *http.Request) { answer(w, h.status(ref(r))) })
	mux.HandleFunc("PUT "+escache.PathReplica, func(w http.ResponseWriter, r *http.Request) { done(w, h.put(r)) })
	mux.HandleFunc("POST "+escache.PathFlush, h.serveFlush)
	mux.HandleFunc("POST "+escache.PathMode, h.serveMode)
	mux.HandleFunc("POST "+escache.PathHold, h.serveHold)
	mux.HandleFunc("POST "+escache.PathRelease, h.serveRelease)
	mux.HandleFunc("DELETE "+escache.PathReplica, func(w http.ResponseWriter, r *http.Request) {
		done(w, h.remove(ref(r), r.URL.Query().Get("discard") == "true"))
	})
	mux.HandleFunc("POST "+escache.PathDevConnect, h.devConnect)
	mux.HandleFunc("POST "+escache.PathStop, h.stop)
	return mux
}

func ref(r *http.Request) escache.VolumeRef {
	return escache.VolumeRef{Pool: r.URL.Query().Get("pool"), Image: r.URL.Query().Get("image")}
}

func (h *Host) node() escache.Node {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := escache.Node{Name: h.name, Version: "test", Healthy: h.sick == "", CacheCapacityBytes: h.capacity, Volumes: len(h.replicas)}
	if h.sick != "" {
		n.Reasons = []string{h.sick}
	}
	for _, r := range h.replicas {
		n.CacheAllocatedBytes += r.request.CacheBytes
		if r.status.DirtyBytes != nil {
			n.DirtyBytes += *r.status.DirtyBytes
		}
		if r.status.Role == escache.RolePrimary {
			n.Primaries++
		}
	}
	n.CacheFreeBytes = h.capacity - n.CacheAllocatedBytes
	return n
}

func (h *Host) status(volume escache.VolumeRef) escache.Status {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls++
	if r := h.replicas[volume]; r != nil {
		return escache.Status{Volumes: []escache.VolumeStatus{r.status}}
	}
	return escache.Status{Volumes: []escache.VolumeStatus{{VolumeRef: volume, State: escache.StateAbsent, Role: escache.RoleUnknown}}}
}

func (h *Host) put(r *http.Request) *escache.Problem {
	var request escache.ReplicaRequest
	if refusal := decode(r, &request); refusal != nil {
		return refusal
	}
	return h.lay(request)
}

func (h *Host) lay(request escache.ReplicaRequest) *escache.Problem {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls++
	for other, there := range h.replicas {
		if other != request.VolumeRef && (there.request.Port == request.Port || there.request.Minor == request.Minor) {
			return problem(escache.CodePortInUse, "port or minor belongs to "+other.Image)
		}
	}
	request.Join = false // it means nothing to a copy that is here, and a new one is played by Sync alone
	if there := h.replicas[request.VolumeRef]; there != nil {
		same := there.request
		same.SizeBytes = max(same.SizeBytes, request.SizeBytes)
		if same.ImageID == "" {
			same.ImageID = request.ImageID
		}
		if !reflect.DeepEqual(same, request) {
			return h.repeer(there, request)
		}
		there.request = same
		return nil
	}
	var clean int64
	h.replicas[request.VolumeRef] = &replica{request: request, status: escache.VolumeStatus{
		VolumeRef: request.VolumeRef, ImageID: request.ImageID, State: escache.StateStandby, Role: escache.RoleSecondary,
		CacheBytes: request.CacheBytes, SizeBytes: request.SizeBytes, DirtyBytes: &clean, DiskState: escache.DiskUpToDate,
		Port: request.Port, Minor: request.Minor, SyncedPercent: 100,
	}}
	return nil
}

func (h *Host) remove(volume escache.VolumeRef, discard bool) *escache.Problem {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls++
	r := h.replicas[volume]
	switch {
	case r == nil:
		return nil
	case r.status.State != escache.StateStandby:
		return problem(escache.CodeConnected, "the device is connected here")
	case !discard && r.status.DirtyBytes == nil:
		return problem(escache.CodeDirtyUnknown, "nobody can say that the cache is clean")
	case !discard && *r.status.DirtyBytes > 0:
		return problem(escache.CodeDirty, "the cache is dirty")
	}
	delete(h.replicas, volume)
	return nil
}

func decode(r *http.Request, into any) *escache.Problem {
	decoder := json.NewDecoder(r.Body)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return problem(escache.CodeInvalidRequest, err.Error())
	}
	return nil
}

func problem(code escache.Code, detail string) *escache.Problem {
	return &escache.Problem{Type: "urn:escache:problem:" + string(code), Status: escache.StatusOf(code), Code: code, Detail: detail}
}

func done(w http.ResponseWriter, p *escache.Problem) {
	if p == nil {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	w.Header().Set("Content-Type", escache.ProblemContentType)
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p) //nolint:errchkjson // the caller sees a cut answer
}

func answer(w http.ResponseWriter, body any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(body) //nolint:errchkjson // the caller sees a cut answer
}
