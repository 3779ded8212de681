package web

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

func TestMetricsOfEscachedAreHandedOnAndNothingElse(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "escached.sock")
	server := httptest.NewServer(Handler(prometheus.NewRegistry(), nil, socket, slog.New(slog.DiscardHandler)))
	defer server.Close()
	get := func(method, path string) (int, string) {
		request, err := http.NewRequestWithContext(t.Context(), method, server.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		body, _ := io.ReadAll(response.Body)
		return response.StatusCode, string(body)
	}
	if code, _ := get(http.MethodGet, "/metrics/escached"); code != http.StatusBadGateway {
		t.Errorf("without escached: %d", code)
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	escached := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprint(w, r.Method, " ", r.URL)
	})}
	defer escached.Close()
	go func() { _ = escached.Serve(listener) }()
	if code, body := get(http.MethodGet, "/metrics/escached?x=1"); code != http.StatusOK || body != "GET /metrics" {
		t.Errorf("escached saw %d %q", code, body)
	}
	for _, other := range [][2]string{
		{http.MethodDelete, "/metrics/escached"}, {http.MethodGet, "/metrics/escached/v1/node"}, {http.MethodPost, "/v1/stop"},
	} {
		if code, body := get(other[0], other[1]); code < 400 {
			t.Errorf("%v: %d %q", other, code, body)
		}
	}
}
