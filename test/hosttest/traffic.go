package hosttest

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/escache/escache-csi/api/escache"
)

// Traffic is what happens to a connected volume's cache while a flush runs.
type Traffic struct {
	// CephPerSecond is how many bytes Ceph takes; 0 takes everything at once, less than 0 nothing at all.
	CephPerSecond int64
	// PodPerSecond is how many bytes a pod writes. They become dirty unless the volume writes through.
	PodPerSecond int64
	// Refuse is what every flush and change of mode is answered with; empty: nothing.
	Refuse escache.Code
}

// Stage connects the volume as the node service does, in an attachment's epoch and a mode.
func (h *Host) Stage(volume escache.VolumeRef, client string, epoch int64, mode escache.Mode) {
	h.change(volume, func(s *escache.VolumeStatus) {
		s.State, s.Role, s.ClientAddress = stateOf(mode), escache.RolePrimary, client
		s.Epoch, s.Mode, s.Device = epoch, mode, "/dev/escache/"+volume.Pool+"/"+volume.Image
	})
}

// Load sets a volume's traffic.
func (h *Host) Load(volume escache.VolumeRef, traffic Traffic) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r := h.replicas[volume]; r != nil {
		r.traffic = traffic
	}
}

// Volume is what the host has of a volume, and how many flushes run there now.
func (h *Host) Volume(volume escache.VolumeRef) (status escache.VolumeStatus, flushes int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r := h.replicas[volume]; r != nil {
		return r.status, r.flushes
	}
	return escache.VolumeStatus{VolumeRef: volume, State: escache.StateAbsent}, 0
}

func stateOf(mode escache.Mode) escache.State {
	if mode == escache.ModeWritethrough {
		return escache.StateDraining
	}
	return escache.StateConnected
}

// tick is the length of a step of a played flush.
const tick = 20 * time.Millisecond

func (h *Host) serveFlush(w http.ResponseWriter, r *http.Request) {
	var request escache.FlushRequest
	if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
		done(w, problem(escache.CodeInvalidRequest, err.Error()))
		return
	}
	if p := h.flushing(request.VolumeRef, 1); p != nil {
		done(w, p)
		return
	}
	defer func() { _ = h.flushing(request.VolumeRef, -1) }()
	for end := time.Now().Add(time.Duration(request.TimeoutSeconds) * time.Second); ; {
		left, slow, p := h.flushStep(request.VolumeRef)
		if p != nil {
			done(w, p)
			return
		}
		if left == 0 || slow || time.Now().After(end) {
			answer(w, escache.FlushResponse{Clean: left == 0, DirtyBytes: left})
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-time.After(tick):
		}
	}
}

func (h *Host) flushing(volume escache.VolumeRef, more int) *escache.Problem {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.replicas[volume]
	if p := refusal(r); p != nil && more > 0 {
		return p
	}
	if r != nil {
		r.flushes += more
	}
	return nil
}

// flushStep writes a share back; slow says that the flush has written all that it will.
func (h *Host) flushStep(volume escache.VolumeRef) (left int64, slow bool, p *escache.Problem) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.replicas[volume]
	if p := refusal(r); p != nil {
		return 0, false, p
	}
	if r.status.DirtyBytes != nil {
		left = *r.status.DirtyBytes
	}
	share := int64(time.Second / tick)
	switch {
	case h.perFlush > 0:
		left, slow = max(0, left-h.perFlush), true
	case r.traffic.CephPerSecond == 0:
		left = 0
	case r.traffic.CephPerSecond > 0:
		left = max(0, left-r.traffic.CephPerSecond/share)
	}
	if r.status.Mode != escache.ModeWritethrough {
		left += r.traffic.PodPerSecond / share
	}
	r.status.DirtyBytes = &left
	return left, slow, nil
}

func (h *Host) serveMode(w http.ResponseWriter, r *http.Request) {
	var request escache.ModeRequest
	if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
		done(w, problem(escache.CodeInvalidRequest, err.Error()))
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	v := h.replicas[request.VolumeRef]
	p := refusal(v)
	if p == nil {
		v.status.Mode, v.status.State = request.Mode, stateOf(request.Mode)
	}
	done(w, p)
}

func refusal(r *replica) *escache.Problem {
	switch {
	case r == nil:
		return problem(escache.CodeNotFound, "no replica is here")
	case r.status.Device == "":
		return problem(escache.CodeNotConnected, "it is not connected here")
	case r.traffic.Refuse != "":
		return problem(r.traffic.Refuse, "so the test wants it")
	default:
		return nil
	}
}

// Lay puts a replica here, as PUT /v1/replica does.
func (h *Host) Lay(request escache.ReplicaRequest) error {
	if p := h.lay(request); p != nil {
		return p
	}
	return nil
}
