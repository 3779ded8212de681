package vm

import "time"

// counter reads this processor's time-stamp counter.
func counter() uint64

// counterKHz measures how fast the time-stamp counter runs. QEMU shows it to an emulated machine as
// that machine's own, and a kernel that has to find its rate out itself does so with a timer that
// is itself emulated: on a busy machine it was fifty times off, and with it the clock of that host
// and every timeout in it (arch/x86/kernel/tsc.c: pit_calibrate_tsc).
func counterKHz() int {
	const span = 100 * time.Millisecond
	begin, from := reading()
	time.Sleep(span)
	end, to := reading()
	return int(float64(to-from) / (float64(end.Sub(begin)) / float64(time.Millisecond)))
}

// reading is what clock and counter say at the same time: a pair between whose parts this thread
// had to wait is read again.
func reading() (time.Time, uint64) {
	const near = 10 * time.Microsecond // one in ten thousand of the span
	for {
		before := time.Now()
		ticks := counter()
		if now := time.Now(); now.Sub(before) < near {
			return now, ticks
		}
	}
}
