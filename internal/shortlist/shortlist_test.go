package shortlist_test

import (
	"strings"
	"testing"

	"github.com/escache/escache-csi/internal/shortlist"
)

func TestAFewNamesAreSaidAndTheRestIsCounted(t *testing.T) {
	for all, want := range map[string]string{
		"":                "",
		"a":               "a",
		"a b c d e":       "a, b, c, d, e",
		"a b c d e f":     "a, b, c, d, e and 1 more",
		"z y x w v u t s": "z, y, x, w, v and 3 more",
	} {
		names := strings.Fields(all)
		if got := shortlist.Of(names); got != want {
			t.Errorf("%q: %q, want %q", all, got, want)
		}
		if strings.Join(names, " ") != all {
			t.Errorf("%q became %q", all, names)
		}
	}
	for most, want := range map[int]string{3: "a, b, c and 1 more", 4: "a, b, c, d"} {
		if got := shortlist.First(most, []string{"a", "b", "c", "d"}); got != want {
			t.Errorf("%d: %q, want %q", most, got, want)
		}
	}
}
