package preflight

import (
	"context"
	"time"

	"golang.org/x/sys/unix"

	"github.com/escache/escache-csi/internal/checklist"
)

// worstClock is how far off a clock may be, by the kernel's own estimate. Certificates and the leases of
// Kubernetes bear more.
const worstClock = time.Second

// clock asks the kernel whether something keeps its clock right. It does not ask other hosts.
func (h *Host) clock(context.Context) checklist.Result {
	const remedy = "run a time service (chrony or systemd-timesyncd), and see that it reaches its servers: chronyc tracking, timedatectl"
	var t unix.Timex
	state, err := h.System.Clock(&t)
	if err != nil {
		return checklist.Badf(checklist.Unknown, "run timedatectl by hand", "the kernel's clock cannot be read: %v", err)
	}
	off := time.Duration(t.Maxerror) * time.Microsecond
	switch {
	case state == unix.TIME_ERROR || t.Status&unix.STA_UNSYNC != 0:
		return checklist.Badf(checklist.Warning, remedy, "%s; nothing synchronises the clock", h.System.Now().UTC().Format(time.RFC3339))
	case off > worstClock:
		return checklist.Badf(checklist.Warning, remedy, "synchronised, and up to %s off", off.Round(time.Millisecond))
	}
	return checklist.Goodf("synchronised, at most %s off", off.Round(time.Millisecond))
}
