package hosttest

import (
	"fmt"
	"net/http"

	"github.com/escache/escache-csi/api/escache"
)

// FlushAtMost makes the host slow: one flush writes back at most so much, and then its time is up. 0 makes it fast again.
func (h *Host) FlushAtMost(bytes int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.perFlush = bytes
}

// SetDisk sets DRBD's state of the volume's disk here. "Outdated" and "Consistent" are not connected: the arbiter of these hosts
// confirms nothing.
func (h *Host) SetDisk(volume escache.VolumeRef, diskState escache.DiskState) {
	h.change(volume, func(s *escache.VolumeStatus) { s.DiskState = diskState })
}

// Connected reports whether the volume's device is here, and with which epoch.
func (h *Host) Connected(volume escache.VolumeRef) (epoch int64, connected bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.replicas[volume]
	if r == nil {
		return 0, false
	}
	return r.status.Epoch, r.status.State != escache.StateStandby
}

func (h *Host) devConnect(w http.ResponseWriter, r *http.Request) {
	var request escache.ConnectRequest
	refusal := decode(r, &request)
	if refusal == nil {
		refusal = h.with(request.VolumeRef, func(s *escache.VolumeStatus) *escache.Problem {
			switch {
			case request.Epoch < s.Epoch:
				return problem(escache.CodeStaleEpoch, fmt.Sprintf("epoch %d is older than %d", request.Epoch, s.Epoch))
			case s.DiskState == escache.DiskOutdated:
				return problem(escache.CodeOutdated, "the replica here is Outdated")
			case s.DiskState == escache.DiskConsistent:
				return problem(escache.CodeFencingRefused, "nobody confirms that the replica here is current")
			}
			s.DiskState = escache.DiskUpToDate
			s.Epoch, s.State, s.Role = request.Epoch, escache.StateConnected, escache.RolePrimary
			s.Device, s.Mode = "/dev/escache/"+request.Pool+"/"+request.Image, request.Options.Mode
			s.ClientAddress = fmt.Sprintf("%s:0/%d", h.address, request.Epoch)
			return nil
		})
	}
	reply(w, refusal, escache.ConnectResponse{Device: "/dev/escache/" + request.Pool + "/" + request.Image, ImageID: request.ImageID})
}

func (h *Host) stop(w http.ResponseWriter, r *http.Request) {
	var request escache.StopRequest
	refusal := decode(r, &request)
	if refusal == nil {
		refusal = h.with(request.VolumeRef, func(s *escache.VolumeStatus) *escache.Problem {
			if s.Role == escache.RolePrimary && (s.DirtyBytes == nil || *s.DirtyBytes > 0) {
				return problem(escache.CodeDirty, "flush first")
			}
			s.State, s.Role, s.ClientAddress = escache.StateStandby, escache.RoleSecondary, ""
			s.Device, s.Mode = "", ""
			return nil
		})
	}
	done(w, refusal)
}

// with changes a replica that has to be here.
func (h *Host) with(volume escache.VolumeRef, how func(*escache.VolumeStatus) *escache.Problem) *escache.Problem {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls++
	r := h.replicas[volume]
	if r == nil {
		return problem(escache.CodeNotFound, "no replica is here")
	}
	return how(&r.status)
}

func reply(w http.ResponseWriter, refusal *escache.Problem, body any) {
	if refusal != nil {
		done(w, refusal)
		return
	}
	answer(w, body)
}
