package logtest

import (
	"os"
	"strconv"
	"testing"
)

// PowerCuts is how often a test cuts the power: ESCACHE_POWER_CUTS times, or else as often as fits into a few
// seconds.
func PowerCuts(t *testing.T, usual int) int {
	t.Helper()
	text, given := os.LookupEnv("ESCACHE_POWER_CUTS")
	if !given {
		return usual
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("ESCACHE_POWER_CUTS is %q, not a number", text)
	}
	return n
}
