package rbd

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestAFullPoolTakesANote: an attachment waits for its note. What it says replaces what the header has.
func TestAFullPoolTakesANote(t *testing.T) {
	c, pool, ctx := open(t, ceph, Options{Kubernetes: "ours"}), newPool(t), t.Context()
	a := spec(pool, "a")
	a.Volume = "a"
	must(t, c.CreateImage(ctx, a))
	ceph.Ceph(t, "osd", "pool", "set-quota", pool, "max_objects", "1")
	deadline := time.Now().Add(60 * time.Second)
	for i := 0; c.CreateImage(within(t, 10*time.Second), spec(pool, fmt.Sprint("b", i))) == nil; i++ {
		if time.Now().After(deadline) {
			t.Fatal("the pool is never full")
		}
	}
	note := `{"version":1,"volume":"` + strings.Repeat("a", 4<<10) + `"}`
	must(t, c.NoteImage(within(t, 10*time.Second), ImageRef{pool, "a"}, "a", note))
	if mark, err := c.MarkOf(ctx, ImageRef{pool, "a"}); err != nil || mark.Note != note {
		t.Errorf("read again: %d bytes, %v", len(mark.Note), err)
	}
}
