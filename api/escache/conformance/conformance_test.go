package conformance

import (
	"errors"
	"testing"
)

// TestConformance checks the implementation that the environment names; see environment.go.
func TestConformance(t *testing.T) {
	target, err := FromEnvironment()
	if errors.Is(err, ErrNoTarget) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	Run(t, target)
}
