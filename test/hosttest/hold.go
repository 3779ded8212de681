package hosttest

import (
	"net/http"
	"time"

	"github.com/escache/escache-csi/api/escache"
)

// Held reports whether the volume's I/O rests here.
func (h *Host) Held(volume escache.VolumeRef) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.replicas[volume]
	return r != nil && r.status.HeldUntil != nil
}

// Let ends a hold as the host's watchdog does.
func (h *Host) Let(volume escache.VolumeRef) {
	h.change(volume, func(s *escache.VolumeStatus) { s.HeldUntil = nil })
}

func (h *Host) serveHold(w http.ResponseWriter, r *http.Request) {
	var request escache.HoldRequest
	refusal := decode(r, &request)
	until := time.Now().Add(time.Duration(request.MaxSeconds) * time.Second).UTC()
	if refusal == nil {
		refusal = h.with(request.VolumeRef, func(s *escache.VolumeStatus) *escache.Problem {
			if s.State == escache.StateStandby {
				return problem(escache.CodeNotConnected, "the volume is not connected here")
			}
			clean := int64(0)
			s.DirtyBytes, s.HeldUntil = &clean, &until
			return nil
		})
	}
	reply(w, refusal, escache.HoldResponse{HeldUntil: until})
}

func (h *Host) serveRelease(w http.ResponseWriter, r *http.Request) {
	var request escache.ReleaseRequest
	refusal := decode(r, &request)
	if refusal == nil {
		refusal = h.with(request.VolumeRef, func(s *escache.VolumeStatus) *escache.Problem {
			s.HeldUntil = nil
			return nil
		})
	}
	done(w, refusal)
}
