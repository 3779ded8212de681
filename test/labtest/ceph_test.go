package labtest

import (
	"slices"
	"testing"
	"time"
)

func TestFencesOfTheDriverLastForYears(t *testing.T) {
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	const list = "10.1.0.1:0/123 2036-04-28T12:00:00.123456+0000\n10.1.0.2:0/7 2026-05-01T13:00:00.000001+0000\n\n"
	got, err := FencedForYears(list, now)
	if err != nil || !slices.Equal(got, []string{"10.1.0.1:0/123"}) {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := FencedForYears("10.1.0.1:0/123 never\n", now); err == nil {
		t.Errorf("an entry that ends never: %q", got)
	}
}
