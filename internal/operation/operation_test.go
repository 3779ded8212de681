package operation

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// The kubelet and the sidecars make an Event of each different text, so it changes seldom.
func TestTheSecondCallerLearnsWhatRunsAndForHowLong(t *testing.T) {
	now := time.Unix(0, 0)
	l := NewLocks(func() time.Time { return now })
	done, err := l.Begin("v1", "flush")
	if err != nil {
		t.Fatal(err)
	}
	now = now.Add(90 * time.Second)
	_, second := l.Begin("v1", "stop")
	if !errors.Is(second, ErrBusy) || !strings.Contains(second.Error(), "flush of volume v1 has been running for more than 1m30s; repeat stop") {
		t.Errorf("the second: got %v", second)
	}
	now = now.Add(time.Second)
	_, third := l.Begin("v1", "stop")
	if third == nil || third.Error() != second.Error() {
		t.Errorf("the text changes: %v, %v", second, third)
	}
	var busy *BusyError
	if !errors.As(third, &busy) || busy.Age != 91*time.Second {
		t.Errorf("age: %+v", busy)
	}
	if young := (&BusyError{Age: time.Second}).Error(); !strings.Contains(young, "for less than 30s;") {
		t.Errorf("a young operation: %s", young)
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
