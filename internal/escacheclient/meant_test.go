package escacheclient

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
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
