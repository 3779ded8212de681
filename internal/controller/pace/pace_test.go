package pace

import (
	"testing"
	"time"
)

func TestAMeterTellsTheRateAndTheTimeLeft(t *testing.T) {
	var m Meter
	now := time.Unix(1000, 0)
	if rate, left := m.Look(1000, now); rate != 0 || left != 0 {
		t.Errorf("after one look: %d a second, %s", rate, left)
	}
	if rate, left := m.Look(900, now); rate != 0 || left != 0 {
		t.Errorf("within the same moment: %d a second, %s", rate, left)
	}
	if rate, left := m.Look(880, now.Add(2*time.Second)); rate != 10 || left != 88*time.Second {
		t.Errorf("after the first measurement: %d a second, %s", rate, left)
	}
	now = now.Add(2 * time.Second)
	var rate int64
	var left time.Duration
	for i := range int64(20) { // 10 bytes a second
		now = now.Add(2 * time.Second)
		rate, left = m.Look(860-20*i, now)
	}
	if rate != 10 || left != 48*time.Second { // 480 are left
		t.Errorf("at 10 a second: %d a second, %s", rate, left)
	}
	for range 30 { // it grows, as while a pod writes
		now = now.Add(2 * time.Second)
		rate, left = m.Look(5000, now)
	}
	if rate != 0 || left != 0 {
		t.Errorf("while nothing becomes less: %d a second, %s", rate, left)
	}
}
