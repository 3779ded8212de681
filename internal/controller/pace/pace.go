// Package pace measures how fast something becomes less, and how long it takes until nothing is left.
package pace

import "time"

// smooth is the weight of the newest measurement of the rate.
const smooth = 0.4

// Meter measures from one look to the next. Its zero value knows nothing yet. Only one goroutine at a
// time may use it.
type Meter struct {
	at   time.Time
	left int64
	rate float64 // bytes a second
	// measured is true once there is a rate.
	measured bool
}

// Look tells the meter how many bytes are left, and returns the rate in bytes a second and the time left at
// this rate, rounded up to seconds. Both are 0 as long as no rate is known. More than before counts as
// standing still.
func (m *Meter) Look(left int64, now time.Time) (bytesPerSecond int64, remaining time.Duration) {
	if seconds := now.Sub(m.at).Seconds(); !m.at.IsZero() && seconds > 0 {
		rate, weight := max(0, float64(m.left-left))/seconds, smooth
		if !m.measured {
			weight, m.measured = 1, true
		}
		m.rate += weight * (rate - m.rate)
	}
	m.at, m.left = now, left
	bytesPerSecond = int64(m.rate)
	if bytesPerSecond > 0 {
		remaining = time.Duration((left+bytesPerSecond-1)/bytesPerSecond) * time.Second
	}
	return bytesPerSecond, remaining
}
