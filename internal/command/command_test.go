package command

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestRunReportsExitOutputAndTimeouts(t *testing.T) {
	x := NewExec()
	res, err := x.Run(t.Context(), Command{Name: "cat", Stdin: []byte("in")})
	if err != nil || string(res.Stdout) != "in" {
		t.Fatalf("stdin must reach the child: %q, %v", res.Stdout, err)
	}
	_, err = x.Run(t.Context(), Command{Name: "sh", Args: []string{"-c", "echo why >&2; exit 11"}})
	if ExitCode(err) != 11 || !strings.Contains(err.Error(), "why") {
		t.Fatalf("want exit 11 with its reason, got %v", err)
	}
	_, err = x.Run(t.Context(), Command{Name: "sleep", Args: []string{"60"}, Timeout: 50 * time.Millisecond})
	var timeout *TimeoutError
	if !errors.As(err, &timeout) || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("want a timeout, got %v", err)
	}
}

func TestGrandchildrenDieWithTheGroup(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	pid, err := runUntil(t, NewExec(), file, "(sleep) S", Command{Name: "sh", Args: []string{"-c", "sleep 60 & echo $! >" + file + "; wait"}})
	if timeout := (*TimeoutError)(nil); !errors.As(err, &timeout) {
		t.Fatalf("want a timeout, got %v", err)
	}
	eventually(t, "the grandchild lives", func() bool {
		state := stat(pid)
		return state == "" || strings.Contains(state, ") Z ") // who reaps it is not this package's matter
	})
}

func TestBreakerRefusesChangesUntilTheChildIsGone(t *testing.T) {
	b := NewBreaker()
	done := make(chan error)
	b.Trip("v1", false, &StuckError{Command: "dmsetup message", Pid: 7, Since: time.Now()}, done)
	var stuck *StuckError
	if err := b.Allow("v1", false); !errors.As(err, &stuck) || stuck.Pid != 7 {
		t.Fatalf("a change must be refused with the stuck child, got %v", err)
	}
	if err := b.Allow("v1", true); err != nil {
		t.Fatalf("status must still answer: %v", err)
	}
	if err := b.Allow("v2", false); err != nil {
		t.Fatalf("other volumes must not suffer: %v", err)
	}
	done <- nil
	eventually(t, "the breaker must close when the child is gone", func() bool { return b.Allow("v1", false) == nil })
}

func TestLabelIsShort(t *testing.T) {
	c := Command{Name: "/sbin/dmsetup", Args: strings.Fields("create a b c d e f")}
	if got := c.String(); got != "dmsetup create a b c d …" {
		t.Fatal(got)
	}
}

// mkfs.xfs says in its first line what is wrong, and prints its usage after that.
func TestTheReasonIsKeptWhereverItStands(t *testing.T) {
	const script = `echo "too small" >&2; for i in $(seq 27); do echo "usage $i" >&2; done; echo "at last" >&2; exit 1`
	_, err := NewExec().Run(t.Context(), Command{Name: "sh", Args: []string{"-c", script}})
	for _, part := range []string{"exit 1: too small;", "usage 27; at last"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("no %q in %v", part, err)
		}
	}
	if strings.Contains(err.Error(), "usage 12") {
		t.Errorf("all lines are told: %v", err)
	}
}
