package conformance

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/escache/internal/contract"
)

func restartChecks() []Check {
	return []Check{{"after a restart nothing is absent that is there", nothingAbsent, alone}}
}

// nothingAbsent: a service that has just started does not know yet what is on its disks. Who asks it believes
// that what is absent has no device and no data, and gives the volume to another host.
func nothingAbsent(s *suite) {
	if s.target.Restart == nil {
		s.Skipf("the target cannot restart the service")
	}
	v := s.connected()
	data := v.makeDirty(s.first)
	for _, h := range []*host{s.first, s.second} {
		before := h.status(v.VolumeRef)
		for _, wrong := range h.watchRestart(v, before) {
			s.Errorf("%s had the volume %s, and answered after a restart: %s", h.Name, shown(before), wrong)
		}
	}
	v.holds(s.first, 0, data)
	v.detach(s.first)
}

// watchRestart restarts the service of a host, and asks it about a volume until it knows it again. It
// returns the answers that were wrong. No answer is right, and so is the refusal of one that does not know.
func (h *host) watchRestart(v *volume, before escache.VolumeStatus) (wrong []string) {
	h.s.Helper()
	ctx, cancel := context.WithTimeout(h.s.Context(), h.s.target.CallTimeout)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- h.s.target.Restart(ctx, h.Name) }()
	running := true
	for ctx.Err() == nil && len(wrong) == 0 {
		known := true
		for _, req := range []request{
			{method: http.MethodGet, path: escache.PathStatus, query: v.query()}, {method: http.MethodGet, path: escache.PathStatus},
		} {
			told, why := h.tells(ctx, req, before)
			if known = known && told; why != "" {
				wrong = append(wrong, why)
			}
		}
		if !running && known {
			return wrong
		}
		select {
		case err := <-ended:
			running = false
			if errors.Is(err, ErrUnsupported) {
				h.s.Skipf("the target cannot restart the service")
			}
			if err != nil {
				h.s.Fatalf("restart the service of %s: %v", h.Name, err)
			}
		case <-time.After(10 * time.Millisecond):
		}
	}
	if len(wrong) == 0 {
		h.s.Fatalf("%s: the service does not know %s within %s after a restart", h.Name, v, h.s.target.CallTimeout)
	}
	return wrong
}

// tells asks for a status, and reports whether the volume is in it as it was before, and what is wrong with
// the answer.
func (h *host) tells(ctx context.Context, req request, before escache.VolumeStatus) (told bool, wrong string) {
	a, err := h.call.do(ctx, req)
	if _, broken := errors.AsType[*contractError](err); broken {
		return false, err.Error()
	}
	if err != nil {
		return false, "" // there is no service at this moment
	}
	if a.problem != nil {
		if slices.Contains([]escache.Code{escache.CodeRecovering, escache.CodeTimeout}, a.code()) {
			return false, ""
		}
		return false, a.String()
	}
	var status escache.Status
	if err := contract.DecodeStrictly(a.body, &status); err != nil {
		return false, fmt.Sprintf("%s: %v", a, err)
	}
	same := slices.ContainsFunc(status.Volumes, func(now escache.VolumeStatus) bool {
		return now.VolumeRef == before.VolumeRef && now.State == before.State && now.Device == before.Device &&
			now.ClientAddress == before.ClientAddress && now.Epoch == before.Epoch
	})
	if !same {
		return false, a.String()
	}
	return true, ""
}
