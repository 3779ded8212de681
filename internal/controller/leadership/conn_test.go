package leadership

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/escache/escache-csi/internal/controller"
)

// pausing is a request's body, and pauses its process for a minute where it is read.
type pausing struct {
	*strings.Reader

	pause func()
}

func (p pausing) Read(to []byte) (int, error) {
	p.pause()
	return p.Reader.Read(to)
}

func TestARequestThatWasOnItsWayIsNotSentAfterAPause(t *testing.T) {
	var served atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if _, err := io.ReadAll(r.Body); err == nil { // without its body it is no request, though its header may come earlier
			served.Add(1)
		}
	}))
	defer server.Close()
	now := time.Unix(1000, 0)
	l := New(&fakeLock{}, 6*time.Second, func() time.Time { return now })
	h := &http.Client{Transport: &http.Transport{DialContext: l.Dial}}
	post := func(pause time.Duration) error {
		body := pausing{strings.NewReader("{}"), func() { now = now.Add(pause) }}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, body)
		if err != nil {
			t.Fatal(err)
		}
		r.ContentLength = 2
		answer, err := h.Do(r)
		if err == nil {
			answer.Body.Close()
		}
		return err
	}
	if err := post(0); !errors.Is(err, controller.ErrUnavailable) {
		t.Errorf("without the lease: %v", err)
	}
	if err := l.Update(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "me"}); err != nil {
		t.Fatal(err)
	}
	if err := post(0); err != nil {
		t.Errorf("leading: %v", err)
	}
	if err := post(time.Minute); !errors.Is(err, controller.ErrUnavailable) {
		t.Errorf("paused on the way: %v", err)
	}
	if n := served.Load(); n != 1 {
		t.Errorf("%d requests arrived, want 1", n)
	}
}
