// Package shard takes a part of a long list of tests, for CI, which has no time for all of them. CI takes another part
// each time, so that a few runs together run them all.
package shard

import (
	"fmt"
	"os"
	"testing"
)

// Variable is the environment variable that says which part: "7/3" is the seventh run's, of three parts. Without it
// all tests run.
const Variable = "ESCACHE_E2E_SHARD"

// Has reports whether the part has the list's test with this number.
func Has(t testing.TB, number int) bool {
	t.Helper()
	text := os.Getenv(Variable)
	if text == "" {
		return true
	}
	has, err := has(text, number)
	if err != nil {
		t.Fatal(err)
	}
	return has
}

func has(text string, number int) (bool, error) {
	var run, of int
	if n, err := fmt.Sscanf(text, "%d/%d\n", &run, &of); n != 2 || err != nil || run < 0 || of < 1 {
		return false, fmt.Errorf("%s=%q: want the number of a run and how many parts there are, such as 7/3", Variable, text)
	}
	return number%of == run%of, nil
}
