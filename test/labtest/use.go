package labtest

import (
	"context"
	"fmt"
	"time"
)

// ServiceUse is a service's use of its host's resources.
type ServiceUse struct {
	PID         int
	ResidentKiB int
	CPU         time.Duration // since it started
	Files       int           // open
	Threads     int
}

func (u ServiceUse) String() string {
	return fmt.Sprintf("%.1f MiB resident, %d files open, %d threads, %s CPU", float64(u.ResidentKiB)/1024, u.Files, u.Threads, u.CPU)
}

// ServiceUse is escached's use of the host.
func (h *Host) ServiceUse(t T) ServiceUse {
	t.Helper()
	u, err := h.UseOf(t.Context(), "escached")
	if err != nil {
		t.Fatalf("%v", err)
	}
	return u
}

// UseOf asks the kernel of the host about a service.
func (h *Host) UseOf(ctx context.Context, service string) (ServiceUse, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	// Fields 14 and 15 of stat are user and system time in hundredths of a second.
	out, err := h.Try(ctx, nil, "sh", "-c", `pid=$(cat `+serviceDir+service+`.pid) && cd /proc/$pid && set -- $(sed 's/.*) //' stat) && `+
		`echo $pid $((${12} + ${13})) $(ls fd | wc -l) $(sed -n 's/^VmRSS:[^0-9]*\([0-9]*\).*/\1/p; s/^Threads:[^0-9]*//p' status)`)
	if err != nil {
		return ServiceUse{}, err
	}
	var (
		u     ServiceUse
		ticks int
	)
	if _, err := fmt.Sscan(out, &u.PID, &ticks, &u.Files, &u.ResidentKiB, &u.Threads); err != nil {
		return ServiceUse{}, fmt.Errorf("%s: use of %s: %q: %w", h.Name, service, out, err)
	}
	u.CPU = time.Duration(ticks) * 10 * time.Millisecond
	return u, nil
}
