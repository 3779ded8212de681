package faileddisk

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/escache/escache-csi/api/escache"
)

var replica = Replica{Name: "escache-1", Request: escache.OutdateSelfRequest{
	VolumeRef: escache.VolumeRef{Pool: "rbd", Image: "v1"}, Node: "n1", Peer: "n2",
}}

// arbiter gives its answers one after the other; the last one stays.
type arbiter struct {
	answers []error
	asked   int
}

func (a *arbiter) OutdateSelf(ctx context.Context, req escache.OutdateSelfRequest) error {
	if req != replica.Request {
		return errors.New("the wrong question")
	}
	a.asked++
	answer := a.answers[min(a.asked, len(a.answers))-1]
	if answer == errSilent { //nolint:errorlint // it is this very value
		<-ctx.Done()
		return ctx.Err()
	}
	return answer
}

var (
	errAway   = errors.New("connection refused")
	errSilent = errors.New("no answer")
	errOnly   = &escache.Problem{Code: escache.CodeOutdated, Detail: "the only current one"}
)

func reporter(t *testing.T, answers ...error) (Reporter, *arbiter) {
	t.Helper()
	a := &arbiter{answers: answers}
	r := Reporter{
		Marks: Marks{Dir: filepath.Join(t.TempDir(), "a", "b")}, Records: a, LivesOnPeer: func() bool { return false },
		Log: slog.New(slog.DiscardHandler),
	}
	if err := r.Marks.Set(replica.Name, Failed); err != nil {
		t.Fatal(err)
	}
	return r, a
}

func TestAMarkStaysUntilItIsDropped(t *testing.T) {
	m := Marks{Dir: filepath.Join(t.TempDir(), "marks")}
	if got := m.Get("a"); got != Sound {
		t.Errorf("no mark reads as %q", got)
	}
	for _, state := range []State{Failed, Recorded, Failed} {
		if err := m.Set("a", state); err != nil || m.Get("a") != state || m.Get("b") != Sound {
			t.Errorf("%s: %v, reads as %q", state, err, m.Get("a"))
		}
	}
	// A power loss can leave it empty.
	if err := os.WriteFile(m.path("a"), nil, 0o600); err != nil || m.Get("a") != Failed {
		t.Errorf("an empty mark reads as %q (%v)", m.Get("a"), err)
	}
	for range 2 {
		if err := m.Drop("a"); err != nil || m.Get("a") != Sound {
			t.Errorf("dropped: %v, reads as %q", err, m.Get("a"))
		}
	}
}

func TestASecondaryLeavesUnlessItIsOnRecord(t *testing.T) {
	for name, c := range map[string]struct {
		answer error
		leaves bool
		state  State
	}{
		"on record":            {nil, false, Recorded},
		"the arbiter is away":  {errAway, true, Failed},
		"no answer":            {errSilent, true, Failed},
		"the only current one": {errOnly, true, Failed},
	} {
		synctest.Test(t, func(t *testing.T) {
			r, _ := reporter(t, c.answer)
			left, begin := false, time.Now()
			err := r.ReportOrLeave(t.Context(), replica, func(ctx context.Context, of string) error {
				left = of == replica.Name
				return ctx.Err()
			})
			if left != c.leaves || (err != nil) != c.leaves || r.Marks.Get(replica.Name) != c.state {
				t.Errorf("%s: left %v, %q, %v", name, left, r.Marks.Get(replica.Name), err)
			}
			if took := time.Since(begin); took > patience {
				t.Errorf("%s: it took %s", name, took)
			}
		})
	}
}

func TestAPrimaryWaitsUntilTheArbiterHasAnswered(t *testing.T) {
	for name, c := range map[string]struct {
		answers []error
		asked   int
		state   State
	}{
		"on record":            {[]error{nil}, 1, Recorded},
		"away at first":        {[]error{errAway, errAway, nil}, 3, Recorded},
		"the only current one": {[]error{errAway, errOnly}, 2, Failed},
	} {
		synctest.Test(t, func(t *testing.T) {
			r, a := reporter(t, c.answers...)
			err := r.ReportUntilHeard(t.Context(), replica)
			if a.asked != c.asked || r.Marks.Get(replica.Name) != c.state || (err == nil) != (c.state == Recorded) {
				t.Errorf("%s: asked %d times, %q, %v", name, a.asked, r.Marks.Get(replica.Name), err)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		r, a := reporter(t, errAway)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := r.ReportUntilHeard(ctx, replica); !errors.Is(err, context.DeadlineExceeded) || a.asked < 30 {
			t.Errorf("asked %d times in a minute: %v", a.asked, err)
		}
	})
}

// The peer was outdated, is in sync again, and csi-node has not counted it yet. From now on all that
// is written is on the peer's disk only. So nothing may be acknowledged while the record counts the
// copy here and not the peer's.
func TestAPrimaryWaitsUntilItsCurrentPeerIsCounted(t *testing.T) {
	for name, c := range map[string]struct {
		answers []error
		asked   int
		state   State
	}{
		"counted later": {[]error{errOnly, errOnly, nil}, 3, Recorded},
		"link lost":     {[]error{errOnly, errOnly, errOnly, nil}, 3, Failed},
	} {
		synctest.Test(t, func(t *testing.T) {
			r, a := reporter(t, c.answers...)
			r.LivesOnPeer = func() bool { return a.asked < 3 }
			err := r.ReportUntilHeard(t.Context(), replica)
			if a.asked != c.asked || r.Marks.Get(replica.Name) != c.state || (err == nil) != (c.state == Recorded) {
				t.Errorf("%s: asked %d times, %q, %v", name, a.asked, r.Marks.Get(replica.Name), err)
			}
		})
	}
}
