// Package web serves csi-node's HTTP: metrics and health checks.
package web

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Handler serves /metrics of csi-node, /metrics/escached of the escached behind the socket, /livez
// (200 if this process runs), and /healthz: 200 if volumes can be served, otherwise 503 with
// ready's reasons, one per line.
func Handler(registry *prometheus.Registry, ready func(context.Context) []string, escached string, log *slog.Logger) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics/escached", escachedMetrics(escached, log))
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) {
		reasons := ready(r.Context())
		if len(reasons) == 0 {
			_, _ = fmt.Fprintln(w, "ok")
			return
		}
		w.WriteHeader(http.StatusServiceUnavailable)
		for _, reason := range reasons {
			_, _ = fmt.Fprintln(w, reason)
		}
	})
	return mux
}

// headerTime bounds the wait for a request's header, and for running requests at the end.
const headerTime = 5 * time.Second

// Serve answers on a listener until the context ends.
func Serve(ctx context.Context, listener net.Listener, handler http.Handler) error {
	s := &http.Server{Handler: handler, ReadHeaderTimeout: headerTime}
	stop := context.AfterFunc(ctx, func() {
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), headerTime)
		defer cancel()
		_ = s.Shutdown(ending)
	})
	defer stop()
	if err := s.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
