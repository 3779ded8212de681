package app

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/escache/escache-csi/internal/node/cluster"
)

func TestRegistrationWaitsForTheNodeObject(t *testing.T) {
	for _, row := range []struct {
		name    string
		answers []int // the last one stays
		asks    int
		returns bool
	}{
		{"it is there", []int{http.StatusOK}, 1, true},
		{"it comes later", []int{http.StatusNotFound, http.StatusNotFound, http.StatusOK}, 3, true},
		{"the API cannot tell", []int{http.StatusServiceUnavailable}, 1, true},
		{"it never comes", []int{http.StatusNotFound}, 0, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			asked := 0
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(row.answers[min(asked, len(row.answers)-1)])
				_, _ = io.WriteString(w, `{"metadata":{"name":"n1"}}`)
				asked++
			}))
			defer server.Close()
			client, err := cluster.New(&rest.Config{Host: server.URL})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			awaitNode(ctx, client, "n1", 10*time.Millisecond)
			if returned := ctx.Err() == nil; returned != row.returns || (row.asks > 0 && asked != row.asks) {
				t.Errorf("returned in time: %v, after %d questions", returned, asked)
			}
		})
	}
}
