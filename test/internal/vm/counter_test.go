package vm

import (
	"slices"
	"strings"
	"testing"
)

// The kernel takes the rate as it is, and mends it only where it is within one per cent.
func TestTheCounterIsMeasuredAlikeEachTime(t *testing.T) {
	var all []int
	for range 5 {
		all = append(all, counterKHz())
	}
	least, most := slices.Min(all), slices.Max(all)
	if least < 0 || (most-least)*1000 > least {
		t.Errorf("measured %v kHz", all)
	}
	if line := strings.Join(arguments(Config{}), " "); least > 0 && !strings.Contains(line, " tsc_early_khz=") {
		t.Errorf("the kernel is not told: %s", line)
	}
}
