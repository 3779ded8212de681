package engine

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/drbd"
)

// exchanging is a host whose link to the peer stands in the exchange of bitmaps.
func exchanging(t *testing.T, role string) (*world, *Engine) {
	t.Helper()
	w := newWorld(t)
	w.lostOnLeaving = true
	e := w.engine()
	for _, verb := range verbsOfALife()[:2] {
		if err := verb.do(e); err != nil {
			t.Fatal(err)
		}
	}
	st := w.minors[100]
	st.Role, st.Connection, st.Disk, st.PeerDisk = role, escache.LinkWFBitMapS, drbd.UpToDate, drbd.Consistent
	w.minors[100] = st
	return w, e
}

// watchFor has one of the watches look for a while.
func watchFor(t *testing.T, d time.Duration, watch func(ctx context.Context)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	watch(ctx)
}

func TestALinkThatStopsInTheExchangeOfBitmapsIsMadeAnew(t *testing.T) {
	for _, role := range []string{drbd.Primary, drbd.Secondary} {
		synctest.Test(t, func(t *testing.T) {
			w, e := exchanging(t, role)
			before := len(w.steps)
			watchFor(t, 50*time.Second, e.watcher.Exchanges)
			if len(w.steps) != before {
				t.Fatalf("%s: after 50 s: %q", role, w.steps[before:])
			}
			watchFor(t, 70*time.Second, e.watcher.Exchanges)
			want := []string{"disconnect", "connect"}
			if role == drbd.Primary {
				want = []string{"outdate-peer", "freeze false", "disconnect", "connect"}
			}
			if got := w.steps[before:]; !slices.Equal(got, want) {
				t.Errorf("%s: %q", role, got)
			}
			if w.minors[100].Suspended {
				t.Errorf("%s: I/O is frozen for it", role)
			}
		})
	}
}

func TestALinkIsNotMadeAnewIfThatFreezesIO(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, e := exchanging(t, drbd.Primary)
		w.outdatePeerErr = errors.New("connection refused")
		before := len(w.steps)
		watchFor(t, 10*time.Minute, e.watcher.Exchanges)
		if got := slices.Compact(w.steps[before:]); !slices.Equal(got, []string{"outdate-peer"}) {
			t.Errorf("without the arbiter's consent: %q", got)
		}
	})
}

func TestAnExchangeThatGoesOnIsLeftAlone(t *testing.T) {
	for name, change := range map[string]func(*drbd.Status){
		"a resync":           func(st *drbd.Status) { st.Connection = escache.LinkSyncSource },
		"the peer's to mend": func(st *drbd.Status) { st.Role, st.PeerRole = drbd.Secondary, drbd.Primary },
		"I/O is frozen":      func(st *drbd.Status) { st.Suspended = true },
		"the peer is away":   func(st *drbd.Status) { st.Connection = "WFConnection" },
		"this one is filled": func(st *drbd.Status) {
			st.Role, st.Connection, st.Disk = drbd.Secondary, escache.LinkWFBitMapT, drbd.Outdated
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			w, e := exchanging(t, drbd.Primary)
			st := w.minors[100]
			change(&st)
			w.minors[100] = st
			before := len(w.steps)
			watchFor(t, 10*time.Minute, e.watcher.Exchanges)
			if len(w.steps) != before {
				t.Errorf("%s: %q", name, w.steps[before:])
			}
		})
	}
}
