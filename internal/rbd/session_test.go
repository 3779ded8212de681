package rbd

import (
	"errors"
	"slices"
	"testing"
	"time"
)

// TestAConnectionIsUsedWhenItIsAdmitted: before that nothing reaches Ceph through it, but what
// shuts out others.
func TestAConnectionIsUsedWhenItIsAdmitted(t *testing.T) {
	pool, ctx := newPool(t), t.Context()
	earlier := open(t, ceph, Options{Connections: 1})
	must(t, earlier.CreateImage(ctx, spec(pool, "a")))
	address, err := earlier.links[0].conn.conn.GetAddrs()
	must(t, err)

	refused := errors.New("not yet")
	admit := func(Session) error { return refused }
	c := open(t, ceph, Options{Connections: 1, Admit: func(s Session) error { return admit(s) }})
	if err := c.CreateImage(ctx, spec(pool, "b")); !errors.Is(err, ErrUnavailable) || !errors.Is(err, refused) {
		t.Errorf("not admitted: got %v", err)
	}
	time.Sleep(redialPause)
	var admitted []string
	admit = func(s Session) error {
		admitted = append(admitted, s.Cluster+" "+s.Address)
		return s.Fence(time.Hour, address)
	}
	must(t, c.CreateImage(ctx, spec(pool, "c")))
	t.Cleanup(func() { _ = c.BlocklistRemove(ctx, address) })
	own, err := c.links[0].conn.conn.GetAddrs()
	must(t, err)
	if want := testCluster + " " + own; !slices.Equal(admitted, []string{want}) {
		t.Errorf("admitted %v, want %s", admitted, want)
	}
	if err := earlier.CreateImage(ctx, spec(pool, "d")); !errors.Is(err, ErrUnavailable) {
		t.Errorf("the fenced one: got %v", err)
	}
	names, err := c.ListImages(ctx, pool)
	must(t, err)
	if !slices.Equal(names, []string{"a", "c"}) {
		t.Errorf("images %v", names)
	}
}
