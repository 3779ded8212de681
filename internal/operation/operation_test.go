package operation

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestTheSecondCallerLearnsWhatRunsAndForHowLong(t *testing.T) {
	now := time.Unix(0, 0)
	l := NewLocks(func() time.Time { return now })
	done, err := l.Begin("v1", "flush")
	if err != nil {
		t.Fatal(err)
	}
	now = now.Add(90 * time.Second)
	if _, err := l.Begin("v1", "stop"); !errors.Is(err, ErrBusy) || !strings.Contains(err.Error(), "flush of volume v1 has been running for 1m30s") {
		t.Errorf("the second: got %v", err)
	}
	other, err := l.Begin("v2", "stop")
	if err != nil {
		t.Errorf("another volume: got %v", err)
	}
	other()
	if got := l.Running("v1"); got != "flush" {
		t.Errorf("running: %q", got)
	}
	done()
	if got := l.Running("v1"); got != "" {
		t.Errorf("running after its end: %q", got)
	}
	if _, err := l.Begin("v1", "stop"); err != nil {
		t.Errorf("after the first has ended: got %v", err)
	}
}
