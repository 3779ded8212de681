package rbd

import (
	"errors"
	"strings"
	"testing"
)

func TestParseFeatures(t *testing.T) {
	for _, c := range []struct{ names, want, reason string }{
		{"", "layering,exclusive-lock,deep-flatten", ""},
		{"exclusive-lock", "exclusive-lock", ""},
		{"object-map,layering,exclusive-lock", "layering,exclusive-lock,object-map", ""},
		{"layering", "", "without exclusive-lock, which keeps a second host from writing"},
		{"object-map", "", "object-map needs exclusive-lock"},
		{"exclusive-lock,fast-diff", "", "fast-diff needs object-map"},
		{"exclusive-lock,journaling", "", "the kernel cannot map an image with it"},
		{"exclusive-lock,striping", "", "it follows from the stripe unit and count"},
		{"exclusive-lock,data-pool", "", "it follows from the data pool"},
		{"exclusive-locks", "", "there is no such feature; allowed are layering, exclusive-lock, object-map, fast-diff, deep-flatten"},
	} {
		t.Run(c.names, func(t *testing.T) {
			var names []string
			if c.names != "" {
				names = strings.Split(c.names, ",")
			}
			f, err := ParseFeatures(names)
			switch {
			case c.reason == "" && (err != nil || f.String() != c.want):
				t.Errorf("got %s, %v", f, err)
			case c.reason != "" && (!errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), c.reason)):
				t.Errorf("got %s, %v", f, err)
			}
		})
	}
}
