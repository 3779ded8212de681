package rbd

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func passNothing(ctx context.Context, g *gate, op string) error {
	_, err := pass(ctx, g, op, "", func() (struct{}, error) { return struct{}{}, nil })
	return err
}

// hang passes a call that ends when release is closed.
func hang(ctx context.Context, g *gate, op, alone string, release chan struct{}) error {
	_, err := pass(ctx, g, op, alone, func() (struct{}, error) {
		<-release
		return struct{}{}, nil
	})
	return err
}

func TestGateRefusesWhileTooManyHangAndOpensByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, release, ctx := newGate("c", 4, 2, time.Second), make(chan struct{}), t.Context()
		for range 2 {
			if err := hang(ctx, g, "create", "", release); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "no answer for 1s") {
				t.Fatalf("got %v", err)
			}
		}
		time.Sleep(10 * time.Second)
		began := time.Now()
		err := passNothing(ctx, g, "info")
		want := "info on cluster c: no Ceph available: 2 calls hang, no new ones until one ends; the oldest is create, for 12s"
		if err == nil || err.Error() != want || time.Since(began) != 0 {
			t.Fatalf("got %v after %s", err, time.Since(began))
		}
		close(release)
		synctest.Wait()
		if err := passNothing(ctx, g, "info"); err != nil {
			t.Fatalf("after the end: %v", err)
		}
		if g.stuck != 0 || len(g.running) != 0 || len(g.slots) != 0 {
			t.Fatalf("%d stuck, %d running, %d slots taken", g.stuck, len(g.running), len(g.slots))
		}
	})
}

func TestGateBoundsCallsAndWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, release, ctx := newGate("c", 2, 10, time.Hour), make(chan struct{}), t.Context()
		ended := make(chan error, 2)
		for range 2 {
			go func() { ended <- hang(ctx, g, "create", "", release) }()
		}
		synctest.Wait()
		late, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if err := passNothing(late, g, "info"); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "2 calls are ahead of it") {
			t.Fatalf("got %v", err)
		}
		close(release)
		for range 2 {
			if err := <-ended; err != nil {
				t.Errorf("a call in time: %v", err)
			}
		}
	})
}

func TestANameIsHeldUntilTheCallHasReallyEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, release, ctx := newGate("c", 4, 4, time.Second), make(chan struct{}), t.Context()
		if err := hang(ctx, g, "create", "a", release); !errors.Is(err, ErrUnavailable) {
			t.Fatalf("got %v", err)
		}
		done := make(chan struct{})
		close(done)
		if err := hang(ctx, g, "delete", "a", done); err == nil || !strings.Contains(err.Error(), "an earlier call on it has not ended") {
			t.Fatalf("got %v", err)
		}
		if err := hang(ctx, g, "delete", "b", done); err != nil {
			t.Fatalf("another name: %v", err)
		}
		close(release)
		synctest.Wait()
		if err := hang(ctx, g, "delete", "a", done); err != nil {
			t.Fatalf("after the end: %v", err)
		}
		if len(g.names.queues) != 0 {
			t.Fatalf("%d names are still known", len(g.names.queues))
		}
	})
}

func TestADeadlineIsNotTheCallersDoingButACancelIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, release := newGate("c", 4, 4, time.Hour), make(chan struct{})
		defer close(release)
		late, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := hang(late, g, "x", "", release); errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, ErrUnavailable) {
			t.Errorf("deadline: %v", err)
		}
		cancelled, cancelNow := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancelNow)
		if err := hang(cancelled, g, "x", "", release); !errors.Is(err, context.Canceled) || !errors.Is(err, ErrUnavailable) {
			t.Errorf("cancel: %v", err)
		}
	})
}

// TestAClientsEntryIsChangedByOneCallAtATime: a call that nobody waits for any more goes on, and the volume's
// lock does not hold back its successor. If it has yet to remove an entry, to add it anew for longer, it must
// not do so after another call has fenced the client.
func TestAClientsEntryIsChangedByOneCallAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		options := Options{}.withDefaults()
		c, release := &Cluster{id: "c", options: options, gate: newGate("c", 1, 4, time.Second)}, make(chan struct{})
		defer close(release)
		if err := hang(t.Context(), c.gate, "blocklist_add", entryOf("10.0.0.1:0/1"), release); !errors.Is(err, ErrUnavailable) {
			t.Fatalf("got %v", err)
		}
		for name, change := range map[string]func() error{
			"add":    func() error { return c.BlocklistAdd(t.Context(), "10.0.0.1:0/1", time.Hour) },
			"remove": func() error { return c.BlocklistRemove(t.Context(), "10.0.0.1:0/1") },
		} {
			if err := change(); err == nil || !strings.Contains(err.Error(), "an earlier call on it has not ended") {
				t.Errorf("%s: %v", name, err)
			}
		}
		if err := c.BlocklistRemove(t.Context(), "10.0.0.2:0/1"); err == nil || !strings.Contains(err.Error(), "1 calls are ahead of it") {
			t.Errorf("another client: %v", err)
		}
	})
}
