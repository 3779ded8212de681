package labtest

import (
	"os"
	"strconv"
)

// Runs says how often each row of a fault matrix runs.
func Runs(t T) int {
	t.Helper()
	const variable = "CHAOS_RUNS"
	text := os.Getenv(variable)
	if text == "" {
		return 1
	}
	runs, err := strconv.Atoi(text)
	if err != nil || runs < 1 {
		t.Fatalf("%s=%q is not a number of runs", variable, text)
	}
	return runs
}

// CoreOnly says whether only the core of a fault matrix is to run, for a run that must not take
// long.
func CoreOnly() bool { return os.Getenv("CHAOS_CORE") != "" }
