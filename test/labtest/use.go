package labtest

import (
	"fmt"
	"time"
)

// ServiceUse is an escached's use of its host's resources.
type ServiceUse struct {
	ResidentKiB int
	CPU         time.Duration // since it started
	Files       int           // open
	Threads     int
}

func (u ServiceUse) String() string {
	return fmt.Sprintf("%.1f MiB resident, %d files open, %d threads, %s CPU", float64(u.ResidentKiB)/1024, u.Files, u.Threads, u.CPU)
}

// ServiceUse asks the kernel of the host.
func (h *Host) ServiceUse(t T) ServiceUse {
	t.Helper()
	// Fields 14 and 15 of stat are user and system time in hundredths of a second.
	out := h.Shell(t, `cd /proc/$(cat `+pidFile+`) && set -- $(sed 's/.*) //' stat) && echo $((${12} + ${13})) $(ls fd | wc -l) `+
		`$(sed -n 's/^VmRSS:[^0-9]*\([0-9]*\).*/\1/p; s/^Threads:[^0-9]*//p' status)`)
	var (
		u     ServiceUse
		ticks int
	)
	if _, err := fmt.Sscan(out, &ticks, &u.Files, &u.ResidentKiB, &u.Threads); err != nil {
		t.Fatalf("%s: use of escached: %q: %v", h.Name, out, err)
	}
	u.CPU = time.Duration(ticks) * 10 * time.Millisecond
	return u
}
