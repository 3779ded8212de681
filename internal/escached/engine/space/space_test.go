package space

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/escache/escache-csi/internal/escached/lvm"
)

// group is a volume group. during is called in the middle of a reading, after LVM has seen the group.
type group struct {
	free   int64
	lost   int
	err    error
	reads  int
	during func()
}

const (
	capacity = 1 << 30
	extent   = 4 << 20
)

func (g *group) Space(context.Context) (lvm.Space, error) {
	g.reads++
	seen, err := lvm.Space{GroupID: "g", Capacity: capacity, Free: g.free, Extent: extent, Missing: g.lost}, g.err
	if g.during != nil {
		g.during()
	}
	return seen, err
}

func newSpace(t *testing.T) (*group, *Space) {
	t.Helper()
	g := &group{free: capacity}
	s := New(g, time.Now)
	if err := s.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	return g, s
}

// is fails unless this much is free, and unless LVM was asked this often since the first time.
func (g *group) is(t *testing.T, s *Space, what string, free int64, reads int) {
	t.Helper()
	if got, _, err := s.Latest(); err != nil || got.Free != free || g.reads != 1+reads {
		t.Errorf("%s: %d bytes are free after %d more readings, want %d after %d: %v", what, got.Free, g.reads-1, free, reads, err)
	}
}

func TestWhatEscachedTakesIsCountedInWholeExtents(t *testing.T) {
	g, s := newSpace(t)
	s.Change().Done(t.Context(), extent+1)
	g.is(t, s, "after a replica of one extent and a byte", capacity-2*extent, 0)
	s.Change().Done(t.Context(), -(extent + 1))
	g.is(t, s, "after it was removed", capacity, 0)
}

func TestAReadingThatMayHaveMissedAChangeIsRepeated(t *testing.T) {
	for what, c := range map[string]struct {
		before int64
		change func(g *group, s *Space)
		free   int64
	}{
		"a replica is laid in the middle of a reading": {capacity, func(g *group, s *Space) {
			var change Change
			g.during = func() { g.during = nil; change = s.Change(); g.free -= extent }
			_ = s.Refresh(t.Context())
			change.Done(t.Context(), extent)
		}, capacity - extent},
		"a reading ends in the middle of a removal": {capacity - extent, func(g *group, s *Space) {
			change := s.Change()
			g.free += extent
			_ = s.Refresh(t.Context())
			change.Done(t.Context(), -extent)
		}, capacity},
	} {
		g, s := newSpace(t)
		g.free = c.before
		c.change(g, s)
		g.is(t, s, what, c.free, 2)
	}
}

func TestAGroupThatOthersHaveChangedIsReadAgain(t *testing.T) {
	for what, c := range map[string]struct{ seen, free, bytes int64 }{
		"there is room where there was none": {0, 7 * extent, extent},
		"more is freed than was taken":       {capacity, capacity - extent, -extent},
	} {
		g, s := newSpace(t)
		g.free = c.seen
		_ = s.Refresh(t.Context())
		g.free = c.free
		s.Change().Done(t.Context(), c.bytes)
		g.is(t, s, what, c.free, 2)
	}
}

func TestSpaceThatIsNotCertainIsNotFree(t *testing.T) {
	for what, c := range map[string]struct{ bytes, free int64 }{
		"laid":    {2 * extent, capacity - 3*extent}, // the reading had it: counted twice
		"removed": {-extent, capacity - extent},
	} {
		g, s := newSpace(t)
		g.free = capacity - extent
		change := s.Change()
		_ = s.Refresh(t.Context())
		g.err = errors.New("vgs took too long")
		change.Done(t.Context(), c.bytes)
		g.is(t, s, what, c.free, 2)
	}
}

func TestWhatIsFreedBesideAMissingDiskIsNotFree(t *testing.T) {
	g, s := newSpace(t)
	g.free, g.lost = 0, 1
	_ = s.Refresh(t.Context())
	s.Change().Done(t.Context(), -extent)
	g.is(t, s, "a disk is missing", 0, 1)
}
