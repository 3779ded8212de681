package main

import "testing"

func TestMoreMemoryThanAllowedFails(t *testing.T) {
	for peak, want := range map[int64]bool{0: true, mostMemory: true, mostMemory + 1: false, 2 * mostMemory: false} {
		if err := fits(peak); (err == nil) != want {
			t.Errorf("%d bytes: got %v", peak, err)
		}
	}
}
