package web

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"time"
)

// metricsTime bounds one scrape of escached, which reads the kernel's state for it.
const metricsTime = 25 * time.Second

// escachedMetrics forwards a scrape to the local escached, so that the scraper needs no client
// certificate. With a certificate it could also remove replicas.
func escachedMetrics(socket string, logger *slog.Logger) http.Handler {
	dialer := &net.Dialer{Timeout: headerTime}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host, r.Out.URL.Path, r.Out.URL.RawQuery = "http", "escached", "/metrics", ""
		},
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return dialer.DialContext(ctx, "unix", socket)
			},
			// A scrape is rare; a connection kept open would outlive a restart of escached.
			DisableKeepAlives:     true,
			ResponseHeaderTimeout: metricsTime,
		},
		ErrorLog: slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
	}
	return http.TimeoutHandler(proxy, metricsTime, "escached does not answer")
}
