package escacheclient

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/escache/escache-csi/api/escache"
)

func TestCallsForAHostNameItIfTheyChangeSomething(t *testing.T) {
	var meant []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		meant = r.Header.Values(escache.HeaderHostID)
		if r.Method == http.MethodGet {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{}`)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}))
	t.Cleanup(server.Close)
	c := newClient(t, Options{BaseURL: server.URL})
	for what, call := range map[string]struct {
		of   *Client
		want []string
	}{"of a host": {c.For("disks-1"), []string{"disks-1"}}, "of whichever answers": {c, nil}, "of no known host": {c.For(""), nil}} {
		if err := call.of.Stop(t.Context(), escache.StopRequest{VolumeRef: ref}); err != nil || !slices.Equal(meant, call.want) {
			t.Errorf("stop %s: meant for %q, %v", what, meant, err)
		}
		if err := call.of.DeleteReplica(t.Context(), ref); err != nil || !slices.Equal(meant, call.want) {
			t.Errorf("delete %s: meant for %q, %v", what, meant, err)
		}
		if _, err := call.of.Node(t.Context()); err != nil || meant != nil {
			t.Errorf("node %s: meant for %q, %v", what, meant, err)
		}
	}
}

// TestAnOlderEscachedGetsNoEpoch: it refuses fields that it does not know.
func TestAnOlderEscachedGetsNoEpoch(t *testing.T) {
	var got []string
	var refuses func(body string) bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got = append(got, r.URL.Path)
		if refuses(string(body)) {
			w.Header().Set("Content-Type", escache.ProblemContentType)
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, `{"type":"x","title":"Bad Request","status":400,"detail":"unknown","code":"invalid_request"}`)
			return
		}
		if r.URL.Path == escache.PathFlush || r.URL.Path == escache.PathHold {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{}`)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}))
	t.Cleanup(server.Close)
	c, ctx := newClient(t, Options{BaseURL: server.URL}), t.Context()
	calls := func(epoch int64) map[string]func() error {
		return map[string]func() error{
			escache.PathStop:    func() error { return c.Stop(ctx, escache.StopRequest{VolumeRef: ref, Epoch: epoch}) },
			escache.PathMode:    func() error { return c.SetMode(ctx, escache.ModeRequest{VolumeRef: ref, Epoch: epoch}) },
			escache.PathRelease: func() error { return c.Release(ctx, escache.ReleaseRequest{VolumeRef: ref, Epoch: epoch}) },
			escache.PathResize:  func() error { return c.Resize(ctx, escache.ResizeRequest{VolumeRef: ref, Epoch: epoch}) },
			escache.PathFlush: func() error {
				_, err := c.Flush(ctx, escache.FlushRequest{VolumeRef: ref, Epoch: epoch, TimeoutSeconds: 1})
				return err
			},
			escache.PathHold: func() error {
				_, err := c.Hold(ctx, escache.HoldRequest{VolumeRef: ref, Epoch: epoch, MaxSeconds: 1})
				return err
			},
		}
	}
	older := func(body string) bool { return strings.Contains(body, `"epoch"`) }
	never, always := func(string) bool { return false }, func(string) bool { return true }
	for what, c := range map[string]struct {
		refuses func(body string) bool
		epoch   int64
		tries   int
		done    bool
	}{
		"an older one": {older, 3, 2, true}, "this version": {never, 3, 1, true}, "another reason": {always, 3, 2, false},
		"no epoch, and another reason": {always, 0, 1, false},
	} {
		for path, call := range calls(c.epoch) {
			got, refuses = nil, c.refuses
			if err := call(); c.done != (err == nil) || !slices.Equal(got, slices.Repeat([]string{path}, c.tries)) {
				t.Errorf("%s: %s: %v, the calls were %q", what, path, err, got)
			}
		}
	}
}
