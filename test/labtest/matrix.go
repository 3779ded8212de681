package labtest

import (
	"os"
	"strconv"
)

// Runs says how often each row of a fault matrix runs.
func Runs(t T) int {
	t.Helper()
	return Number(t, "CHAOS_RUNS", 1)
}

// Number reads a setting from the environment: a number from 1, or otherwise where it is not set.
func Number(t T, name string, otherwise int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s=%q is not a number from 1", name, text)
	}
	return n
}

// CoreOnly says whether only the core of a fault matrix is to run, for a run that must not take
// long.
func CoreOnly() bool { return os.Getenv("CHAOS_CORE") != "" }
