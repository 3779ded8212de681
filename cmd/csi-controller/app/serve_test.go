package app

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// TestWatchesOutliveTheDeadlineOfCalls has a server that says something of a watch after the
// deadline of calls.
func TestWatchesOutliveTheDeadlineOfCalls(t *testing.T) {
	const deadline = 100 * time.Millisecond
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush()
		select {
		case <-time.After(3 * deadline):
			_, _ = io.WriteString(w, "event")
		case <-r.Context().Done():
		}
	}))
	defer server.Close()
	config := &rest.Config{Host: server.URL, Timeout: deadline}
	heard := func(c *http.Client, err error) (string, error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := c.Do(request)
		if err != nil {
			return "", err
		}
		defer func() { _ = answer.Body.Close() }()
		said, err := io.ReadAll(answer.Body)
		return string(said), err
	}
	if said, err := heard(rest.HTTPClientFor(config)); err == nil {
		t.Errorf("a call went on to the end of a watch: %q", said)
	}
	if said, err := heard(watchClient(config)); err != nil || said != "event" {
		t.Errorf("the watch ended with %q, %v", said, err)
	}
	if config.Timeout != deadline {
		t.Error("calls have no deadline any more")
	}
}
