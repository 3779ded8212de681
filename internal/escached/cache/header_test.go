package cache

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

func TestHeaderSurvivesAndDamageIsSeen(t *testing.T) {
	want := Header{Identity: Identity{Pool: "rbd", Image: "größe", ImageID: "10ab"}, Formatted: true}
	block, err := want.Block()
	if err != nil || len(block) != BlockBytes {
		t.Fatal(err)
	}
	got, err := parseHeader(block)
	if err != nil || *got != want {
		t.Fatalf("got %+v, %v", got, err)
	}
	if got, err := parseHeader(make([]byte, BlockBytes)); got != nil || err != nil {
		t.Fatalf("zeros are a cache nobody used: %+v, %v", got, err)
	}
	for name, damage := range map[string]func([]byte){
		"magic":  func(b []byte) { b[0] = 0 },
		"length": func(b []byte) { b[9] = 0xff },
		"body":   func(b []byte) { b[20] ^= 1 },
	} {
		b := bytes.Clone(block)
		damage(b)
		if _, err := parseHeader(b); !errors.Is(err, ErrCorrupt) {
			t.Errorf("damaged %s: got %v", name, err)
		}
	}
}

// Caches of earlier versions must stay readable.
func TestTheHeaderOnTheDiskIsTheOneOfEarlierVersions(t *testing.T) {
	block, err := Header{Identity: Identity{Pool: "rbd", Image: "v1", ImageID: "10ab"}, Formatted: true}.Block()
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"pool":"rbd","image":"v1","imageID":"10ab","formatted":true}`
	if got := string(bytes.TrimRight(block[16:], "\x00")); got != want {
		t.Errorf("it holds %s, not %s", got, want)
	}
}

func TestAHeaderDecidesWhetherADiskMayBeFormatted(t *testing.T) {
	id := Identity{Pool: "rbd", Image: "v1", ImageID: "10ab"}
	block := func(h Header) []byte {
		b, err := h.Block()
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	other := id
	other.ImageID = "20cd"
	for name, c := range map[string]struct {
		block    []byte
		usedHere bool
		format   bool
		err      error
		says     string
	}{
		"never used":                {make([]byte, BlockBytes), false, true, nil, ""},
		"used here, and blank":      {make([]byte, BlockBytes), true, false, ErrCorrupt, "discard the replicas"},
		"half formatted":            {block(Header{Identity: id}), false, true, nil, ""},
		"formatted":                 {block(Header{Identity: id, Formatted: true}), true, false, nil, ""},
		"formatted, on a new host":  {block(Header{Identity: id, Formatted: true}), false, false, nil, ""},
		"of another image":          {block(Header{Identity: other, Formatted: true}), false, false, ErrForeign, "rbd/v1 (id 20cd)"},
		"half made, of another one": {block(Header{Identity: other}), false, false, ErrForeign, "rbd/v1 (id 10ab)"},
		"something else":            {bytes.Repeat([]byte{7}, BlockBytes), false, false, ErrCorrupt, "no magic"},
	} {
		format, err := id.Judge(c.block, c.usedHere)
		if format != c.format || !errors.Is(err, c.err) || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, %v", name, format, err)
		}
	}
}
